//! Queues whose subscribers are to be told that they have work. The tenants take turns: one with ten thousand
//! queues does not keep the others waiting.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Most queues that wait; what comes on top is counted and forgotten.
const WAITING_MAX: usize = 65_536;
/// The same for one tenant: no tenant has more than half.
const WAITING_PER_TENANT_MAX: usize = WAITING_MAX / 2;

/// The queues that wait to be announced.
#[derive(Default)]
pub struct Announcements {
    tenants: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// The tenants, the next one first.
    turns: VecDeque<Arc<str>>,
    waiting: usize,
}

impl Announcements {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Adds a queue; once is enough. False if there is no room.
    pub fn push(&mut self, tenant: Arc<str>, command: Arc<str>) -> bool {
        let known = self.tenants.get(&tenant);
        if known.is_some_and(|commands| commands.contains(&command)) {
            return true;
        }
        let of_tenant = known.map_or(0, BTreeSet::len);
        if self.waiting >= WAITING_MAX || of_tenant >= WAITING_PER_TENANT_MAX {
            return false;
        }
        if of_tenant == 0 {
            self.turns.push_back(Arc::clone(&tenant));
        }
        self.tenants.entry(tenant).or_default().insert(command);
        self.waiting += 1;
        true
    }

    /// Takes a queue of the tenant whose turn it is.
    pub fn pop(&mut self) -> Option<(Arc<str>, Arc<str>)> {
        let tenant = self.turns.pop_front()?;
        let commands = self.tenants.get_mut(&tenant)?;
        let command = commands.pop_first()?;
        self.waiting -= 1;
        if commands.is_empty() {
            self.tenants.remove(&tenant);
        } else {
            self.turns.push_back(Arc::clone(&tenant));
        }
        Some((tenant, command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns() {
        let mut waiting = Announcements::default();
        for number in 0..10_000 {
            assert!(waiting.push("a".into(), format!("q{number:05}").into()));
        }
        assert!(waiting.push("b".into(), "mail".into()));
        assert!(waiting.push("b".into(), "mail".into()), "once is enough");
        let first: Vec<_> = std::iter::from_fn(|| waiting.pop()).take(3).collect();
        let names: Vec<_> = first.iter().map(|(tenant, name)| (&**tenant, &**name)).collect();
        assert_eq!(names, [("a", "q00000"), ("b", "mail"), ("a", "q00001")]);
        assert_eq!(std::iter::from_fn(|| waiting.pop()).count(), 9_998);
        assert!(waiting.is_empty() && waiting.tenants.is_empty() && waiting.turns.is_empty());
    }

    #[test]
    fn no_tenant_has_more_than_half() {
        let mut waiting = Announcements::default();
        let mut fill = |tenant: &str| {
            let push = |n: &usize| waiting.push(tenant.into(), n.to_string().into());
            (0..WAITING_MAX).filter(push).count()
        };
        assert_eq!(fill("a"), WAITING_PER_TENANT_MAX);
        assert_eq!(fill("b"), WAITING_PER_TENANT_MAX);
        assert_eq!(fill("c"), 0);
    }
}
