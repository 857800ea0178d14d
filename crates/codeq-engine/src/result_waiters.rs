//! Clients that wait for a task to finish. They are woken by the commit that finishes it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use codeq_core::effect::{Effect, Move};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::EngineError;
use crate::options::PARKED_MAX;

/// Those who wait for results in one shard.
#[derive(Default)]
pub struct ResultWaiters {
    count: AtomicUsize,
    by_task: Mutex<BTreeMap<u64, Vec<oneshot::Sender<()>>>>,
}

impl ResultWaiters {
    /// A receiver that is woken when task number `seq` finishes, or when the engine stops.
    pub fn wait(&self, seq: u64) -> Result<oneshot::Receiver<()>, EngineError> {
        let (wake, woken) = oneshot::channel();
        let mut by_task = self.by_task.lock();
        if self.count.load(Ordering::Acquire) >= PARKED_MAX {
            by_task.retain(|_, waiters| {
                waiters.retain(|waiter| !waiter.is_closed());
                !waiters.is_empty()
            });
            self.recount(&by_task);
            if self.count.load(Ordering::Acquire) >= PARKED_MAX {
                return Err(EngineError::Overloaded);
            }
        }
        by_task.entry(seq).or_default().push(wake);
        self.count.fetch_add(1, Ordering::AcqRel);
        Ok(woken)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Wakes those whose task finished.
    pub fn committed(&self, effects: &[Effect]) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut by_task = self.by_task.lock();
        let mut woken = 0;
        for effect in effects {
            if let Effect::Moved(Move { id, to: Some(place), .. }) = effect
                && place.is_terminal()
            {
                // Dropping the sender wakes the receiver.
                woken += by_task.remove(&id.seq()).map_or(0, |waiters| waiters.len());
            }
        }
        self.count.fetch_sub(woken, Ordering::AcqRel);
    }

    /// Wakes everybody: the engine has stopped.
    pub fn wake_all(&self) {
        self.by_task.lock().clear();
        self.count.store(0, Ordering::Release);
    }

    fn recount(&self, by_task: &BTreeMap<u64, Vec<oneshot::Sender<()>>>) {
        self.count.store(by_task.values().map(Vec::len).sum(), Ordering::Release);
    }
}
