//! A shard's inbox: bounded, many senders, one reader that takes all there is at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use codeq_store::Flushed;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::EngineError;
use crate::options::{INBOX_BYTES_MAX, INBOX_MAX, PATIENCE_MAX, PATIENCE_POSTED_MAX};
use crate::request::Request;
use tokio::sync::oneshot;

/// What reaches a shard's thread besides requests.
pub enum Notice {
    /// A checkpoint job is done.
    Flushed(Box<Flushed>),
    /// Make a checkpoint now, and say when everything acknowledged before is in the store.
    Checkpoint(oneshot::Sender<Result<(), EngineError>>),
    /// Stop handing out tasks: the server is about to stop.
    Drain,
    /// Finish what is there, then end.
    Stop,
}

/// How long a shard looks out for clients that come back.
const LOOK_OUT: Duration = Duration::from_micros(80);

/// A shard's inbox.
#[derive(Default)]
pub struct Inbox {
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    bytes: usize,
    notices: VecDeque<Notice>,
    waiting: bool,
    /// The log is at work: nothing is gained by applying a single request at once.
    patient: bool,
    /// A few clients are being answered and are likely to come back at once.
    expectant: bool,
    closed: Option<EngineError>,
}

impl Inbox {
    /// Adds requests, all or none.
    pub fn push(
        &self,
        requests: impl ExactSizeIterator<Item = Request>,
    ) -> Result<(), EngineError> {
        self.add(self.room_for(requests.len())?, requests, PATIENCE_MAX);
        Ok(())
    }

    /// The same; those that were not added stay with the caller.
    pub fn push_all(&self, requests: &mut Vec<Request>) -> Result<(), EngineError> {
        self.add(self.room_for(requests.len())?, requests.drain(..), PATIENCE_POSTED_MAX);
        Ok(())
    }

    /// Adds what the engine owes to clients that have left, however much is waiting: it is no more than was handed
    /// out to them.
    pub fn push_owed(&self, requests: impl Iterator<Item = Request>) {
        let queue = self.queue.lock();
        if queue.closed.is_none() {
            self.add(queue, requests, PATIENCE_MAX);
        }
    }

