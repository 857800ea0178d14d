//! A shard's inbox: bounded, with many senders and one reader that takes everything at once.
//!
//! Producers must not be able to keep workers out, nor the other way around: enqueues and all other requests have a
//! line each. Requests are taken in order of arrival, but while both lines have some, neither gets more than half of
//! a batch. Enqueues may use at most three quarters of the inbox.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use codeq_store::Flushed;

use super::{ClientNumber, Request};
use crate::error::EngineError;
use crate::options::{
    ENQUEUES_BYTES_MAX, ENQUEUES_MAX, INBOX_BYTES_MAX, INBOX_MAX, WAKE_DURING_SYNC_AT,
    WAKE_DURING_SYNC_POSTED_AT,
};
use crate::sync::{Condvar, Mutex, MutexGuard};
use codeq_core::command::Command;
use tokio::sync::oneshot;

/// What reaches a shard's thread besides requests.
pub enum Notice {
    /// A checkpoint job has finished.
    Flushed(Box<Flushed>),
    /// A client that waited for tasks is gone.
    Gone(ClientNumber),
    /// Make a checkpoint now, and report when everything acknowledged before is in the store.
    Checkpoint(oneshot::Sender<Result<(), EngineError>>),
    /// Answer waiting claims and let no new ones wait, because the server is about to stop.
    Drain,
    /// Finish what is there, then end the thread.
    Stop,
}

/// How long a shard polls for requests of clients that are likely to come back.
const POLL_TIME: Duration =
    if cfg!(feature = "shuttle") { Duration::ZERO } else { Duration::from_micros(80) };

/// A shard's inbox.
#[derive(Default)]
pub struct Inbox {
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Default)]
struct Queue {
    enqueues: Line,
    others: Line,
    /// The number of the next request.
    next: u64,
    /// The line that got nothing in the last batch although it had requests: it goes first now.
    passed_over: Option<Of>,
    notices: VecDeque<Notice>,
    waiting: bool,
    /// The log is syncing, so applying a single request right away gains nothing.
    syncing: bool,
    /// A few clients are being answered and are likely to come back at once.
    poll_first: bool,
    closed: Option<EngineError>,
}

/// One of the two lines, whose requests alternate with those of the other.
#[derive(Default)]
struct Line {
    /// The requests, with their arrival numbers.
    requests: VecDeque<(u64, Request)>,
    bytes: usize,
}

/// Which line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Enqueues,
    Others,
}

/// How much a line has contributed to a batch.
#[derive(Default)]
struct Taken {
    requests: usize,
    bytes: usize,
}

impl Queue {
    fn len(&self) -> usize {
        self.enqueues.requests.len() + self.others.requests.len()
    }

    fn is_empty(&self) -> bool {
        self.enqueues.requests.is_empty() && self.others.requests.is_empty()
    }

    fn bytes(&self) -> usize {
        self.enqueues.bytes + self.others.bytes
    }

    fn line(&mut self, of: Of) -> &mut Line {
        match of {
            Of::Enqueues => &mut self.enqueues,
            Of::Others => &mut self.others,
        }
    }

    fn push(&mut self, request: Request) {
        let number = self.next;
        self.next = number.wrapping_add(1);
        let line = self.line(if is_enqueue(&request) { Of::Enqueues } else { Of::Others });
        line.bytes += request.bytes();
        line.requests.push_back((number, request));
    }

    /// The line to take from next, and the bytes of its first request. `left` is `None` as long as any request fits.
    fn next(
        &self,
        left: Option<usize>,
        full: impl Fn(Of) -> bool,
        passed_over: Option<Of>,
    ) -> Option<(Of, usize)> {
        let first = |line: &Line| {
            let first = line.requests.front().map(|(at, request)| (*at, request.bytes()));
            first.filter(|(_, bytes)| left.is_none_or(|left| *bytes <= left))
        };
        match (first(&self.enqueues), first(&self.others)) {
            (None, None) => None,
            (Some((_, bytes)), None) => Some((Of::Enqueues, bytes)),
            (None, Some((_, bytes))) => Some((Of::Others, bytes)),
            (Some(enqueue), Some(other)) => {
                let enqueue_next = match passed_over {
                    Some(of) => of == Of::Enqueues,
                    None if full(Of::Enqueues) != full(Of::Others) => full(Of::Others),
                    None => enqueue.0 < other.0,
                };
                Some(if enqueue_next { (Of::Enqueues, enqueue.1) } else { (Of::Others, other.1) })
            }
        }
    }

