//! What a session has to say. Everything that lies here is taken in one go when the connection is ready, and
//! so leaves in few frames and few writes: a channel of single messages would cost a wake for each.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tonic::codegen::tokio_stream::Stream;

/// Messages that wait to be sent. Its copies share them.
pub struct Outbox<T>(Arc<Mutex<Waiting<T>>>);

struct Waiting<T> {
    messages: VecDeque<T>,
    waker: Option<Waker>,
    closed: bool,
}

impl<T> Outbox<T> {
    /// An empty one.
    pub fn new() -> Outbox<T> {
        let waiting = Waiting { messages: VecDeque::new(), waker: None, closed: false };
        Outbox(Arc::new(Mutex::new(waiting)))
    }

    /// Adds a message. How many there can be is the business of whoever adds them.
    pub fn push(&self, message: T) {
        let mut waiting = self.0.lock();
        waiting.messages.push_back(message);
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    /// Nothing more is to be said: the stream ends after what lies here.
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
