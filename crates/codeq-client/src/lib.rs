//! The Rust SDK for codeQ, a durable task queue.
//!
//! - A [`Producer`] enqueues tasks over one stream. Each enqueue returns once its task is on disk. If the connection
//!   breaks, the producer reconnects and resends unacknowledged tasks without creating duplicates.
//! - A [`Worker`] claims tasks over another stream, extends their leases while handlers run, and reports their
//!   outcomes until the server acknowledges them, reconnecting as often as needed.
//! - An [`HttpClient`] covers the rest of the API: results, history, search, dead letters, queues, topics,
//!   events.
//! - [`webhook`] verifies calls from the server to your endpoints.
//!
//! Tasks run at least once. A handler that loses its lease is notified through the task's [`Cancellation`] as soon as
//! the server is reachable again, but the side effects that it had until then stay. If a side effect must not be
//! repeated, pass [`TaskInfo::fence`] along with it.
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
//! The feature `testing` adds `testing::TestServer`, a real server inside the test process: no separate process to
//! manage and no ports to choose.

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
pub use http::events::{Event, Events, TaskEvent};
pub use http::subscriptions::{DeliveryMode, NewSubscription, Subscribed, Subscription};
pub use http::types::{
    Artifact, Backup, BulkOptions, BulkProgress, CancelTasks, CancelledTasks, ChangedSetting,
    CleanedUp, History, Purged, Queue, QueueStats, Reloaded, Replay, ReplayFrom, Replayed, Search,
    Status, TaskChanges, TaskPage, TaskRecord, TaskResult, TaskState, Topic, TopicPolicy,
    Transition,
};
pub use http::webhooks::{Delivery, DeliveryPage, DeliveryStatus, NewSecret, Resent};
pub use options::Options;
pub use producer::{Enqueued, NewTask, Producer};
pub use worker::{
    Acknowledged, CancelReason, Cancellation, HandlerError, Outcome, Task, TaskInfo, Worker,
    WorkerBuilder, WorkerHandle, WorkerStats,
};