    /// Takes at most `max` requests with `max_bytes` in total, or a single larger one.
    fn take(&mut self, max: usize, max_bytes: usize, requests: &mut Vec<Request>) {
        let mut passed_over = self.passed_over.take();
        let (mut enqueues, mut others) = (Taken::default(), Taken::default());
        while requests.len() < max {
            let full = |of| {
                let taken = if of == Of::Enqueues { &enqueues } else { &others };
                taken.requests >= max / 2 || taken.bytes >= max_bytes / 2
            };
            // Only the first request may exceed the limit.
            let so_far = enqueues.bytes + others.bytes;
            let left = (so_far > 0).then(|| max_bytes.saturating_sub(so_far));
            let Some((of, bytes)) = self.next(left, full, passed_over.take()) else { break };
            let line = self.line(of);
            line.bytes = line.bytes.saturating_sub(bytes);
            requests.extend(line.requests.pop_front().map(|(_, request)| request));
            let taken = if of == Of::Enqueues { &mut enqueues } else { &mut others };
            taken.requests += 1;
            taken.bytes += bytes;
        }
        let passed = |line: &Line, taken: &Taken| !line.requests.is_empty() && taken.requests == 0;
        self.passed_over = if requests.is_empty() {
            None
        } else if passed(&self.others, &others) {
            Some(Of::Others)
        } else {
            passed(&self.enqueues, &enqueues).then_some(Of::Enqueues)
        };
    }
}

fn is_enqueue(request: &Request) -> bool {
    matches!(request.command, Command::Enqueue(_) | Command::EnqueueByValue(_))
}

impl Inbox {
    /// Adds a request, or answers it with the reason for refusing it.
    pub fn push(&self, request: Request) {
        match self.room_for(1, usize::from(is_enqueue(&request))) {
            Ok(room) => self.add(room, std::iter::once(request), WAKE_DURING_SYNC_AT),
            Err(error) => request.refuse(error),
        }
    }

    /// Adds all requests or none; if none, answers them with the reason.
    pub fn push_all(&self, requests: &mut Vec<Request>) {
        let enqueues = requests.iter().filter(|request| is_enqueue(request)).count();
        match self.room_for(requests.len(), enqueues) {
            Ok(room) => self.add(room, requests.drain(..), WAKE_DURING_SYNC_POSTED_AT),
            Err(error) => requests.drain(..).for_each(|request| request.refuse(error.clone())),
        }
    }

    /// Adds requests on behalf of clients that have left, however full the inbox is: there are never more of them
    /// than tasks that were handed out.
    pub fn push_unbounded(&self, requests: impl Iterator<Item = Request>) {
        let queue = self.queue.lock();
        if queue.closed.is_none() {
            self.add(queue, requests, WAKE_DURING_SYNC_AT);
        }
    }

