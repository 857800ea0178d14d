//! Workers: tasks are claimed over a stream, handled, and reported back.
//!
//! ```text
//! driver (the stream, credits, shutdown) ─ hand (each task from assignment to acknowledgement; pure)
//!    └─ handler (types erased) ─> the user's code, with task (what it is given) and outcome (what it says)
//! ```

mod ack;
mod driver;
mod hand;
mod handler;
mod link;
mod outcome;
mod stats;
mod task;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tonic::transport::Endpoint;

use crate::error::Error;
use crate::options::Options;
use crate::seconds::whole_seconds;
use crate::transport;

use driver::Driver;
use handler::Handlers;
pub use outcome::{HandlerError, Outcome};
use stats::Counters;
pub use stats::WorkerStats;
pub use task::{CancelReason, Cancellation, Task, TaskInfo};

/// The server holds no more credits for one stream.
const CONCURRENCY_MAX: usize = 10_000;
/// The longest lease that the server gives.
const LEASE_MAX: i32 = 43_200;

/// What a worker is made of.
struct Setup {
    options: Options,
    endpoint: Endpoint,
    handlers: Handlers,
    commands: Vec<String>,
    concurrency: usize,
    lease_seconds: i32,
    grace: Duration,
    /// The same over all streams: leases belong to it.
    worker_id: String,
    stats: Arc<Counters>,
}

impl Setup {
    fn lease(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.lease_seconds).unwrap_or(1))
    }

    /// How often heartbeats that are due are looked for: they are late by this at most.
    fn tick(&self) -> Duration {
        (self.lease() / 12).min(Duration::from_secs(1))
    }
}

/// Claims tasks and hands them to handlers. Made by [`Worker::builder`], ended by a [`WorkerHandle`].
pub struct Worker {
    setup: Setup,
    handle: WorkerHandle,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("worker_id", &self.setup.worker_id)
            .field("commands", &self.setup.commands)
            .field("concurrency", &self.setup.concurrency)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker for the server of these options.
    pub fn builder(options: Options) -> WorkerBuilder {
        WorkerBuilder {
            options,
            handlers: Handlers::default(),
            concurrency: 10,
            lease: Duration::from_secs(60),
            grace: Duration::from_secs(30),
        }
    }

    /// To end the worker, and to see what it has done.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// Works until [`WorkerHandle::shutdown`]. A server that is away is waited for; one that does not accept
    /// the token, or does not let it do what this worker is for, is an error.
    ///
    /// Dropping the future ends the handlers where they are; their tasks come back when their leases end.
    pub async fn run(self) -> Result<(), Error> {
        let Worker { setup, handle } = self;
        let shutdown = handle.shutdown.subscribe();
        Driver::new(setup, shutdown).run().await
    }
}

/// A worker in the making.
#[derive(Clone)]
pub struct WorkerBuilder {
    options: Options,
    handlers: Handlers,
    concurrency: usize,
    lease: Duration,
    grace: Duration,
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("options", &self.options)
            .field("commands", &self.handlers.commands())
            .finish_non_exhaustive()
    }
}

impl WorkerBuilder {
    /// How many handlers run at once, 1 to 10,000. Default 10.
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> WorkerBuilder {
        self.concurrency = handlers;
        self
    }

    /// For how long a task is leased, in whole seconds, up to 12 hours. It is extended while its handler
    /// runs, so this is how long a task waits when its worker is lost. Default 60 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> WorkerBuilder {
        self.lease = lease;
        self
    }

    /// How long a shutdown waits for handlers. Default 30 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> WorkerBuilder {
        self.grace = grace;
        self
    }

    /// Handles the tasks of a command. A handler that fails or panics has its task nacked, and so has a payload that
    /// cannot be read as `T`: another worker, of another release, may be able to.
    #[must_use]
    pub fn handle<T, F, Fut>(mut self, command: impl AsRef<str>, handler: F) -> WorkerBuilder
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, HandlerError>> + Send + 'static,
    {
        self.handlers.add(command.as_ref(), handler);
        self
    }

    /// The worker. Connects when it runs.
    pub fn build(self) -> Result<Worker, Error> {
        let WorkerBuilder { options, handlers, concurrency, lease, grace } = self;
        let commands = handlers.commands();
        if commands.is_empty() {
            return Err(Error::Config("a worker without handlers".to_owned()));
        }
        if !(1..=CONCURRENCY_MAX).contains(&concurrency) {
            let text = format!("concurrency {concurrency}, expected 1 to {CONCURRENCY_MAX}");
            return Err(Error::Config(text));
        }
        let lease_seconds = whole_seconds(lease);
        if !(1..=LEASE_MAX).contains(&lease_seconds) {
            return Err(Error::Config(format!("lease of {lease:?}, expected 1 s to 12 h")));
        }
        let endpoint = transport::endpoint(&options.worker_url, &options)?;
        let stats = Arc::new(Counters::default());
        let handle =
            WorkerHandle { shutdown: watch::Sender::new(false), stats: Arc::clone(&stats) };
        let worker_id = format!("sdk-{:032x}", rand::random::<u128>());
        let setup = Setup {
            options,
            endpoint,
            handlers,
            commands,
            concurrency,
            lease_seconds,
            grace,
            worker_id,
            stats,
        };
        Ok(Worker { setup, handle })
    }
}

/// Ends a worker, and tells what it has done. Clones are the same.
#[derive(Debug, Clone)]
pub struct WorkerHandle {
    shutdown: watch::Sender<bool>,
    stats: Arc<Counters>,
}

impl WorkerHandle {
    /// Takes no more tasks and lets handlers finish within the grace period; what is left then goes back to
    /// its queue without penalty. [`Worker::run`] returns when that is done.
    pub fn shutdown(&self) {
        self.shutdown.send_replace(true);
    }

    /// What the worker has done so far.
    pub fn stats(&self) -> WorkerStats {
        self.stats.read()
    }
}
