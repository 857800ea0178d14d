//! Clients that take nothing of what is sent to them, and for how long they may.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

/// The limit once the server stops: whoever reads gets the rest of its answers, and nobody else holds up the stop.
pub(crate) const STOPPING: Duration = Duration::from_secs(2);

/// How long a client may take nothing.
#[derive(Clone)]
pub(crate) struct Patience {
    usual: Duration,
    stop: watch::Receiver<bool>,
}

impl Patience {
    /// So long, or less once `stop` turns true.
    pub(crate) fn new(usual: Duration, stop: watch::Receiver<bool>) -> Patience {
        Patience { usual, stop }
    }
}

/// A client that takes nothing at the moment. Made only then: most never need it.
pub(crate) struct Stall {
    usual: Duration,
    timer: Pin<Box<Sleep>>,
    /// Ends when the server stops; none once it has.
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    stopped_at: Option<Instant>,
}

impl Stall {
    pub(crate) fn new(patience: &Patience) -> Stall {
        let mut stop = patience.stop.clone();
        Stall {
            usual: patience.usual,
            timer: Box::pin(sleep_until(Instant::now() + patience.usual)),
            // One whose sender is gone counts as true.
            stop: Some(Box::pin(async move { drop(stop.wait_for(|stop| *stop).await) })),
            stopped_at: None,
        }
    }

    /// Ready when the client, which took something at `since` and nothing after, has had its time.
    pub(crate) fn poll(&mut self, since: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(stop) = &mut self.stop
            && stop.as_mut().poll(cx).is_ready()
        {
            self.stop = None;
            self.stopped_at = Some(Instant::now());
        }
        let usual = since + self.usual;
        let stopping = self.stopped_at.map(|at| since.max(at) + STOPPING);
        let deadline = stopping.map_or(usual, |stopping| stopping.min(usual));
        if self.timer.deadline() != deadline {
            self.timer.as_mut().reset(deadline);
        }
        self.timer.as_mut().poll(cx)
    }
}
