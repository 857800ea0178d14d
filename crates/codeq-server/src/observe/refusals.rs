//! Counts refusals due to limits, by tenant.
//!
//! Tenants come from tokens, and an issuer can make up any number of them, so the label values are
//! bounded. A newly refused tenant replaces the one whose last refusal is the oldest; the counts of
//! that one move to [`OTHER`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::commands::{OTHER, counter};

/// Tenants with their own label value; the rest share [`OTHER`].
pub const TENANTS_MAX: usize = 50;

/// A limit that can cause a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// An event stream.
    EventStream,
    /// A claim, or a client that asks for a result, that would wait.
    WaitingClaim,
    /// A notification to a subscriber.
    Notification,
    /// A task beyond the tenant's quota.
    Quota,
}

const REASONS: [(Refused, &str); 4] = [
    (Refused::EventStream, "event_stream"),
    (Refused::WaitingClaim, "waiting_claim"),
    (Refused::Notification, "notification"),
    (Refused::Quota, "quota"),
];

type Counts = [u64; REASONS.len()];

#[derive(Debug, Default)]
struct Table {
    /// By tenant: the sequence number of its last refusal, and the counts.
    tenants: HashMap<Arc<str>, (u64, Counts)>,
    other: Counts,
    sequence: u64,
}

/// Refusals by tenant.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Table>);

impl Refusals {
    /// Counts one refusal.
    pub fn count(&self, tenant: &Arc<str>, what: Refused) {
        let mut table = self.0.lock();
        table.sequence += 1;
        let sequence = table.sequence;
        if !table.tenants.contains_key(tenant) && table.tenants.len() >= TENANTS_MAX {
            let oldest = table.tenants.iter().min_by_key(|(_, (last, _))| *last);
            let oldest = oldest.map(|(tenant, _)| Arc::clone(tenant));
            if let Some((_, counts)) = oldest.and_then(|tenant| table.tenants.remove(&tenant)) {
                add(&mut table.other, counts);
            }
        }
        let (last, counts) = table.tenants.entry(Arc::clone(tenant)).or_default();
        *last = sequence;
        if let Some(count) = counts.get_mut(what as usize) {
            *count += 1;
        }
    }

    fn snapshot(&self) -> Vec<(Arc<str>, Counts)> {
        let table = self.0.lock();
        let of = |(tenant, (_, counts)): (&Arc<str>, &(u64, Counts))| (Arc::clone(tenant), *counts);
        let mut all: Vec<_> = table.tenants.iter().map(of).collect();
        let mut other = table.other;
        drop(table);
        // A tenant with this exact name would produce a duplicate series.
        if let Some(at) = all.iter().position(|(tenant, _)| **tenant == *OTHER) {
            add(&mut other, all.swap_remove(at).1);
        }
        all.push((OTHER.into(), other));
        all.sort_by(|(one, _), (two, _)| one.cmp(two));
        all
    }
}

fn add(to: &mut Counts, from: Counts) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

impl Collector for Refusals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.snapshot();
        let rows = all.iter().flat_map(|(tenant, counts)| {
            let reasons = REASONS.iter().zip(*counts);
            reasons.map(move |((_, reason), count)| {
                ([("tenant", &**tenant), ("what", *reason)], count)
            })
        });
        let help = "Refusals because a limit of the tenant or the server was reached";
        counter(&mut encoder, "refusals", help, rows.filter(|(_, count)| *count > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_the_order_of_the_variants() {
        for (at, (reason, _)) in REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
    }

    #[test]
    fn tenants_are_bounded_and_replaced() {
        let refusals = Refusals::default();
        for number in 0..TENANTS_MAX + 10 {
            refusals.count(&format!("t{number}").into(), Refused::Quota);
            refusals.count(&"steady".into(), Refused::EventStream);
        }
        let all = refusals.snapshot();
        let of = |name: &str| all.iter().find(|(tenant, _)| **tenant == *name).map(|(_, c)| *c);
        assert_eq!(all.len(), TENANTS_MAX + 1);
        assert_eq!(
            of("steady"),
            Some([TENANTS_MAX as u64 + 10, 0, 0, 0]),
            "whoever is refused stays"
        );
        assert_eq!((of("t0"), of("t59").is_some()), (None, true));
        assert_eq!(of(OTHER), Some([0, 0, 0, 11]), "the sum stays the same");
    }
}
