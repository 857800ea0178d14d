//! Workers: claim tasks over a stream, run handlers, report outcomes.
//!
//! ```text
//! driver (stream, credits, shutdown) ─ leased (each task from assignment to acknowledgement; pure)
//!    └─ handler (types erased) ─> user code, which takes a task and returns an outcome
//! ```

mod ack;
mod acknowledged;
mod driver;
mod handler;
mod leased;
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

pub use acknowledged::Acknowledged;
use acknowledged::OnAcknowledged;
use driver::Driver;
use handler::Handlers;
pub use outcome::{HandlerError, Outcome};
pub use stats::WorkerStats;
pub use task::{CancelReason, Cancellation, Task, TaskInfo};

/// The server's limit of credits per stream.
const CONCURRENCY_MAX: usize = 10_000;
/// The server's longest lease, in seconds.
const LEASE_MAX: i32 = 43_200;

/// The checked settings of a worker.
struct Setup {
    options: Options,
    endpoint: Endpoint,
    handlers: Handlers,
    commands: Vec<String>,
    concurrency: usize,
    lease_seconds: i32,
    grace: Duration,
    /// The same over all streams, because leases belong to it.
    worker_id: String,
    stats: watch::Sender<WorkerStats>,
    on_acknowledged: Option<OnAcknowledged>,
}

impl Setup {
    fn lease(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.lease_seconds).unwrap_or(1))
    }

    /// How often due heartbeats are sent; they are late by at most this.
    fn tick(&self) -> Duration {
        (self.lease() / 12).min(Duration::from_secs(1))
    }
}

/// Claims tasks and runs handlers for them. Built with [`Worker::builder`], stopped with a [`WorkerHandle`].
///
/// ```no_run
/// use codeq_client::{Options, Outcome, Task, Worker};
///
/// # async fn example() -> Result<(), codeq_client::Error> {
/// let worker = Worker::builder(Options::from_env()?)
///     .concurrency(50)
///     .handle("greet", |task: Task<String>| async move {
///         println!("hello {}, attempt {}", task.payload, task.attempts + 1);
///         Ok(Outcome::done())
///     })
///     .build()?;
/// worker.run().await
/// # }
/// ```
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
    /// Starts building a worker for the server of these options.
    pub fn builder(options: Options) -> WorkerBuilder {
        WorkerBuilder {
            options,
            handlers: Handlers::default(),
            concurrency: 10,
            lease: Duration::from_secs(60),
            grace: Duration::from_secs(30),
            on_acknowledged: None,
        }
    }

    /// A handle to stop the worker and read its statistics.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// Works until [`WorkerHandle::shutdown`]. Waits for a server that is down; returns an error if the server
    /// rejects the token or does not allow these commands, or if a shutdown ends before the server has acknowledged
    /// every task.
    ///
    /// Dropping the future aborts the handlers; their tasks return to the queue when their leases end.
    pub async fn run(self) -> Result<(), Error> {
        let Worker { setup, handle } = self;
        let shutdown = handle.shutdown.subscribe();
        Driver::new(setup, shutdown).run().await
    }
}

/// Configures a [`Worker`].
#[derive(Clone)]
pub struct WorkerBuilder {
    options: Options,
    handlers: Handlers,
    concurrency: usize,
    lease: Duration,
    grace: Duration,
    on_acknowledged: Option<OnAcknowledged>,
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
    /// Number of handlers that run at once, 1 to 10,000. Default 10.
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> WorkerBuilder {
        self.concurrency = handlers;
        self
    }

    /// How long a task is leased, in whole seconds, up to 12 hours. The lease is extended while the handler runs, so
    /// this is how long a task waits after its worker is lost. Default 60 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> WorkerBuilder {
        self.lease = lease;
        self
    }

    /// How long a shutdown waits for running handlers. Default 30 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> WorkerBuilder {
        self.grace = grace;
        self
    }

    /// Registers the handler of a command. If the handler returns an error or panics, or the payload does not
    /// deserialise as `T`, the task is nacked: a worker of another release may be able to handle it.
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

    /// Calls a function with a task's id once the server has acknowledged what became of it, which may differ from what
    /// the handler returned: a result can be refused, and a lease lost. Without such a function, lost leases are logged.
    /// The function must not block.
    #[must_use]
    pub fn on_acknowledged(
        mut self,
        call: impl Fn(&str, &Acknowledged) + Send + Sync + 'static,
    ) -> WorkerBuilder {
        self.on_acknowledged = Some(Arc::new(call));
        self
    }

    /// Checks the settings. The worker connects when it runs.
    pub fn build(self) -> Result<Worker, Error> {
        let WorkerBuilder { options, handlers, concurrency, lease, grace, on_acknowledged } = self;
        let commands = handlers.commands();
        if commands.is_empty() {
            return Err(Error::Config(
                "the worker has no handlers; add one with `handle`".to_owned(),
            ));
        }
        if !(1..=CONCURRENCY_MAX).contains(&concurrency) {
            let text = format!("concurrency is {concurrency}, expected 1 to {CONCURRENCY_MAX}");
            return Err(Error::Config(text));
        }
        let lease_seconds = whole_seconds(lease);
        if !(1..=LEASE_MAX).contains(&lease_seconds) {
            return Err(Error::Config(format!("lease is {lease:?}, expected 1 s to 12 h")));
        }
        let endpoint = transport::endpoint(&options.worker_url, &options)?;
        let stats = watch::Sender::default();
        let handle = WorkerHandle { shutdown: watch::Sender::new(false), stats: stats.subscribe() };
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
            on_acknowledged,
        };
        Ok(Worker { setup, handle })
    }
}

/// Stops a worker and reads its statistics. Clones control the same worker.
#[derive(Debug, Clone)]
pub struct WorkerHandle {
    shutdown: watch::Sender<bool>,
    stats: watch::Receiver<WorkerStats>,
}

impl WorkerHandle {
    /// Stops claiming tasks and lets handlers finish within the grace period; tasks still running then return to their
    /// queue without a penalty. [`Worker::run`] returns when that is done.
    pub fn shutdown(&self) {
        self.shutdown.send_replace(true);
    }

    /// The worker's statistics so far.
    pub fn stats(&self) -> WorkerStats {
        *self.stats.borrow()
    }
}
