//! Is a connection at work, and if not, until when may it stay?
//!
//! Hyper's own head timer starts when the response before it ends, so it also cuts idle keep-alive
//! connections; and it knows nothing of HTTP/2. Hence this one.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::stall::STOPPING;
use crate::{LONGEST, NetLimits};

/// The state of one connection that its time limits depend on.
pub(crate) struct Pulse {
    born: Instant,
    header_timeout: Duration,
    idle_timeout: Duration,
    h2: bool,
    in_flight: AtomicUsize,
    /// Milliseconds from `born`: since when nothing has been in flight.
    quiet_since: AtomicU64,
    /// When the first byte of the next head arrived: milliseconds from `born` plus one, 0 if none did.
    head_since: AtomicU64,
    served: AtomicBool,
    closing: AtomicBool,
    /// The server stops.
    stopping: AtomicBool,
    /// Tells the connection's task that its HTTP/2 streams, which are tasks of their own, are done.
    quiet: Notify,
}

impl Pulse {
    pub(crate) fn new(born: Instant, limits: &NetLimits, h2: bool) -> Arc<Self> {
        let pulse = Self {
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
        pulse.quiet_since.store(pulse.now(), Ordering::Relaxed);
        Arc::new(pulse)
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

    /// Bytes have come from the client. The first of a head starts its clock; later ones do not.
    pub(crate) fn bytes_in(&self) {
        if !self.h2 && self.is_quiet() && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.now().saturating_add(1), Ordering::Relaxed);
        }
    }

    /// The client takes the end of a response: it is not idle. Pings make this useless in HTTP/2.
    pub(crate) fn bytes_out(&self, outcome: &Poll<io::Result<usize>>) {
        if !self.h2 && outcome.is_ready() && self.is_quiet() {
            self.quiet_since.store(self.now(), Ordering::Relaxed);
        }
    }

    /// The server has asked the client to go; from here it has `header_timeout` to do so.
    pub(crate) fn begin_close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.quiet_since.store(self.now(), Ordering::Relaxed);
    }

    /// The same because the server stops: a client that does not even say that it has heard is not waited for.
    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.begin_close();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// When the connection has to be closed, as things are.
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

    /// Ends when the connection's time is over.
    ///
    /// To be polled after the connection, in the same task: what hyper has just done counts.
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

    /// A timer that is early is left alone and set anew when it fires: no work per request.
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

/// A request in flight: from its head to the end of its response's body.
pub(crate) struct InFlight(Arc<Pulse>);

impl InFlight {
    pub(crate) fn begin(pulse: &Arc<Pulse>) -> Self {
        pulse.in_flight.fetch_add(1, Ordering::AcqRel);
        pulse.served.store(true, Ordering::Relaxed);
        pulse.head_since.store(0, Ordering::Relaxed);
        Self(Arc::clone(pulse))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let pulse = &self.0;
        pulse.quiet_since.store(pulse.now(), Ordering::Relaxed);
        if pulse.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 && pulse.h2 {
            pulse.quiet.notify_one();
        }
    }
}
