//! Producers: many enqueues over one stream.
//!
//! `new_task` builds the tasks, `driver` owns the stream and everything in flight, and `link` opens the stream.

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

/// The acknowledgement of an enqueue: the task is in its queue and on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The task's id.
    pub task_id: String,
    /// The idempotency key was used before, and `task_id` is the existing task.
    pub repeated: bool,
}

/// Enqueues tasks over one connection, and reconnects when it breaks. Clones share the connection.
///
/// ```no_run
/// use codeq_client::{NewTask, Options, Producer};
///
/// # async fn example() -> Result<(), codeq_client::Error> {
/// let producer = Producer::connect(Options::from_env()?).await?;
/// let task = NewTask::new("send-mail", &serde_json::json!({"to": "ada"}))?;
/// let enqueued = producer.enqueue(task).await?;
/// println!("task {} is on disk", enqueued.task_id);
/// # Ok(())
/// # }
/// ```
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
    /// Connects to the server. Fails if the server is unreachable or rejects the token; afterwards the producer
    /// reconnects for as long as it lives.
    pub async fn connect(options: Options) -> Result<Producer, Error> {
        let endpoint = transport::endpoint(&options.producer_url, &options)?;
        let http = HttpClient::new(&options)?;
        let (timeout, max_payload_bytes) = (options.enqueue_timeout, options.max_payload_bytes);
        let link = link::open(endpoint.clone(), options.clone()).await?;
        // Jobs wait in the driver, which bounds them; this channel only hands them over.
        let (jobs, receiver) = mpsc::channel(1);
        tokio::spawn(Driver::new(endpoint, options, receiver).run(link));
        Ok(Producer { jobs, timeout, max_payload_bytes, http })
    }

    /// Enqueues a task. Returns once it is on disk.
    ///
    /// If the connection breaks meanwhile, the task is sent again over the next one; its idempotency key prevents a
    /// duplicate. After [`Error::Timeout`], the task may or may not exist.
    pub async fn enqueue(&self, task: NewTask) -> Result<Enqueued, Error> {
        let sending = self.send(task);
        tokio::time::timeout(self.timeout, sending).await.unwrap_or(Err(Error::Timeout))
    }

    /// Enqueues tasks independently of each other. Results are in the order of the tasks.
    pub async fn enqueue_batch(&self, tasks: Vec<NewTask>) -> Vec<Result<Enqueued, Error>> {
        join_all(tasks.into_iter().map(|task| self.enqueue(task))).await
    }

    /// Waits for the result of a task, or returns [`Error::Timeout`] after `timeout`. Uses HTTP and survives restarts
    /// of the server. A failed task has a result too: its status says so, and [`TaskResult::json`] returns
    /// [`Error::TaskFailed`].
    pub async fn wait_result(&self, task_id: &str, timeout: Duration) -> Result<TaskResult, Error> {
        self.http.wait_result(task_id, timeout).await
    }

    async fn send(&self, task: NewTask) -> Result<Enqueued, Error> {
        // Checked here, because a message that is too long for the server would end the stream for everyone on it.
        task.check_size(self.max_payload_bytes)?;
        let (reply, answer) = oneshot::channel();
        let (create, random_key) = task.into_wire();
        let job = Job { create, random_key, reply };
        self.jobs.send(job).await.map_err(|_| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}
