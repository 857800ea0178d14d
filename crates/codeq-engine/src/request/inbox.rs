//! A shard's inbox: bounded, with many senders and one reader that takes requests in batches.
//!
//! Producers must not be able to keep workers out, nor the other way around, so enqueues and all other requests have
//! separate queues. Requests are taken in order of arrival, but while both queues have some, neither gets more than
//! half of a batch. Enqueues may use at most three quarters of the inbox.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codeq_store::FinishedJob;

use super::{ClientNumber, Request};
use crate::error::EngineError;
use crate::locks::{Condvar, Mutex, MutexGuard};
use crate::options::{
    ENQUEUES_BYTES_MAX, ENQUEUES_MAX, INBOX_BYTES_MAX, INBOX_MAX, WAKE_DURING_SYNC_AT,
    WAKE_DURING_SYNC_POSTED_AT,
};
use codeq_core::command::Command;
use tokio::sync::{Notify, oneshot};

/// What reaches a shard's thread besides requests.
pub enum Notice {
    /// A job on the store's file has finished.
    JobFinished(Box<FinishedJob>),
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
    state: Mutex<State>,
    /// Wakes the thread that waits in [`Inbox::take`] or [`Inbox::await_notices`].
    filled: Condvar,
    /// Wakes a task that uses [`Inbox::take_now`].
    arrived: Option<Arc<Notify>>,
}

#[derive(Default)]
struct State {
    enqueues: Queue,
    others: Queue,
    /// The arrival number of the next request.
    next_number: u64,
    /// The kind that was waiting when the last batch took none of it.
    goes_first: Option<RequestKind>,
    notices: VecDeque<Notice>,
    /// What the reader waits for, if it waits.
    waiting: Option<WaitsFor>,
    /// The log is syncing, so applying a single request right away gains nothing.
    syncing: bool,
    /// A few clients are being answered and are likely to come back at once.
    poll_first: bool,
    closed: Option<EngineError>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitsFor {
    Anything,
    Notices,
}

/// The waiting requests of one kind.
#[derive(Default)]
struct Queue {
    /// With their arrival numbers.
    requests: VecDeque<(u64, Request)>,
    bytes: usize,
}

impl Queue {
    /// Whether there is room for `arriving` bytes. An empty queue takes any number, or else a request larger than `max`
    /// would be refused for ever.
    fn has_room(&self, arriving: usize, max: usize) -> bool {
        self.requests.is_empty() || self.bytes + arriving <= max
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Enqueue,
    Other,
}

impl RequestKind {
    fn of(request: &Request) -> RequestKind {
        if is_enqueue(request) { RequestKind::Enqueue } else { RequestKind::Other }
    }
}

/// How much of a batch is of one kind.
#[derive(Default)]
struct Taken {
    requests: usize,
    bytes: usize,
}

impl State {
    fn len(&self) -> usize {
        self.enqueues.requests.len() + self.others.requests.len()
    }

    fn is_empty(&self) -> bool {
        self.enqueues.requests.is_empty() && self.others.requests.is_empty()
    }

    fn bytes(&self) -> usize {
        self.enqueues.bytes + self.others.bytes
    }

    fn queue(&mut self, kind: RequestKind) -> &mut Queue {
        match kind {
            RequestKind::Enqueue => &mut self.enqueues,
            RequestKind::Other => &mut self.others,
        }
    }

    fn push(&mut self, request: Request) {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let queue = self.queue(RequestKind::of(&request));
        queue.bytes += request.bytes();
        queue.requests.push_back((number, request));
    }

    /// The kind to take next, and the bytes of its first request. `left` is `None` as long as any request fits.
    fn next(
        &self,
        left: Option<usize>,
        full: impl Fn(RequestKind) -> bool,
        goes_first: Option<RequestKind>,
    ) -> Option<(RequestKind, usize)> {
        use RequestKind::{Enqueue, Other};
        let first = |queue: &Queue| {
            let first = queue.requests.front().map(|(number, request)| (*number, request.bytes()));
            first.filter(|(_, bytes)| left.is_none_or(|left| *bytes <= left))
        };
        match (first(&self.enqueues), first(&self.others)) {
            (None, None) => None,
            (Some((_, bytes)), None) => Some((Enqueue, bytes)),
            (None, Some((_, bytes))) => Some((Other, bytes)),
            (Some(enqueue), Some(other)) => {
                let enqueue_next = match goes_first {
                    Some(kind) => kind == Enqueue,
                    None if full(Enqueue) != full(Other) => full(Other),
                    None => enqueue.0 < other.0,
                };
                Some(if enqueue_next { (Enqueue, enqueue.1) } else { (Other, other.1) })
            }
        }
    }

