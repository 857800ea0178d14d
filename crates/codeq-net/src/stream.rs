//! Resets HTTP/2 streams whose client does not read the response.
//!
//! A client that grants no window stalls one stream while the socket stays writable, so the
//! socket's write timeout does not catch it. Hyper runs every stream as a task on an executor; this
//! executor drops a stream that waits on its client too long, which resets only that stream.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use hyper::rt::Executor;
use tokio::time::Instant;

use crate::write_timeout::{WriteTimeout, WriteTimer};

tokio::task_local! {
    static STATE: Cell<State>;
}

#[derive(Clone, Copy)]
enum State {
    /// Waiting for the handler or its body to produce data.
    Handler,
    /// Waiting, since this moment, for hyper to ask for more data.
    Client(Instant),
}

/// Records that hyper received the response head or a piece of the body.
pub(crate) fn passed_to_hyper() {
    set(|| State::Client(Instant::now()));
}

/// Records that hyper asked for data and the handler has none yet.
pub(crate) fn waiting_for_handler() {
    set(|| State::Handler);
}

/// Does nothing outside an HTTP/2 stream.
fn set(state: impl FnOnce() -> State) {
    let _ = STATE.try_with(|cell| cell.set(state()));
}

/// Runs HTTP/2 streams, each with a limit on how long its client may go without reading.
#[derive(Clone)]
pub(crate) struct StreamExecutor {
    pub(crate) write_timeout: WriteTimeout,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
{
    fn execute(&self, future: F) {
        tokio::spawn(
            STATE.scope(Cell::new(State::Handler), run_stream(future, self.write_timeout.clone())),
        );
    }
}

async fn run_stream<F: Future>(future: F, write_timeout: WriteTimeout) {
    let mut future = pin!(future);
    let mut timer = None;
    poll_fn(|cx| {
        if future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        poll_timer(&mut timer, &write_timeout, cx)
    })
    .await;
}

fn poll_timer(
    timer: &mut Option<WriteTimer>,
    write_timeout: &WriteTimeout,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let State::Client(since) = STATE.with(Cell::get) else {
        *timer = None;
        return Poll::Pending;
    };
    let timer = timer.get_or_insert_with(|| WriteTimer::new(write_timeout));
    timer.poll(since, cx).map(|()| {
        tracing::debug!(target: "codeq::net", "client does not read its stream, resetting it");
    })
}
