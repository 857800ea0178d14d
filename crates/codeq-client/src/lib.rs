//! The Rust SDK of codeQ.
//!
//! - A [`Producer`] enqueues tasks over one stream. Each enqueue returns when its task is on disk; a lost
//!   connection is opened again, and what was not acknowledged is sent again without making a second task.
//! - A [`Worker`] claims tasks over another stream, extends their leases while handlers run, and reports what
//!   became of them until the server has acknowledged it, over as many connections as that takes.
//! - [`webhook`] verifies calls that the server makes.
//! - An [`HttpClient`] does everything else: results, history, search, dead letters, queues, topics.
//!
//! Work is done at least once: a handler whose lease is lost is told by the task's [`Cancellation`], once the
//! server can be heard again, but what it did until then was done. Where effects must not be repeated, pass on
//! [`TaskInfo::fence`].
//!
//! ```
//! use std::time::Duration;
//!
//! use codeq_client::{NewTask, Outcome, Producer, Task, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Mail {
//!     to: String,
//! }
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Sent {
//!     id: String,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = codeq_client::testing::TestServer::start().await?;
//! # let options = server.options();
//! // let options = codeq_client::Options::new(token).producer_url("grpcs://queue.example:9092")…
//! let worker = Worker::builder(options.clone())
//!     .concurrency(10)
//!     .lease(Duration::from_secs(60))
//!     .handle("send-mail", |task: Task<Mail>| async move {
//!         Outcome::complete(&Sent { id: format!("{}-1", task.payload.to) })
//!     })
//!     .build()?;
//! let handle = worker.handle();
//! let working = tokio::spawn(worker.run());
//!
//! let producer = Producer::connect(options).await?;
//! let mail = NewTask::new("send-mail", &Mail { to: "ada".to_owned() })?.priority(5);
//! let task_id = producer.enqueue(mail).await?.task_id;
//! let result = producer.wait_result(&task_id, Duration::from_secs(10)).await?;
//! assert_eq!(result.json::<Sent>()?, Sent { id: "ada-1".to_owned() });
//!
//! handle.shutdown();
//! working.await??;
//! # server.end().await;
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `testing` there is a real server for tests, without a process or a port of one's own to
//! look after: `testing::TestServer`.

mod backoff;
mod error;
mod http;
mod options;
mod producer;
mod seconds;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;
pub mod webhook;
mod worker;

pub use error::Error;
pub use http::HttpClient;
pub use http::artifacts::{Download, NewArtifact, Submission};
pub use http::subscriptions::{DeliveryMode, NewSubscription, Subscribed, Subscription};
pub use http::types::{
    Artifact, BulkOptions, CleanedUp, History, Purged, Queue, QueueStats, Replay, ReplayFrom,
    Replayed, Search, Status, TaskPage, TaskRecord, TaskResult, Topic, TopicPolicy, Transition,
};
pub use http::webhooks::{Delivery, DeliveryPage, DeliveryStatus, NewSecret, Resent};
pub use options::Options;
pub use producer::{Enqueued, NewTask, Producer};
pub use worker::{
    CancelReason, Cancellation, HandlerError, Outcome, Task, TaskInfo, Worker, WorkerBuilder,
    WorkerHandle, WorkerStats,
};
