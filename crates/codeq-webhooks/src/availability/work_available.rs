//! Records, on the engine's threads, which queues get work, and wakes the notifier.
//!
//! While there are no subscriptions this costs one atomic read. Changes are kept in sets: a queue that gets work a
//! thousand times before the notifier looks is recorded once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use codeq_core::effect::Effect;
use codeq_core::id::ShardId;
use codeq_core::keys::QueueId;
use codeq_core::record::RecordKind;
use codeq_engine::Observer;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum number of queues recorded until the notifier takes them; more are counted and dropped.
const READY_MAX: usize = 65_536;
/// Maximum number of changed subscriptions recorded; beyond that, all are read again.
const CHANGED_MAX: usize = 8_192;

/// Collects queues that get work, and subscriptions that change.
#[derive(Default)]
pub struct WorkAvailable {
    listeners: AtomicUsize,
    changes: Mutex<Changes>,
    wake: Notify,
}

/// What has changed since the notifier last looked.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Queues that had nothing to claim and now have something, by shard.
    pub ready: BTreeSet<(ShardId, QueueId)>,
    /// Subscriptions that changed: tenant and id.
    pub changed: BTreeSet<(Arc<str>, Arc<str>)>,
    /// Too many subscriptions changed to record each: all must be read again.
    pub all_changed: bool,
    /// How many queues were dropped for lack of room.
    pub missed: u64,
}

/// Keeps [`WorkAvailable`] listening until it is dropped.
pub struct Listening(Arc<WorkAvailable>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Ordering::AcqRel);
    }
}

impl WorkAvailable {
    /// Listens until the return value is dropped.
    pub fn listen(self: &Arc<WorkAvailable>) -> Listening {
        self.listeners.fetch_add(1, Ordering::AcqRel);
        Listening(Arc::clone(self))
    }

    pub(super) fn subscription_changed(&self, tenant: &Arc<str>, id: &Arc<str>) {
        self.changes.lock().change(tenant, id);
        self.wake.notify_one();
    }

    /// Waits for changes. Only one task waits at a time.
    pub(super) async fn changed(&self) {
        self.wake.notified().await;
    }

    pub(super) fn take(&self) -> Changes {
        std::mem::take(&mut self.changes.lock())
    }
}

impl Changes {
    fn change(&mut self, tenant: &Arc<str>, id: &Arc<str>) {
        if self.changed.len() >= CHANGED_MAX {
            self.changed.clear();
            self.all_changed = true;
        }
        if !self.all_changed {
            self.changed.insert((Arc::clone(tenant), Arc::clone(id)));
        }
    }

    fn add(&mut self, shard: ShardId, effect: &Effect) {
        match effect {
            Effect::Ready { queue } if self.ready.len() < READY_MAX => {
                self.ready.insert((shard, *queue));
            }
            Effect::Ready { .. } => self.missed += 1,
            Effect::RecordChanged { kind: RecordKind::Subscription, tenant, name } => {
                self.change(tenant, name);
            }
            _ => {}
        }
    }
}

impl Observer for WorkAvailable {
    fn committed(&self, shard: ShardId, effects: &[Effect]) {
        if self.listeners.load(Ordering::Acquire) == 0 {
            return;
        }
        let matters = |effect: &&Effect| {
            matches!(
                effect,
                Effect::Ready { .. } | Effect::RecordChanged { kind: RecordKind::Subscription, .. }
            )
        };
        let mut effects = effects.iter().filter(matters).peekable();
        // Most commits have nothing to record and do not take the lock.
        if effects.peek().is_none() {
            return;
        }
        let mut changes = self.changes.lock();
        effects.for_each(|effect| changes.add(shard, effect));
        drop(changes);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use codeq_core::keys::Seq;

    use super::*;

    #[test]
    fn nothing_is_noted_without_a_listener() {
        let work = Arc::new(WorkAvailable::default());
        work.committed(ShardId(0), &[Effect::Ready { queue: 1 }]);
        assert!(work.take().ready.is_empty());
        let listening = work.listen();
        let again = work.listen();
        drop(listening);
        for _ in 0..3 {
            work.committed(
                ShardId(2),
                &[Effect::Ready { queue: 1 }, Effect::CallbackDue { seq: Seq(1), at: 0 }],
            );
        }
        assert_eq!(work.take().ready, BTreeSet::from([(ShardId(2), 1)]));
        drop(again);
        work.committed(ShardId(0), &[Effect::Ready { queue: 1 }]);
        assert!(work.take().ready.is_empty());
    }

    #[test]
    fn changes_are_bounded() {
        let mut changes = Changes::default();
        for queue in 0..70_000 {
            changes.add(ShardId(0), &Effect::Ready { queue });
        }
        assert_eq!((changes.ready.len(), changes.missed), (READY_MAX, 70_000 - READY_MAX as u64));
        for number in 0..=CHANGED_MAX {
            changes.change(&"t".into(), &number.to_string().into());
        }
        assert!(changes.all_changed && changes.changed.is_empty());
    }
}
