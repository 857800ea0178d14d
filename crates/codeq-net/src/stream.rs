//! HTTP/2 responses that nobody takes.
//!
//! A client that gives no window stalls one stream while the socket stays writable, so the socket's
//! own limit does not see it. Hyper runs every stream as a task of its own through an executor:
//! this one gives up on a stream that waits for its client too long, which resets that stream alone.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use hyper::rt::Executor;
use tokio::time::Instant;

use crate::stall::{Patience, Stall};

tokio::task_local! {
    static STATE: Cell<State>;
}

#[derive(Clone, Copy)]
enum State {
    /// The handler, or its body, has nothing to send yet.
    Handler,
    /// Something was handed out, and hyper has not come back for more.
    Client(Instant),
}

/// The response's head or a piece of its body was given to hyper.
pub(crate) fn handed_out() {
    set(|| State::Client(Instant::now()));
}

/// Hyper asked for more, and there is none yet.
pub(crate) fn waiting_for_the_handler() {
    set(|| State::Handler);
}

/// Outside of an HTTP/2 stream there is no state, and nothing to do.
fn set(state: impl FnOnce() -> State) {
    let _ = STATE.try_with(|cell| cell.set(state()));
}

/// Runs HTTP/2 streams, each with a limit on how long its client may take nothing.
#[derive(Clone)]
pub(crate) struct StreamExecutor {
    pub(crate) patience: Patience,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
{
    fn execute(&self, future: F) {
        tokio::spawn(
            STATE.scope(Cell::new(State::Handler), patient(future, self.patience.clone())),
        );
    }
}

async fn patient<F: Future>(future: F, patience: Patience) {
    let mut future = pin!(future);
    let mut stall = None;
    poll_fn(|cx| {
        if future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        poll_stall(&mut stall, &patience, cx)
    })
    .await;
}

fn poll_stall(stall: &mut Option<Stall>, patience: &Patience, cx: &mut Context<'_>) -> Poll<()> {
    let State::Client(since) = STATE.with(Cell::get) else {
        *stall = None;
        return Poll::Pending;
    };
    let stall = stall.get_or_insert_with(|| Stall::new(patience));
    stall.poll(since, cx).map(|()| {
        tracing::debug!(target: "codeq::net", "a client takes nothing of a stream: reset");
    })
}
