//! Delivers engine answers to a stream through one mailbox, without a channel or task per request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Context;

use codeq_core::reply::Reply;
use codeq_core::view::Task;
use codeq_engine::Answer;
use codeq_engine::boundary::Mailbox;
use codeq_engine::request::{ReplyTo, Request};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use slab::Slab;

use crate::app::App;
use crate::limits::budget::{HeldFor, Hold, Share};
use crate::service::prepared_call::{AnswerReader, PreparedCall};

/// Maximum bytes of tasks not yet sent to a stream's client. Tasks beyond this return to their
/// queue.
const UNSENT_BYTES_MAX: usize = 16 << 20;
/// Unsent bytes are charged in steps, so that most deliveries do not change the budget.
const STEP: usize = 16 << 10;
/// Low bits of a request number: the index of the part within its event.
const INDEX_BITS: u32 = 32;

/// The mailbox for engine answers.
struct StreamMailbox {
    state: Mutex<State>,
    waker: AtomicWaker,
}

struct State {
    answers: VecDeque<(u64, Answer)>,
    /// Bytes of tasks not yet sent to the client.
    unsent: usize,
    /// The same bytes as charged to the tenant.
    hold: Hold,
    closed: bool,
}

impl Mailbox for StreamMailbox {
    fn deliver(&self, number: u64, answer: Answer) -> Result<(), Answer> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(answer);
        }
        let bytes = match &answer {
            Ok(Reply::Claimed(tasks)) => tasks.iter().map(Task::bytes).sum(),
            _ => 0,
        };
        if bytes == 0 {
            state.answers.push_back((number, answer));
            return Ok(());
        }
        // A single task larger than the limit is still delivered, on its own.
        let unsent = state.unsent.saturating_add(bytes);
        let fits = state.unsent == 0 || unsent <= UNSENT_BYTES_MAX;
        if !fits || !state.hold.resize_to_fit(unsent, STEP) {
            if fits {
                state.hold.refused();
            }
            // Answered as an empty claim, which makes the stream post the worker's Ready again.
            state.answers.push_back((number, Ok(Reply::Claimed(Vec::new()))));
            return Err(answer);
        }
        state.unsent = unsent;
        state.answers.push_back((number, answer));
        Ok(())
    }

    fn wake(&self) {
        self.waker.wake();
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

/// Events posted to the engine whose answers are not written yet.
pub(super) struct PostedEvents<T> {
    app: Arc<App>,
    mailbox: Arc<StreamMailbox>,
    share: Share,
    arrived: VecDeque<(u64, Answer)>,
    /// Bytes of the tasks in `arrived`, and of those already taken from it.
    arrived_bytes: usize,
    events: Slab<T>,
}

/// Collects the engine requests of one event, and routes their answers back to it.
pub(super) struct Slot<'a> {
    mailbox: &'a Arc<StreamMailbox>,
    key: usize,
    /// Requests posted together once all available input has been read.
    out: &'a mut Vec<Request>,
}

impl Slot<'_> {
    /// Posts one part of the event. Returns the reader for its answer.
    pub(super) fn post<T>(&mut self, index: usize, prepared: PreparedCall<T>) -> AnswerReader<T> {
        let number = (self.key as u64) << INDEX_BITS | index as u64;
        let reply = ReplyTo::Mailbox(Arc::clone(self.mailbox) as Arc<dyn Mailbox>, number);
        let (request, reader) = prepared.into_request(reply);
        self.out.push(request);
        reader
    }
}

impl<T> PostedEvents<T> {
    /// Charges unsent tasks to `share`.
    pub(super) fn new(app: Arc<App>, share: &Share) -> PostedEvents<T> {
        let hold = share.nothing(HeldFor::Answers);
        let state = State { answers: VecDeque::new(), unsent: 0, hold, closed: false };
        let mailbox =
            Arc::new(StreamMailbox { state: Mutex::new(state), waker: AtomicWaker::new() });
        let (arrived, events) = (VecDeque::new(), Slab::new());
        PostedEvents { app, mailbox, share: share.clone(), arrived, arrived_bytes: 0, events }
    }

    /// Drops all events, as if the stream had closed.
    pub(super) fn clear(&mut self) {
        *self = PostedEvents::new(Arc::clone(&self.app), &self.share.clone());
    }

    /// Events without an answer.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// A slot for the next event passed to [`PostedEvents::put`].
    pub(super) fn slot<'a>(&'a self, out: &'a mut Vec<Request>) -> Slot<'a> {
        Slot { mailbox: &self.mailbox, key: self.events.vacant_key(), out }
    }

    /// Stores the event of the last slot.
    pub(super) fn put(&mut self, event: T) {
        self.events.insert(event);
    }

    /// The next answer, with the key of its event and the index of the part. Registers the task to
    /// be woken by the next answer. Call it only after sending the previous answer.
    pub(super) fn next(&mut self, cx: &Context<'_>) -> Option<(usize, usize, Answer)> {
        if self.arrived.is_empty() {
            self.mailbox.waker.register(cx.waker());
            let mut state = self.mailbox.state.lock();
            let State { answers, unsent, hold, .. } = &mut *state;
            std::mem::swap(&mut self.arrived, answers);
            *unsent -= std::mem::take(&mut self.arrived_bytes);
            self.arrived_bytes = *unsent;
            if *unsent == 0 {
                hold.shrink_to(0);
            }
        }
        let (number, answer) = self.arrived.pop_front()?;
        let index = number & ((1 << INDEX_BITS) - 1);
        Some(((number >> INDEX_BITS) as usize, index as usize, answer))
    }

    /// The event of an answer, and a slot for further requests.
    pub(super) fn get<'a>(
        &'a mut self,
        key: usize,
        out: &'a mut Vec<Request>,
    ) -> Option<(&'a mut T, Slot<'a>)> {
        Some((self.events.get_mut(key)?, Slot { mailbox: &self.mailbox, key, out }))
    }

    /// Removes an answered event.
    pub(super) fn remove(&mut self, key: usize) -> Option<T> {
        self.events.try_remove(key)
    }
}

impl<T> Drop for PostedEvents<T> {
    fn drop(&mut self) {
        let mut state = self.mailbox.state.lock();
        state.closed = true;
        state.hold.shrink_to(0);
        let late = std::mem::take(&mut state.answers);
        drop(state);
        if !self.events.is_empty() {
            let mailbox: Arc<dyn Mailbox> = self.mailbox.clone();
            self.app.service.mailbox_closed(&mailbox);
        }
        for (_, answer) in self.arrived.drain(..).chain(late) {
            if let Ok(Reply::Claimed(tasks)) = answer {
                self.app.service.give_back(tasks);
            }
        }
    }
}