    fn room_for(&self, more: usize) -> Result<MutexGuard<'_, Queue>, EngineError> {
        let queue = self.queue.lock();
        if let Some(error) = &queue.closed {
            return Err(error.clone());
        }
        if queue.requests.len() + more > INBOX_MAX || queue.bytes > INBOX_BYTES_MAX {
            return Err(EngineError::Overloaded);
        }
        Ok(queue)
    }

    fn add(
        &self,
        mut queue: MutexGuard<'_, Queue>,
        requests: impl Iterator<Item = Request>,
        patience: usize,
    ) {
        for request in requests {
            queue.bytes += request.bytes();
            queue.requests.push_back(request);
        }
        if !queue.patient || queue.requests.len() >= patience {
            self.wake(queue);
        }
    }

    /// Says that the log has begun or ended a sync. While it is at work, requests gather before they wake
    /// the shard: that saves it most of its wake-ups, and what has gathered at the end is applied then.
    ///
    /// `few` says that a few clients are about to be answered: the shard is woken to look out for them while
    /// they are woken themselves.
    pub fn set_patient(&self, patient: bool, few: bool) {
        let mut queue = self.queue.lock();
        queue.patient = patient;
        queue.expectant |= few;
        if !patient && (few || !queue.requests.is_empty()) {
            self.wake(queue);
        }
    }

    /// Adds a notice. Notices are few and never refused; but nobody is left who could make a checkpoint once the inbox
    /// is closed.
    pub fn notify(&self, notice: Notice) {
        let mut queue = self.queue.lock();
        let notice = match (notice, &queue.closed) {
            (Notice::Checkpoint(done), Some(error)) => {
                let _ = done.send(Err(error.clone()));
                return;
            }
            (notice, _) => notice,
        };
        queue.notices.push_back(notice);
        self.wake(queue);
    }

    /// Takes at most `max` requests of `max_bytes` together (but one, if it is larger) and all notices. Waits
    /// for some until `deadline`, for ever if none; a closed inbox gives nothing at once.
    pub fn take(
        &self,
        max: usize,
        max_bytes: usize,
        deadline: Option<Instant>,
        requests: &mut Vec<Request>,
        notices: &mut Vec<Notice>,
    ) {
        let mut queue = self.queue.lock();
        while queue.requests.is_empty() && queue.notices.is_empty() {
            if queue.closed.is_some() {
                return;
            }
            if std::mem::take(&mut queue.expectant) {
                drop(queue);
                queue = self.look_out();
                continue;
            }
            queue.waiting = true;
            let timed_out = match deadline {
                Some(deadline) => self.filled.wait_until(&mut queue, deadline).timed_out(),
                None => {
                    self.filled.wait(&mut queue);
                    false
                }
            };
            queue.waiting = false;
            if timed_out {
                return;
            }
        }
        notices.extend(queue.notices.drain(..));
        let mut taken = 0;
        while requests.len() < max && taken < max_bytes {
            // The first request may be large; no further one may make the batch so.
            let next = queue.requests.front().map_or(0, Request::bytes);
            if next == 0 || (taken > 0 && taken + next > max_bytes) {
                break;
            }
            requests.extend(queue.requests.pop_front());
            taken += next;
        }
        queue.bytes = queue.bytes.saturating_sub(taken);
        queue.expectant = requests.len() == 1 && queue.requests.is_empty();
    }

    /// Clients come back a moment after their answer. Looking out for them that long saves a wake-up, which
    /// on an idle machine takes as long as a third of a sync.
    fn look_out(&self) -> MutexGuard<'_, Queue> {
        let start = Instant::now();
        loop {
            let queue = self.queue.lock();
            let arrived = !queue.requests.is_empty() || !queue.notices.is_empty();
            if arrived || start.elapsed() > LOOK_OUT {
                return queue;
            }
            drop(queue);
            std::thread::yield_now();
        }
    }

    /// Refuses everything from now on and answers what waits with the same error.
    pub fn close(&self, error: &EngineError) {
        let mut queue = self.queue.lock();
        queue.closed.get_or_insert_with(|| error.clone());
        queue.bytes = 0;
        let requests = std::mem::take(&mut queue.requests);
        let notices = std::mem::take(&mut queue.notices);
        // A shard that was told to stop still has to hear of it, or whoever waits for its end waits for ever.
        if notices.iter().any(|notice| matches!(notice, Notice::Stop)) {
            queue.notices.push_back(Notice::Stop);
        }
        // The shard may also wait for a checkpoint whose outcome has just been dropped.
        self.wake(queue);
        for request in requests {
            // Whoever is gone does not need to know.
            let _ = request.reply.send(Err(error.clone()));
        }
        for notice in notices {
            if let Notice::Checkpoint(done) = notice {
                let _ = done.send(Err(error.clone()));
            }
        }
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.queue.lock().requests.len()
    }

    fn wake(&self, queue: MutexGuard<'_, Queue>) {
        let waiting = queue.waiting;
        drop(queue);
        if waiting {
            self.filled.notify_one();
        }
    }
}

/// The moment that lies `wait` ahead; none for one that never comes.
pub fn after(wait: Option<Duration>) -> Option<Instant> {
    wait.and_then(|wait| Instant::now().checked_add(wait))
}

#[cfg(test)]
mod tests {
    use codeq_core::command::{Command, Sweep};

    use super::*;

    #[test]
    fn a_failure_does_not_swallow_the_stop() {
        let inbox = Inbox::default();
        inbox.notify(Notice::Drain);
        inbox.notify(Notice::Stop);
        inbox.close(&EngineError::Closed);
        let mut notices = Vec::new();
        inbox.take(1, 1, Some(Instant::now()), &mut Vec::new(), &mut notices);
        assert!(matches!(notices.as_slice(), [Notice::Stop]));
    }

    #[test]
    fn what_is_owed_is_taken_by_a_full_inbox_too() {
        let inbox = Inbox::default();
        let request = || Request::detached(Command::Sweep(Sweep { limit: 1, seed: 1 }));
        for _ in 0..INBOX_MAX {
            inbox.push(std::iter::once(request())).unwrap();
        }
        let mut more = vec![request(), request()];
        assert!(matches!(inbox.push_all(&mut more), Err(EngineError::Overloaded)));
        assert_eq!(more.len(), 2);
        inbox.push_owed(more.into_iter());
        assert_eq!(inbox.len(), INBOX_MAX + 2);
    }
}
