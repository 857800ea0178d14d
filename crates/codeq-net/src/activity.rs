//! Tracks whether a connection is busy and, if not, when to close it.
//!
//! Hyper's own head timer starts when the previous response ends, so it also closes idle keep-alive
//! connections, and it does not cover HTTP/2.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::write_timeout::STOPPING;
use crate::{LONGEST, NetLimits};

/// The connection state that its timeouts depend on.
pub(crate) struct Activity {
    born: Instant,
    header_timeout: Duration,
    idle_timeout: Duration,
    h2: bool,
    in_flight: AtomicUsize,
    /// When the last in-flight request ended, in milliseconds since `born`.
    quiet_since: AtomicU64,
    /// When the first byte of the next head arrived: milliseconds since `born` plus one, or 0 for
    /// none.
    head_since: AtomicU64,
    served: AtomicBool,
    closing: AtomicBool,
    /// The server is stopping.
    stopping: AtomicBool,
    /// Wakes the connection's task when its HTTP/2 streams, which run as separate tasks, are done.
    quiet: Notify,
}

impl Activity {
    pub(crate) fn new(born: Instant, limits: &NetLimits, h2: bool) -> Arc<Self> {
        let activity = Self {
            born,
            header_timeout: limits.header_timeout,
            idle_timeout: limits.idle_timeout,
            h2,
            in_flight: AtomicUsize::new(0),
            quiet_since: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            served: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            quiet: Notify::new(),
        };
        activity.quiet_since.store(activity.now(), Ordering::Relaxed);
        Arc::new(activity)
    }

    pub(crate) fn is_h2(&self) -> bool {
        self.h2
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn at(&self, millis: u64) -> Instant {
        self.born + Duration::from_millis(millis)
    }

    fn is_quiet(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }

    /// Records bytes from the client. Only the first byte of a head starts its timeout.
    pub(crate) fn bytes_in(&self) {
        if !self.h2 && self.is_quiet() && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.now().saturating_add(1), Ordering::Relaxed);
        }
    }

    /// A client that reads the end of a response is not idle. Ignored for HTTP/2, where pings also
    /// write bytes.
    pub(crate) fn bytes_out(&self, outcome: &Poll<io::Result<usize>>) {
        if !self.h2 && outcome.is_ready() && self.is_quiet() {
            self.quiet_since.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Starts the close: the client has `header_timeout` from now to disconnect.
    pub(crate) fn begin_close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.quiet_since.store(self.now(), Ordering::Relaxed);
    }

    /// Like [`Activity::begin_close`], for a server that is stopping: waits [`STOPPING`] at most.
    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.begin_close();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// When the connection must close, given its current state; `None` while a request is in
    /// flight.
    fn deadline(&self) -> Option<Instant> {
        if !self.is_quiet() {
            return None;
        }
        let quiet = self.at(self.quiet_since.load(Ordering::Relaxed));
        if self.is_closing() {
            let stopping = self.stopping.load(Ordering::Relaxed);
            let limit = if stopping { STOPPING } else { LONGEST };
            return Some(quiet + self.header_timeout.min(limit));
        }
        if self.h2 {
            return Some(quiet + self.idle_timeout);
        }
        if !self.served.load(Ordering::Relaxed) {
            return Some(self.born + self.header_timeout);
        }
        match self.head_since.load(Ordering::Relaxed) {
            0 => Some(quiet + self.idle_timeout),
            head => Some(self.at(head.saturating_sub(1)) + self.header_timeout),
        }
    }

    /// Completes when the connection times out.
    ///
    /// Poll this after the connection and in the same task, so that it sees the progress hyper just
    /// made.
    pub(crate) async fn expired(&self) {
        let mut timer = Box::pin(sleep_until(self.born + self.header_timeout));
        loop {
            tokio::select! {
                biased;
                () = poll_fn(|cx| self.poll_expired(timer.as_mut(), cx)) => return,
                () = self.quiet.notified() => {}
            }
        }
    }

    /// If the timer is set too early, resets it only when it fires, to avoid work per request.
    fn poll_expired(&self, mut timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(deadline) = self.deadline() else { return Poll::Pending };
            if timer.is_elapsed() || timer.deadline() > deadline {
                timer.as_mut().reset(deadline);
            }
            std::task::ready!(timer.as_mut().poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
        }
    }
}

/// A request in flight, from its head to the end of its response body.
pub(crate) struct InFlight(Arc<Activity>);

impl InFlight {
    pub(crate) fn begin(activity: &Arc<Activity>) -> Self {
        activity.in_flight.fetch_add(1, Ordering::AcqRel);
        activity.served.store(true, Ordering::Relaxed);
        activity.head_since.store(0, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let activity = &self.0;
        activity.quiet_since.store(activity.now(), Ordering::Relaxed);
        if activity.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 && activity.h2 {
            activity.quiet.notify_one();
        }
    }
}
