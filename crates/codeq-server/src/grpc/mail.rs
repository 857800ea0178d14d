//! Answers to what a stream has posted to the engine: no channel and no task for each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Context;

use codeq_core::reply::Reply;
use codeq_engine::Engine;
use codeq_engine::request::{Answer, Mailbox, ReplyTo};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use slab::Slab;

/// Bits of a number that say which part of an event it is.
const INDEX_BITS: u32 = 16;

/// Where the engine puts answers.
struct Mail {
    state: Mutex<State>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct State {
    answers: VecDeque<(u64, Answer)>,
    closed: bool,
}

impl Mailbox for Mail {
    fn deliver(&self, number: u64, answer: Answer) -> Result<(), Answer> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(answer);
        }
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

/// Events that were posted, until their answers are written.
pub(super) struct Posted<T> {
    engine: Arc<Engine>,
    mail: Arc<Mail>,
    arrived: VecDeque<(u64, Answer)>,
    events: Slab<T>,
}

/// The place that the next event will have.
pub(super) struct Slot<'a> {
    mail: &'a Arc<Mail>,
    key: usize,
}

impl Slot<'_> {
    /// Where the answer to a part of the event goes.
    pub(super) fn reply(&self, index: u16) -> ReplyTo {
        let number = (self.key as u64) << INDEX_BITS | u64::from(index);
        ReplyTo::Mailbox(Arc::clone(self.mail) as Arc<dyn Mailbox>, number)
    }
}

impl<T> Posted<T> {
    pub(super) fn new(engine: Arc<Engine>) -> Posted<T> {
        let mail = Arc::new(Mail { state: Mutex::default(), waker: AtomicWaker::new() });
        Posted { engine, mail, arrived: VecDeque::new(), events: Slab::new() }
    }

    /// How many have no answer yet.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Where the answers to the event go that is put here next.
    pub(super) fn slot(&self) -> Slot<'_> {
        Slot { mail: &self.mail, key: self.events.vacant_key() }
    }

    /// Remembers the event whose slot was asked for last.
    pub(super) fn put(&mut self, event: T) {
        self.events.insert(event);
    }

    /// The next answer, with the event and the part of it that it is for. Wakes the task when there is one.
    pub(super) fn next(&mut self, cx: &Context<'_>) -> Option<(usize, u16, Answer)> {
        if self.arrived.is_empty() {
            self.mail.waker.register(cx.waker());
            std::mem::swap(&mut self.arrived, &mut self.mail.state.lock().answers);
        }
        let (number, answer) = self.arrived.pop_front()?;
        let index = number & ((1 << INDEX_BITS) - 1);
        Some(((number >> INDEX_BITS) as usize, index as u16, answer))
    }

    /// The event of an answer.
    pub(super) fn get(&mut self, key: usize) -> Option<&mut T> {
        self.events.get_mut(key)
    }

    /// Forgets an event: it has its answer.
    pub(super) fn remove(&mut self, key: usize) -> Option<T> {
        self.events.try_remove(key)
    }
}

impl<T> Drop for Posted<T> {
    fn drop(&mut self) {
        let mut state = self.mail.state.lock();
        state.closed = true;
        let late = std::mem::take(&mut state.answers);
        drop(state);
        for (_, answer) in self.arrived.drain(..).chain(late) {
            if let Ok(Reply::Claimed(tasks)) = answer {
                self.engine.give_back(tasks);
            }
        }
    }
}