    /// Takes at most `max` requests with `max_bytes` in total, or a single larger one if `one_larger`.
    fn take(
        &mut self,
        max: usize,
        max_bytes: usize,
        one_larger: bool,
        requests: &mut Vec<Request>,
    ) {
        let before = self.goes_first.take();
        let mut goes_first = before;
        let (mut enqueues, mut others) = (Taken::default(), Taken::default());
        while requests.len() < max {
            let full = |kind| {
                let taken = if kind == RequestKind::Enqueue { &enqueues } else { &others };
                taken.requests >= max / 2 || taken.bytes >= max_bytes / 2
            };
            // Only the first request may exceed the limit.
            let so_far = enqueues.bytes + others.bytes;
            let limited = so_far > 0 || !one_larger;
            let left = limited.then(|| max_bytes.saturating_sub(so_far));
            let Some((kind, bytes)) = self.next(left, full, goes_first.take()) else { break };
            let queue = self.queue(kind);
            queue.bytes = queue.bytes.saturating_sub(bytes);
            requests.extend(queue.requests.pop_front().map(|(_, request)| request));
            let taken = if kind == RequestKind::Enqueue { &mut enqueues } else { &mut others };
            taken.requests += 1;
            taken.bytes += bytes;
        }
        let left_out =
            |queue: &Queue, taken: &Taken| !queue.requests.is_empty() && taken.requests == 0;
        self.goes_first = if requests.is_empty() {
            before
        } else if left_out(&self.others, &others) {
            Some(RequestKind::Other)
        } else {
            left_out(&self.enqueues, &enqueues).then_some(RequestKind::Enqueue)
        };
    }
}

fn is_enqueue(request: &Request) -> bool {
    matches!(request.command, Command::Enqueue(_) | Command::EnqueueByValue(_))
}

impl Inbox {
    /// An inbox whose reader waits for `arrived`, not in [`Inbox::take`].
    pub fn notifying(arrived: Arc<Notify>) -> Inbox {
        Inbox { arrived: Some(arrived), ..Inbox::default() }
    }

    /// Adds a request, or answers it with the reason for refusing it.
    pub fn push(&self, request: Request) {
        match self.room_for(std::slice::from_ref(&request)) {
            Ok(room) => self.add(room, std::iter::once(request), WAKE_DURING_SYNC_AT),
            Err(error) => request.refuse(error),
        }
    }

    /// Adds all requests or none; if none, answers them with the reason.
    pub fn push_all(&self, requests: &mut Vec<Request>) {
        match self.room_for(requests) {
            Ok(room) => self.add(room, requests.drain(..), WAKE_DURING_SYNC_POSTED_AT),
            Err(error) => requests.drain(..).for_each(|request| request.refuse(error.clone())),
        }
    }

    /// Adds requests on behalf of clients that have left, however full the inbox is: there are never more of them
    /// than tasks that were handed out.
    pub fn push_unbounded(&self, requests: impl Iterator<Item = Request>) {
        let state = self.state.lock();
        if state.closed.is_none() {
            self.add(state, requests, WAKE_DURING_SYNC_AT);
        }
    }

    /// Locks the state, if there is room for these requests.
    fn room_for(&self, requests: &[Request]) -> Result<MutexGuard<'_, State>, EngineError> {
        let (mut enqueues, mut enqueue_bytes) = (0, 0);
        for request in requests.iter().filter(|request| is_enqueue(request)) {
            enqueues += 1;
            enqueue_bytes += request.bytes();
        }
        let state = self.state.lock();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        // Arriving bytes count only for enqueues, which must not take the room of the others. If they counted for the
        // others too, a steady flood of enqueues would keep large results out.
        let full = state.len() + requests.len() > INBOX_MAX || state.bytes() > INBOX_BYTES_MAX;
        let waiting = &state.enqueues;
        let enqueues_full = waiting.requests.len() + enqueues > ENQUEUES_MAX
            || !waiting.has_room(enqueue_bytes, ENQUEUES_BYTES_MAX);
        if full || (enqueues > 0 && enqueues_full) {
            return Err(EngineError::Overloaded);
        }
        Ok(state)
    }