    /// Locks the queue, if it has room for `more` requests of which `enqueues` are enqueues.
    fn room_for(&self, more: usize, enqueues: usize) -> Result<MutexGuard<'_, Queue>, EngineError> {
        let queue = self.queue.lock();
        if let Some(error) = &queue.closed {
            return Err(error.clone());
        }
        let full = queue.len() + more > INBOX_MAX || queue.bytes() > INBOX_BYTES_MAX;
        let line = &queue.enqueues;
        let enqueues_full =
            line.requests.len() + enqueues > ENQUEUES_MAX || line.bytes > ENQUEUES_BYTES_MAX;
        if full || (enqueues > 0 && enqueues_full) {
            return Err(EngineError::Overloaded);
        }
        Ok(queue)
    }

    fn add(
        &self,
        mut queue: MutexGuard<'_, Queue>,
        requests: impl Iterator<Item = Request>,
        wake_at: usize,
    ) {
        requests.for_each(|request| queue.push(request));
        if !queue.syncing || queue.len() >= wake_at {
            self.wake(queue);
        }
    }

    /// Records that the log has started or finished a sync. During a sync, requests accumulate before they wake the
    /// shard, which saves it most of its wake-ups; whatever has accumulated is applied when the sync ends.
    ///
    /// `few` means that a few clients are about to be answered. The shard is then woken at the same time as they are,
    /// to poll for their next requests.
    pub fn set_syncing(&self, syncing: bool, few: bool) {
        let mut queue = self.queue.lock();
        queue.syncing = syncing;
        queue.poll_first |= few;
        if !syncing && (few || !queue.is_empty()) {
            self.wake(queue);
        }
    }

    /// Adds a notice. Notices are few and never refused, except for a checkpoint once the inbox is closed, because
    /// nothing is left to make it.
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

    /// Takes at most `max` requests with `max_bytes` in total (or a single larger one) and all notices. Waits for
    /// some until `deadline`, or for ever if it is `None`. A closed inbox returns nothing at once.
    pub fn take(
        &self,
        max: usize,
        max_bytes: usize,
        deadline: Option<Instant>,
        requests: &mut Vec<Request>,
        notices: &mut Vec<Notice>,
    ) {
        let mut queue = self.queue.lock();
        while queue.is_empty() && queue.notices.is_empty() {
            if queue.closed.is_some() {
                return;
            }
            if std::mem::take(&mut queue.poll_first) {
                drop(queue);
                queue = self.poll_briefly();
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
        queue.take(max, max_bytes, requests);
        queue.poll_first = requests.len() == 1 && queue.is_empty();
    }

    /// Polls briefly for requests of clients that were just answered, which often come back a moment later. That saves
    /// a wake-up, which on an idle machine takes as long as a third of a sync.
    fn poll_briefly(&self) -> MutexGuard<'_, Queue> {
        let start = Instant::now();
        loop {
            let queue = self.queue.lock();
            let arrived = !queue.is_empty() || !queue.notices.is_empty();
            if arrived || start.elapsed() >= POLL_TIME {
                return queue;
            }
            drop(queue);
            std::thread::yield_now();
        }
    }

    /// Refuses everything from now on, and answers waiting requests with the same error.
    pub fn close(&self, error: &EngineError) {
        let mut queue = self.queue.lock();
        queue.closed.get_or_insert_with(|| error.clone());
        let enqueues = std::mem::take(&mut queue.enqueues);
        let others = std::mem::take(&mut queue.others);
        let notices = std::mem::take(&mut queue.notices);
        // A shard must still receive a stop notice. Otherwise the thread that joins it waits for ever.
        if notices.iter().any(|notice| matches!(notice, Notice::Stop)) {
            queue.notices.push_back(Notice::Stop);
        }
        // The shard may also be waiting for a checkpoint whose outcome was just dropped.
        self.wake(queue);
        for (_, request) in others.requests.into_iter().chain(enqueues.requests) {
            // A client that is gone does not need to know.
            let _ = request.reply.send(Err(error.clone()));
        }
        for notice in notices {
            if let Notice::Checkpoint(done) = notice {
                let _ = done.send(Err(error.clone()));
            }
        }
    }

    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    fn wake(&self, queue: MutexGuard<'_, Queue>) {
        let waiting = queue.waiting;
        drop(queue);
        if waiting {
            self.filled.notify_one();
        }
    }
}

/// The time after `wait`; `None` if it is never reached.
pub fn after(wait: Option<Duration>) -> Option<Instant> {
    wait.and_then(|wait| Instant::now().checked_add(wait))
}

#[cfg(test)]
mod tests {
    use codeq_core::command::{Enqueue, Heartbeat, NewTask, Sweep};
    use codeq_core::id::TaskId;
    use codeq_core::keys::Seq;

    use super::*;
    use crate::request::ReplyTo;

    fn enqueue(bytes: usize) -> Request {
        let task = NewTask { payload: vec![b'1'; bytes].into(), ..NewTask::default() };
        let enqueue = Enqueue { tenant: "a".into(), tasks: vec![task], atomic: false, seed: 1 };
        Request::detached(Command::Enqueue(enqueue))
    }

