//! Timeouts for clients that stop reading responses.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

/// Timeout once the server is stopping: clients that read still get their responses, and stalled
/// ones cannot delay the stop.
pub(crate) const STOPPING: Duration = Duration::from_secs(2);

/// How long a client may go without reading.
#[derive(Clone)]
pub(crate) struct WriteTimeout {
    usual: Duration,
    stop: watch::Receiver<bool>,
}

impl WriteTimeout {
    /// Allows `usual`, or [`STOPPING`] once `stop` turns true.
    pub(crate) fn new(usual: Duration, stop: watch::Receiver<bool>) -> WriteTimeout {
        WriteTimeout { usual, stop }
    }
}

/// Measures how long a client has not read. Created on demand: most clients always read.
pub(crate) struct WriteTimer {
    usual: Duration,
    timer: Pin<Box<Sleep>>,
    /// Completes when the server stops; `None` afterwards.
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    stopped_at: Option<Instant>,
}

impl WriteTimer {
    pub(crate) fn new(write_timeout: &WriteTimeout) -> WriteTimer {
        let mut stop = write_timeout.stop.clone();
        WriteTimer {
            usual: write_timeout.usual,
            timer: Box::pin(sleep_until(Instant::now() + write_timeout.usual)),
            // A dropped sender counts as a stop.
            stop: Some(Box::pin(async move { drop(stop.wait_for(|stop| *stop).await) })),
            stopped_at: None,
        }
    }

    /// Ready once a client that last read at `since` has used up its time.
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