    fn add(
        &self,
        mut state: MutexGuard<'_, State>,
        requests: impl Iterator<Item = Request>,
        wake_at: usize,
    ) {
        requests.for_each(|request| state.push(request));
        if !state.syncing || state.len() >= wake_at {
            self.wake(state);
        }
    }

    /// Records that the log has started or finished a sync. During a sync, requests accumulate before they wake the
    /// shard, which saves it most of its wake-ups; whatever has accumulated is applied when the sync ends.
    ///
    /// `few` means that a few clients are about to be answered. The shard is then woken at the same time as they are,
    /// to poll for their next requests.
    pub fn set_syncing(&self, syncing: bool, few: bool) {
        let mut state = self.state.lock();
        state.syncing = syncing;
        state.poll_first |= few;
        if !syncing && (few || !state.is_empty()) {
            self.wake(state);
        }
    }

    /// Adds a notice. Notices are few and never refused, except for a checkpoint once the inbox is closed, because
    /// nothing is left to make it.
    pub fn notify(&self, notice: Notice) {
        let mut state = self.state.lock();
        let notice = match (notice, &state.closed) {
            (Notice::Checkpoint(done), Some(error)) => {
                let _ = done.send(Err(error.clone()));
                return;
            }
            (notice, _) => notice,
        };
        state.notices.push_back(notice);
        self.wake(state);
    }

    /// Takes at most `max` requests with `max_bytes` in total (or a single larger one) and all notices. Waits for some
    /// until `deadline`, or for ever if it is `None`. If the inbox is closed, returns what is there without waiting.
    pub fn take(
        &self,
        max: usize,
        max_bytes: usize,
        deadline: Option<Instant>,
        requests: &mut Vec<Request>,
        notices: &mut Vec<Notice>,
    ) {
        let mut state = self.state.lock();
        while state.is_empty() && state.notices.is_empty() {
            if state.closed.is_some() {
                return;
            }
            if std::mem::take(&mut state.poll_first) {
                drop(state);
                state = self.poll_briefly();
                continue;
            }
            state.waiting = Some(WaitsFor::Anything);
            let timed_out = self.wait(&mut state, deadline);
            state.waiting = None;
            if timed_out {
                return;
            }
        }
        notices.extend(state.notices.drain(..));
        state.take(max, max_bytes, true, requests);
        state.poll_first = requests.len() == 1 && state.is_empty();
    }

    /// Takes all notices, and leaves the requests where they are. Waits for a notice until `deadline`, unless the inbox
    /// is closed.
    pub fn await_notices(&self, deadline: Option<Instant>, notices: &mut Vec<Notice>) {
        let mut state = self.state.lock();
        while state.notices.is_empty() && state.closed.is_none() {
            state.waiting = Some(WaitsFor::Notices);
            let timed_out = self.wait(&mut state, deadline);
            state.waiting = None;
            if timed_out {
                return;
            }
        }
        notices.extend(state.notices.drain(..));
    }

    /// Takes what is there, without waiting: at most `max` requests with `max_bytes` in total, or a single larger one
    /// if `one_larger`.
    pub fn take_now(&self, max: usize, max_bytes: usize, one_larger: bool) -> Vec<Request> {
        let mut requests = Vec::new();
        self.state.lock().take(max, max_bytes, one_larger, &mut requests);
        requests
    }

    /// Takes the notices that are there, without waiting.
    pub fn take_notices(&self) -> VecDeque<Notice> {
        std::mem::take(&mut self.state.lock().notices)
    }

    /// Waits until woken, or returns true at the deadline.
    fn wait(&self, state: &mut MutexGuard<'_, State>, deadline: Option<Instant>) -> bool {
        match deadline {
            Some(deadline) => self.filled.wait_until(state, deadline).timed_out(),
            None => {
                self.filled.wait(state);
                false
            }
        }
    }

