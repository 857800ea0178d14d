//! Clients that wait for a task to finish. The commit that finishes it wakes them.
//!
//! A wait is removed when its task finishes or its client leaves, whichever comes first. Either way only that wait is
//! touched, so a commit does no more work for many waiting clients than for few.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use codeq_core::effect::{Effect, Transition};
use codeq_core::keys::Seq;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::EngineError;
use crate::options::{WAITERS_MAX, WAITERS_PER_TENANT_MAX};

/// Clients that wait for results in one shard.
#[derive(Default)]
pub struct ResultWaiters {
    /// Number of waits, so that a commit can skip the map if there are none.
    count: AtomicUsize,
    waits: Mutex<Waits>,
}

#[derive(Default)]
struct Waits {
    /// Number of the next wait.
    next: u64,
    by_task: BTreeMap<WaitKey, (Arc<str>, oneshot::Sender<()>)>,
    /// Number of waits per tenant.
    tenants: BTreeMap<Arc<str>, usize>,
    /// The engine has stopped: no waits are accepted.
    closed: bool,
}

/// The task's number and the wait's number.
type WaitKey = (Seq, u64);

/// A waiting client. Dropping it ends the wait.
pub struct ResultWait<'a> {
    waiters: &'a ResultWaiters,
    key: WaitKey,
    woken: oneshot::Receiver<()>,
}

impl ResultWait<'_> {
    /// Completes when the task has finished or the engine has stopped.
    pub async fn woken(mut self) {
        // The sender is only ever dropped: both ways of ending count as a wake-up.
        let _ = (&mut self.woken).await;
    }
}

impl Drop for ResultWait<'_> {
    fn drop(&mut self) {
        let mut waits = self.waiters.waits.lock();
        waits.remove(self.key);
        self.waiters.count.store(waits.by_task.len(), Ordering::Release);
    }
}

impl ResultWaiters {
    /// Starts to wait for task number `seq` of a tenant.
    pub fn wait(&self, tenant: &Arc<str>, seq: Seq) -> Result<ResultWait<'_>, EngineError> {
        let (wake, woken) = oneshot::channel();
        let mut waits = self.waits.lock();
        let key = (seq, waits.next);
        waits.next = waits.next.wrapping_add(1);
        // If the engine has stopped, `wake` is dropped here, which is the wake-up.
        if !waits.closed {
            let of_tenant = waits.tenants.get(tenant).copied().unwrap_or(0);
            if waits.by_task.len() >= WAITERS_MAX || of_tenant >= WAITERS_PER_TENANT_MAX {
                return Err(EngineError::TooManyWaiting);
            }
            *waits.tenants.entry(Arc::clone(tenant)).or_default() += 1;
            waits.by_task.insert(key, (Arc::clone(tenant), wake));
            self.count.store(waits.by_task.len(), Ordering::Release);
        }
        Ok(ResultWait { waiters: self, key, woken })
    }

    /// Number of waits.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Wakes the clients whose task finished.
    pub fn committed(&self, effects: &[Effect]) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut waits = self.waits.lock();
        for effect in effects {
            if let Effect::Moved(Transition { id, to: Some(place), .. }) = effect
                && place.is_terminal()
            {
                waits.wake(id.seq());
            }
        }
        self.count.store(waits.by_task.len(), Ordering::Release);
    }

    /// Wakes all clients, so that they look again.
    pub fn wake_all(&self) {
        let mut waits = self.waits.lock();
        *waits = Waits { next: waits.next, closed: waits.closed, ..Waits::default() };
        self.count.store(0, Ordering::Release);
    }

    /// Wakes all clients, now and in the future, because the engine has stopped.
    pub fn close(&self) {
        let mut waits = self.waits.lock();
        *waits = Waits { closed: true, next: waits.next, ..Waits::default() };
        self.count.store(0, Ordering::Release);
    }
}

impl Waits {
    fn wake(&mut self, seq: Seq) {
        loop {
            let first = self.by_task.range((seq, 0)..=(seq, u64::MAX)).next();
            let Some(key) = first.map(|(key, _)| *key) else { return };
            self.remove(key);
        }
    }

    /// Removes a wait if it is still there, which wakes its client.
    fn remove(&mut self, key: WaitKey) {
        let Some((tenant, _)) = self.by_task.remove(&key) else { return };
        if let Some(count) = self.tenants.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                self.tenants.remove(&tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use codeq_core::history::Event;
    use codeq_core::id::TaskId;
    use codeq_core::moment::Moment;
    use codeq_core::place::Place;

    use super::*;

    fn is_woken(wait: ResultWait<'_>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(wait.woken()).poll(&mut context) == Poll::Ready(())
    }

    fn is_empty(waiters: &ResultWaiters) -> bool {
        let waits = waiters.waits.lock();
        waiters.len() == 0 && waits.by_task.is_empty() && waits.tenants.is_empty()
    }

    fn moved(seq: Seq, to: Place) -> Effect {
        Effect::Moved(Transition {
            number: 1,
            id: TaskId::new(seq, 7),
            tenant: "a".into(),
            queue: "q".into(),
            from: Some(Place::InProgress),
            to: Some(to),
            event: Event::Submitted,
            at: Moment::agreed(1),
            age: 0,
            attempts: 0,
        })
    }

    #[test]
    fn waiters_that_stay_are_woken_and_those_that_leave_are_forgotten() {
        let waiters = ResultWaiters::default();
        let wait = |tenant: &str, seq| waiters.wait(&tenant.into(), Seq(seq)).unwrap();
        let mut waits: Vec<_> = (0..1_000).map(|at| wait(["a", "b"][at % 2], 5)).collect();
        let (other, next) = (wait("a", 4), wait("a", 6));
        assert_eq!(waiters.len(), 1_002);
        waits.truncate(10);
        assert_eq!(waiters.len(), 12, "those who hung up are gone");
        waiters.committed(&[moved(Seq(5), Place::Delayed), moved(Seq(7), Place::Completed)]);
        assert_eq!(waiters.len(), 12);
        waiters.committed(&[moved(Seq(5), Place::Completed)]);
        assert_eq!(waiters.len(), 2);
        assert!(waits.into_iter().all(is_woken));
        assert!(!is_woken(other) && !is_woken(next));
        assert!(is_empty(&waiters));
    }

    #[test]
    fn no_tenant_has_more_than_half() {
        let waiters = ResultWaiters::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let waits =
            (0..WAITERS_PER_TENANT_MAX as u64).map(|seq| waiters.wait(&a, Seq(seq)).unwrap());
        let waits: Vec<_> = waits.collect();
        assert_eq!(waiters.wait(&a, Seq(0)).err(), Some(EngineError::TooManyWaiting));
        assert!(waiters.wait(&b, Seq(0)).is_ok());
        drop(waits);
        assert!(waiters.wait(&a, Seq(0)).is_ok());
        assert!(is_empty(&waiters));
    }

    #[test]
    fn a_stopped_engine_wakes_current_and_later_waiters() {
        let waiters = ResultWaiters::default();
        let wait = waiters.wait(&"a".into(), Seq(1)).unwrap();
        waiters.close();
        assert!(is_woken(wait) && is_woken(waiters.wait(&"a".into(), Seq(1)).unwrap()));
        assert!(is_empty(&waiters));
    }
}
