//! The Rust SDK of codeQ.

mod backoff;
mod error;
mod http;
mod options;
mod producer;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;
mod worker;

pub use error::Error;
pub use http::HttpClient;
pub use http::types::{
    Artifact, CleanedUp, History, Purged, Queue, QueueStats, Replay, Replayed, Search, Status,
    TaskPage, TaskRecord, TaskResult, Topic, TopicPolicy, Transition,
};
pub use options::Options;
pub use producer::{Enqueued, NewTask, Producer};
pub use worker::{
    CancelReason, Cancellation, HandlerError, Outcome, Task, TaskInfo, Worker, WorkerBuilder,
    WorkerHandle, WorkerStats,
};
