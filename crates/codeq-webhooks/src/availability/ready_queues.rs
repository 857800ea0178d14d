//! Queues that have work and whose subscribers have not been chosen yet.
//!
//! Tenants take turns, so that one with ten thousand queues does not delay the others.

use std::sync::Arc;

use codeq_core::callback_retry::name_hash;
use tokio::time::Instant;

use crate::dispatcher::{Dispatcher, Limits, Outcome, Receiver};

/// Maximum number of waiting queues; more are dropped.
const WAITING_MAX: usize = 65_536;
/// Maximum number of waiting queues of one tenant: half of all.
const WAITING_PER_TENANT_MAX: usize = WAITING_MAX / 2;

/// The dispatcher sees each tenant as a receiver that takes one queue at a time.
const LIMITS: Limits = Limits {
    calls: 1,
    calls_per_tenant: 1,
    calls_per_host: 1,
    waiting: WAITING_MAX,
    waiting_per_tenant: WAITING_PER_TENANT_MAX,
    waiting_per_receiver: WAITING_PER_TENANT_MAX,
    receivers: WAITING_MAX,
    receivers_per_tenant: 1,
};

/// A queue: tenant and command.
type Queue = (Arc<str>, Arc<str>);

pub(super) struct ReadyQueues(Dispatcher<Queue>);

impl ReadyQueues {
    pub fn new() -> ReadyQueues {
        ReadyQueues(Dispatcher::new(LIMITS))
    }

    pub fn is_empty(&self) -> bool {
        self.0.waiting() == 0
    }

    /// Adds a queue, unless it is waiting already. False if there is no room.
    pub fn add(&mut self, tenant: Arc<str>, command: Arc<str>) -> bool {
        let to = Receiver { tenant: name_hash(&tenant), host: 0 };
        self.0.add(to, (tenant, command)).is_ok()
    }

    /// Takes a queue of the tenant whose turn it is.
    pub fn take(&mut self) -> Option<Queue> {
        let call = self.0.next_call()?;
        let queue = call.item.clone();
        self.0.done(call, Outcome::Skipped, Instant::now());
        Some(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns() {
        let mut waiting = ReadyQueues::new();
        for number in 0..10_000 {
            assert!(waiting.add("a".into(), format!("q{number:05}").into()));
        }
        assert!(waiting.add("b".into(), "mail".into()));
        assert!(waiting.add("b".into(), "mail".into()), "it waits once");
        let first: Vec<_> = std::iter::from_fn(|| waiting.take()).take(3).collect();
        let names: Vec<_> = first.iter().map(|(tenant, name)| (&**tenant, &**name)).collect();
        assert_eq!(names, [("a", "q00000"), ("b", "mail"), ("a", "q00001")]);
        assert_eq!(std::iter::from_fn(|| waiting.take()).count(), 9_998);
        assert!(waiting.is_empty() && waiting.0.is_empty());
    }

    #[test]
    fn no_tenant_has_more_than_half() {
        let mut waiting = ReadyQueues::new();
        let mut fill = |tenant: &str| {
            let add = |n: &usize| waiting.add(tenant.into(), n.to_string().into());
            (0..WAITING_MAX).filter(add).count()
        };
        assert_eq!(fill("a"), WAITING_PER_TENANT_MAX);
        assert_eq!(fill("b"), WAITING_PER_TENANT_MAX);
        assert_eq!(fill("c"), 0);
    }
}