    fn heartbeat() -> Request {
        let (tenant, worker) = ("a".into(), "w".into());
        let heartbeat = Heartbeat { tenant, id: TaskId::new(Seq(1), 1), worker, extend: 1 };
        Request::detached(Command::Heartbeat(heartbeat))
    }

    /// Whether there is room for all of these.
    fn is_taken(inbox: &Inbox, mut requests: Vec<Request>) -> bool {
        let wanted = inbox.len() + requests.len();
        inbox.push_all(&mut requests);
        inbox.len() == wanted
    }

    /// Number of enqueues and of other requests in the next batch.
    fn take(inbox: &Inbox, max: usize, max_bytes: usize) -> (usize, usize) {
        let mut requests = Vec::new();
        inbox.take(max, max_bytes, Some(Instant::now()), &mut requests, &mut Vec::new());
        let enqueues = requests.iter().filter(|request| is_enqueue(request)).count();
        (enqueues, requests.len() - enqueues)
    }

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
            inbox.push(request());
        }
        let (sender, mut answer) = oneshot::channel();
        let sweep = Command::Sweep(Sweep { limit: 1, seed: 1 });
        inbox.push_all(&mut vec![request(), Request::with(sweep, ReplyTo::One(sender), 0)]);
        assert_eq!(answer.try_recv().unwrap(), Err(EngineError::Overloaded));
        assert_eq!(inbox.len(), INBOX_MAX);
        inbox.push_unbounded([request(), request()].into_iter());
        assert_eq!(inbox.len(), INBOX_MAX + 2);
    }

    #[test]
    fn producers_do_not_keep_workers_out() {
        // As many enqueues, and as many bytes of them, as are accepted.
        for (bytes, max_bytes) in [(1, 1 << 20), (1 << 20, 1 << 20)] {
            let inbox = Inbox::default();
            let flood = std::iter::repeat_with(|| is_taken(&inbox, vec![enqueue(bytes)]));
            let taken = flood.take_while(|taken| *taken).count();
            assert!(taken <= ENQUEUES_MAX, "{taken}");
            assert!(!is_taken(&inbox, vec![enqueue(1)]));
            for _ in 0..100 {
                inbox.push(heartbeat());
            }
            assert!(is_taken(&inbox, vec![heartbeat(), heartbeat()]));
            let (first, second) = (take(&inbox, 256, max_bytes), take(&inbox, 256, max_bytes));
            assert_eq!(first.1 + second.1, 102, "within two batches: {first:?} {second:?}");
            assert!(first.0 > 0, "the enqueues go on: {first:?} {second:?}");
            assert!(is_taken(&inbox, vec![enqueue(1)]), "there is room again");
        }
    }

    #[test]
    fn workers_do_not_keep_producers_out() {
        let inbox = Inbox::default();
        let mut enqueues = 0;
        for _ in 0..300 {
            inbox.push(heartbeat());
        }
        // Too large for the bytes that a batch has left after a heartbeat.
        inbox.push_all(&mut vec![enqueue(1 << 20), enqueue(1 << 20)]);
        for _ in 0..4 {
            for _ in 0..256 {
                inbox.push(heartbeat());
            }
            let (taken, others) = take(&inbox, 256, 1 << 20);
            assert!(taken == 1 || others == 256, "{taken} {others}");
            enqueues += taken;
        }
        assert_eq!(enqueues, 2);
    }

    #[test]
    fn few_requests_are_taken_in_the_order_in_which_they_came() {
        let inbox = Inbox::default();
        for at in 0..100 {
            inbox.push(if at % 3 == 0 { enqueue(at) } else { heartbeat() });
        }
        let mut requests = Vec::new();
        inbox.take(256, 1 << 20, None, &mut requests, &mut Vec::new());
        assert!((0..100).zip(&requests).all(|(at, request)| is_enqueue(request) == (at % 3 == 0)));
        assert_eq!((requests.len(), inbox.queue.lock().bytes()), (100, 0));
    }
}
