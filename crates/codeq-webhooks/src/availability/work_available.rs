//! What happens on the engine's threads when a queue gets work: a mark, and a wake-up.
//!
//! As long as nobody has subscribed to anything this is one look at a number. Marks are sets: a queue that
//! becomes ready a thousand times before somebody looks is marked once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use codeq_core::effect::Effect;
use codeq_core::keys::QueueId;
use codeq_core::record::RecordKind;
use codeq_engine::Observer;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Most queues that are marked at once; what comes on top is counted and forgotten.
const READY_MAX: usize = 65_536;
/// Most subscriptions that are marked at once; beyond that all are read again.
const CHANGED_MAX: usize = 8_192;

/// Hears of queues that have work, and of subscriptions that have changed.
#[derive(Default)]
pub struct Bell {
    /// How many want to hear.
    interest: AtomicUsize,
    marks: Mutex<Marks>,
    wake: Notify,
}

/// What has happened since somebody looked.
#[derive(Debug, Default)]
pub struct Marks {
    /// Queues that had nothing to claim and have something, by shard.
    pub ready: BTreeSet<(u16, QueueId)>,
    /// Subscriptions that have changed: tenant and id.
    pub changed: BTreeSet<(Arc<str>, Arc<str>)>,
    /// So many have changed that all are to be read again.
    pub all_changed: bool,
    /// Queues for which there was no room.
    pub missed: u64,
}

/// Somebody wants to hear; until it is dropped.
pub struct Interest(Arc<Bell>);

impl Drop for Interest {
    fn drop(&mut self) {
        self.0.interest.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Bell {
    /// Listens as long as the answer is kept.
    pub fn interest(self: &Arc<Bell>) -> Interest {
        self.interest.fetch_add(1, Ordering::AcqRel);
        Interest(Arc::clone(self))
    }

    /// A subscription has changed.
    pub fn changed(&self, tenant: &Arc<str>, id: &Arc<str>) {
        self.marks.lock().change(tenant, id);
        self.wake.notify_one();
    }

    /// Waits until something has happened. Only one waits at a time.
    pub async fn rung(&self) {
        self.wake.notified().await;
    }

    /// Takes the marks.
    pub fn take(&self) -> Marks {
        std::mem::take(&mut self.marks.lock())
    }
}

impl Marks {
    fn change(&mut self, tenant: &Arc<str>, id: &Arc<str>) {
        if self.changed.len() >= CHANGED_MAX {
            self.changed.clear();
            self.all_changed = true;
        }
        if !self.all_changed {
            self.changed.insert((Arc::clone(tenant), Arc::clone(id)));
        }
    }

    fn add(&mut self, shard: u16, effect: &Effect) -> bool {
        match effect {
            Effect::Ready { queue } if self.ready.len() < READY_MAX => {
                self.ready.insert((shard, *queue));
            }
            Effect::Ready { .. } => self.missed += 1,
            Effect::RecordChanged { kind: RecordKind::Subscription, tenant, name } => {
                self.change(tenant, name);
            }
            _ => return false,
        }
        true
    }
}

impl Observer for Bell {
    fn committed(&self, shard: u16, effects: &[Effect]) {
        if self.interest.load(Ordering::Acquire) == 0 {
            return;
        }
        // The lock is taken only if there is something to mark.
        let matters = |effect: &&Effect| {
            matches!(
                effect,
                Effect::Ready { .. } | Effect::RecordChanged { kind: RecordKind::Subscription, .. }
            )
        };
        let mut effects = effects.iter().filter(matters).peekable();
        if effects.peek().is_none() {
            return;
        }
        let mut marks = self.marks.lock();
        effects.for_each(|effect| {
            marks.add(shard, effect);
        });
        drop(marks);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_marked_without_interest() {
        let bell = Arc::new(Bell::default());
        bell.committed(0, &[Effect::Ready { queue: 1 }]);
        assert!(bell.take().ready.is_empty());
        let interest = bell.interest();
        let again = bell.interest();
        drop(interest);
        for _ in 0..3 {
            bell.committed(2, &[Effect::Ready { queue: 1 }, Effect::CallbackDue { seq: 1, at: 0 }]);
        }
        assert_eq!(bell.take().ready, BTreeSet::from([(2, 1)]));
        drop(again);
        bell.committed(0, &[Effect::Ready { queue: 1 }]);
        assert!(bell.take().ready.is_empty());
    }

    #[test]
    fn marks_are_bounded() {
        let mut marks = Marks::default();
        for queue in 0..70_000 {
            marks.add(0, &Effect::Ready { queue });
        }
        assert_eq!((marks.ready.len(), marks.missed), (READY_MAX, 70_000 - READY_MAX as u64));
        for number in 0..=CHANGED_MAX {
            marks.change(&"t".into(), &number.to_string().into());
        }
        assert!(marks.all_changed && marks.changed.is_empty());
    }
}
