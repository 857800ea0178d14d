//! Producers: many enqueues over one stream.
//!
//! `new_task` is what goes in; `driver` owns the stream and everything that is in flight; `link` opens it.

mod driver;
mod link;
mod new_task;

use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::http::HttpClient;
use crate::http::types::TaskResult;
use crate::options::Options;
use crate::transport;

use driver::{Driver, Job};
pub use new_task::NewTask;

/// A task that is in its queue, on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The task.
    pub task_id: String,
    /// The idempotency key was used before: this is the task that was made then.
    pub repeated: bool,
}

/// Enqueues tasks over one connection, which is opened again when it breaks. Clones share it.
#[derive(Clone)]
pub struct Producer {
    jobs: mpsc::Sender<Job>,
    timeout: Duration,
    max_payload_bytes: usize,
    http: HttpClient,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("http", &self.http).finish_non_exhaustive()
    }
}

impl Producer {
    /// Connects. Fails if the server is not there or does not accept the token; from then on a lost
    /// connection is opened again for as long as the producer lives.
    pub async fn connect(options: Options) -> Result<Producer, Error> {
        let endpoint = transport::endpoint(&options.producer_url, &options)?;
        let http = HttpClient::new(&options)?;
        let (timeout, max_payload_bytes) = (options.enqueue_timeout, options.max_payload_bytes);
        let link = link::open(endpoint.clone(), options.clone()).await?;
        // Jobs wait in the driver, within its bound; this is only the way there.
        let (jobs, receiver) = mpsc::channel(1);
        tokio::spawn(Driver::new(endpoint, options, receiver).run(link));
        Ok(Producer { jobs, timeout, max_payload_bytes, http })
    }

    /// Enqueues a task. Returns when it is on disk.
    ///
    /// The connection may break meanwhile: the task is sent again over the next one, and its idempotency key
    /// sees to it that there is one task in the end. After [`Error::Timeout`] there may or may not be a task.
    pub async fn enqueue(&self, task: NewTask) -> Result<Enqueued, Error> {
        let sending = self.send(task);
        tokio::time::timeout(self.timeout, sending).await.unwrap_or(Err(Error::Timeout))
    }

    /// Enqueues tasks; each stands for itself. Answers are in the order of the tasks.
    pub async fn enqueue_batch(&self, tasks: Vec<NewTask>) -> Vec<Result<Enqueued, Error>> {
        join_all(tasks.into_iter().map(|task| self.enqueue(task))).await
    }

    /// Waits for the result of a task up to `timeout`, then [`Error::Timeout`]. Over HTTP, and through restarts of
    /// the server. A task that failed has a result too: its status says so, and [`TaskResult::json`] is then
    /// [`Error::TaskFailed`].
    pub async fn wait_result(&self, task_id: &str, timeout: Duration) -> Result<TaskResult, Error> {
        self.http.wait_result(task_id, timeout).await
    }

    async fn send(&self, task: NewTask) -> Result<Enqueued, Error> {
        // Here, because a message that is too long for the server ends the stream, and others are on it.
        task.check_size(self.max_payload_bytes)?;
        let (reply, answer) = oneshot::channel();
        let (create, random_key) = task.into_wire();
        let job = Job { create, random_key, reply };
        self.jobs.send(job).await.map_err(|_| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}