    /// Polls briefly for requests of clients that were just answered, which often come back a moment later. That saves
    /// a wake-up, which on an idle machine takes as long as a third of a sync.
    fn poll_briefly(&self) -> MutexGuard<'_, State> {
        let start = Instant::now();
        loop {
            let state = self.state.lock();
            let arrived = !state.is_empty() || !state.notices.is_empty();
            if arrived || start.elapsed() >= POLL_TIME {
                return state;
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    /// Refuses everything from now on, and answers waiting requests with the same error.
    pub fn close(&self, error: &EngineError) {
        let mut state = self.state.lock();
        state.closed.get_or_insert_with(|| error.clone());
        let enqueues = std::mem::take(&mut state.enqueues);
        let others = std::mem::take(&mut state.others);
        let notices = std::mem::take(&mut state.notices);
        // A shard must still receive a stop notice. Otherwise the thread that joins it waits for ever.
        if notices.iter().any(|notice| matches!(notice, Notice::Stop)) {
            state.notices.push_back(Notice::Stop);
        }
        // The shard may also be waiting for a checkpoint whose outcome was just dropped.
        self.wake(state);
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
        self.state.lock().len()
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        let wakes = match state.waiting {
            None => false,
            Some(WaitsFor::Anything) => true,
            Some(WaitsFor::Notices) => !state.notices.is_empty() || state.closed.is_some(),
        };
        drop(state);
        if wakes {
            self.filled.notify_one();
        }
        if let Some(arrived) = &self.arrived {
            arrived.notify_one();
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
    fn a_closed_inbox_still_delivers_a_stop() {
        let inbox = Inbox::default();
        inbox.notify(Notice::Drain);
        inbox.notify(Notice::Stop);
        inbox.close(&EngineError::Closed);
        let mut notices = Vec::new();
        inbox.take(1, 1, Some(Instant::now()), &mut Vec::new(), &mut notices);
        assert!(matches!(notices.as_slice(), [Notice::Stop]));
    }

    #[test]
    fn a_full_inbox_still_accepts_unbounded_pushes() {
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
    fn a_wait_for_notices_leaves_requests_alone() {
        let inbox = Inbox::default();
        inbox.push(heartbeat());
        let mut notices = Vec::new();
        std::thread::scope(|scope| {
            // It would return without a notice if requests ended the wait.
            let reader = scope.spawn(|| inbox.await_notices(None, &mut notices));
            for _ in 0..100 {
                inbox.push(heartbeat());
                std::thread::yield_now();
            }
            inbox.notify(Notice::Drain);
            reader.join().unwrap();
        });
        assert!(matches!(notices.as_slice(), [Notice::Drain]));
        assert_eq!(inbox.len(), 101);
        inbox.await_notices(Some(Instant::now()), &mut notices);
        assert_eq!(notices.len(), 1);
    }

    #[test]
    fn producers_do_not_keep_workers_out() {
        // As many enqueues, and as many bytes of them, as are accepted.
        for (bytes, max_bytes) in [(1, 1 << 20), (1 << 20, 1 << 20)] {
            let inbox = Inbox::default();
            let flood = std::iter::repeat_with(|| is_taken(&inbox, vec![enqueue(bytes)]));
            let taken = flood.take_while(|taken| *taken).count();
            assert!(taken <= ENQUEUES_MAX, "{taken}");
            for _ in 0..100 {
                inbox.push(heartbeat());
            }
            assert!(is_taken(&inbox, vec![heartbeat(), heartbeat()]));
            let (first, second) = (take(&inbox, 256, max_bytes), take(&inbox, 256, max_bytes));
            assert_eq!(first.1 + second.1, 102, "within two batches: {first:?} {second:?}");
            assert!(first.0 > 0, "the enqueues go on: {first:?} {second:?}");
            assert!(is_taken(&inbox, vec![enqueue(bytes)]), "there is room again");
        }
    }

    #[test]
    fn large_enqueues_leave_room_for_workers() {
        let inbox = Inbox::default();
        assert!(is_taken(&inbox, vec![enqueue(ENQUEUES_BYTES_MAX)]), "there is never more room");
        assert!(!is_taken(&inbox, vec![enqueue(1)]));
        assert!(is_taken(&inbox, vec![heartbeat()]));
        assert_eq!(take(&inbox, 256, 1 << 20), (1, 0));
        assert!(is_taken(&inbox, vec![enqueue(ENQUEUES_BYTES_MAX / 2)]));
        assert!(!is_taken(&inbox, vec![enqueue(ENQUEUES_BYTES_MAX / 2)]), "more than the limit");
        assert!(is_taken(&inbox, vec![enqueue(1), heartbeat()]));
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
    fn a_batch_that_is_not_full_keeps_the_order_of_arrival() {
        let inbox = Inbox::default();
        for at in 0..100 {
            inbox.push(if at % 3 == 0 { enqueue(at) } else { heartbeat() });
        }
        let mut requests = Vec::new();
        inbox.take(256, 1 << 20, None, &mut requests, &mut Vec::new());
        assert!((0..100).zip(&requests).all(|(at, request)| is_enqueue(request) == (at % 3 == 0)));
        assert_eq!((requests.len(), inbox.state.lock().bytes()), (100, 0));
    }
}
