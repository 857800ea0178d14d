//! Outgoing messages of a session. When the connection is ready it takes all of them at once, so they leave in few frames
//! and few writes; a channel would cost a wake-up per message.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tonic::codegen::tokio_stream::Stream;

/// Messages to send. Clones share them.
pub struct Outbox<T>(Arc<Mutex<Waiting<T>>>);

struct Waiting<T> {
    messages: VecDeque<T>,
    waker: Option<Waker>,
    closed: bool,
}

impl<T> Outbox<T> {
    pub fn new() -> Outbox<T> {
        let waiting = Waiting { messages: VecDeque::new(), waker: None, closed: false };
        Outbox(Arc::new(Mutex::new(waiting)))
    }

    /// Adds a message. The caller bounds their number.
    pub fn push(&self, message: T) {
        let mut waiting = self.0.lock();
        waiting.messages.push_back(message);
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    /// Ends the stream after the messages queued so far.
    pub fn close(&self) {
        let mut waiting = self.0.lock();
        waiting.closed = true;
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        Outbox(Arc::clone(&self.0))
    }
}

impl<T> Stream for Outbox<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut waiting = self.0.lock();
        match waiting.messages.pop_front() {
            Some(message) => Poll::Ready(Some(message)),
            None if waiting.closed => Poll::Ready(None),
            None => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
