//! Types of the HTTP API. Times are RFC 3339 texts, as the server writes them. Responses serialise to the server's
//! JSON, without absent values.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::Error;

/// Status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Waiting to be claimed, or delayed.
    Pending,
    /// Leased to a worker.
    InProgress,
    /// Succeeded.
    Completed,
    /// Failed, dead-lettered or cancelled.
    Failed,
}

impl Status {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "PENDING",
            Status::InProgress => "IN_PROGRESS",
            Status::Completed => "COMPLETED",
            Status::Failed => "FAILED",
        }
    }
}

/// State of a task, in more detail than its [`Status`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Waiting to be claimed.
    Ready,
    /// Waiting for a delay or `runAt`.
    Delayed,
    /// Leased to a worker.
    Running,
    /// Succeeded.
    Completed,
    /// Failed by a worker.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Dead-lettered.
    Dead,
}

impl TaskState {
    /// Its name, such as `ready`.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskState::Ready => "ready",
            TaskState::Delayed => "delayed",
            TaskState::Running => "running",
            TaskState::Completed => "completed",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
            TaskState::Dead => "dead",
        }
    }
}

/// A task as the server has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TaskRecord {
    /// The task's id; treat it as opaque.
    pub id: String,
    /// The kind of work.
    pub command: String,
    /// The producer's JSON, byte for byte; see [`TaskRecord::json`].
    pub payload: String,
    /// 0 to 9, higher first.
    #[serde(default)]
    pub priority: u8,
    /// URL that receives the result; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub webhook: String,
    /// Its current status.
    pub status: Status,
    /// `PENDING_LIST`, `DELAYED_ZSET`, `INPROG_SET`, `DLQ_SET` or `NONE`.
    pub last_known_location: String,
    /// The worker that holds the lease; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub worker_id: String,
    /// When the lease ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<String>,
    /// When the running attempt reaches its maximum run time; absent without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_until: Option<String>,
    /// Number of the claim that holds the lease; absent if it is not leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Failed attempts so far.
    #[serde(default)]
    pub attempts: u32,
    /// Attempts before the task is dead-lettered.
    #[serde(default)]
    pub max_attempts: u32,
    /// Seconds that an attempt may run; absent if the task sets no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_run_seconds: Option<u64>,
    /// Error of the last failed attempt; empty if there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// W3C `traceparent` of the enqueue; empty if there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace_parent: String,
    /// W3C `tracestate` of the enqueue; empty if there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace_state: String,
    /// Cancellation was requested: its worker should stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// The dead-lettered task that this one is a copy of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_task_id: Option<String>,
    /// When it was created.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
    /// When a delayed task becomes claimable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visible_at: Option<String>,
}

impl TaskRecord {
    /// The payload, deserialised.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_str(&self.payload).map_err(Error::Decode)
    }
}

/// A named output of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Unique within the result.
    pub name: String,
    /// Where to fetch it.
    pub url: String,
}

/// The result of a finished task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TaskResult {
    /// The task's id.
    pub task_id: String,
    /// [`Status::Completed`] or [`Status::Failed`].
    pub status: Status,
    /// The worker's result as it was sent; see [`TaskResult::json`]. A failed task may have one, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// Why it failed. A completed task may have one as well, if its worker sent both.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Named outputs; read those that the server stores with [`HttpClient::artifact`](crate::HttpClient::artifact).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// When the task finished.
    pub completed_at: String,
}

impl TaskResult {
    /// The worker's result, deserialised. Returns [`Error::TaskFailed`] if the task failed.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        if self.status != Status::Completed {
            return Err(Error::TaskFailed(self.error.clone()));
        }
        let text = self.result.as_deref().map_or("{}", RawValue::get);
        serde_json::from_str(text).map_err(Error::Decode)
    }
}

/// A finished task and its result.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct FinishedTask {
    pub(crate) result: TaskResult,
}

/// A page of tasks, newest first.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskPage {
    /// The tasks of the page.
    pub items: Vec<TaskRecord>,
    /// Where the next page begins; absent on the last one.
    pub next_cursor: Option<String>,
}

/// Selects tasks. By default, the newest fifty of all queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// Only tasks of this queue.
    pub command: Option<String>,
    /// Only tasks with this status. Not for dead letters.
    pub status: Option<Status>,
    /// Only tasks in this state. Not for dead letters.
    pub state: Option<TaskState>,
    /// Conditions that must all hold, such as `worker=w-1`, `created>2026-01-31T00:00:00Z` or `error~refused`.
    pub filter: Option<String>,
    /// Tasks per page, 1 to 1,000.
    pub limit: Option<u32>,
    /// [`TaskPage::next_cursor`] of the previous page; keep all other fields the same.
    pub cursor: Option<String>,
}

/// A task's history.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct History {
    /// The task's id.
    pub task_id: String,
    /// Oldest first.
    pub items: Vec<Transition>,
    /// Number of transitions after the first that were dropped to make room.
    #[serde(default)]
    pub dropped: u64,
}

/// A transition of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Transition {
    /// When it happened.
    pub at: String,
    /// What happened: `created`, `claimed`, `submitted`, `nacked`, `abandoned`, `released`,
    /// `lease_expired`, `due`, `cancel_requested`, `cancelled`, `replayed`, `removed`, `postponed`,
    /// `rescheduled` or `timed_out`.
    pub event: String,
    /// The previous location.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The new location.
    pub to: String,
    /// The status after the transition.
    pub status: Status,
    /// Who caused it; absent for the server itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// The reason, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Statistics of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct QueueStats {
    /// The queue's command.
    pub command: String,
    /// Claimable tasks.
    pub ready: u64,
    /// Tasks waiting for a delay or `runAt`.
    pub delayed: u64,
    /// Leased tasks.
    pub in_progress: u64,
    /// Dead letters.
    pub dlq: u64,
    /// Completed tasks that are still kept.
    #[serde(default)]
    pub completed: u64,
    /// Tasks that a worker failed for good and that are still kept.
    #[serde(default)]
    pub failed: u64,
    /// Cancelled tasks that are still kept.
    #[serde(default)]
    pub cancelled: u64,
}

/// A queue in the list of queues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Queue {
    /// Number of tasks in each state.
    #[serde(flatten)]
    pub stats: QueueStats,
    /// The tenant that owns the queue.
    pub tenant_id: String,
    /// Payload bytes of unfinished tasks.
    pub bytes: u64,
    /// Claims are paused.
    pub paused: bool,
    /// Age of the oldest claimable task; 0 if there is none.
    pub oldest_ready_seconds: f64,
    /// Tasks created per second, over the last minute.
    pub enqueued_per_second: f64,
    /// Tasks claimed per second, over the last minute.
    pub claimed_per_second: f64,
    /// Tasks finished per second, over the last minute.
    pub finished_per_second: f64,
}

#[derive(Deserialize)]
pub(crate) struct QueueList {
    pub(crate) items: Vec<Queue>,
}

/// Selects the tasks of a purge, cancellation, cleanup or replay: all conditions that are set must hold. By default all
/// tasks (of a cleanup: those whose retention has ended), up to a thousand per call. Try it with `dry_run` first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BulkOptions {
    /// Only tasks whose last error contains this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_contains: Option<String>,
    /// Only tasks that finished before this time (RFC 3339) or, if not finished, were created before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Only tasks that finished, or were created, at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Only tasks whose latest claim was by this worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Change at most this many tasks, up to 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Change nothing; `matched` in the response says how many tasks match.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// What every bulk call says besides its count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct BulkProgress {
    /// In a dry run, the number of tasks that match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<u64>,
    /// Where to continue; absent once everything was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which unsuccessful tasks of a queue to replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ReplayFrom {
    /// Tasks that used up their attempts.
    #[default]
    DeadLetters,
    /// Tasks that a worker failed for good.
    Failed,
    /// Tasks that were cancelled, individually or by a purge.
    Cancelled,
}

impl ReplayFrom {
    fn is_dead_letters(&self) -> bool {
        *self == ReplayFrom::DeadLetters
    }
}

/// Selects the tasks to replay. By default all dead letters, up to a thousand per call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Replay {
    /// The kind of tasks.
    #[serde(skip_serializing_if = "ReplayFrom::is_dead_letters")]
    pub from: ReplayFrom,
    /// Further conditions.
    #[serde(flatten)]
    pub options: BulkOptions,
}

/// Outcome of a purge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Purged {
    /// Number of tasks purged.
    pub purged: u64,
    /// Number of tasks left, including those that the conditions exclude.
    pub remaining: u64,
    /// What every bulk call says.
    #[serde(flatten)]
    pub progress: BulkProgress,
}

/// A finished backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Backup {
    /// Where it is: a URL that `codeq restore` takes.
    pub location: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of tasks in it.
    pub tasks: u64,
    /// Number of shards.
    pub shards: u16,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

/// Outcome of rereading the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Reloaded {
    /// Settings that changed.
    pub changed: Vec<ChangedSetting>,
    /// Settings whose change needs a restart.
    pub needs_restart: Vec<String>,
}

/// A setting that changed. Secrets are masked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChangedSetting {
    /// Its name.
    pub key: String,
    /// The value before.
    pub from: String,
    /// The value now.
    pub to: String,
}

/// Outcome of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Replayed {
    /// Number of tasks returned to their queue.
    pub replayed: u64,
    /// Dead letters left in the queue; with another [`ReplayFrom`], failed or cancelled tasks left.
    pub remaining: u64,
    /// What every bulk call says.
    #[serde(flatten)]
    pub progress: BulkProgress,
}

/// Selects the tasks of a queue to cancel. By default all ready and delayed tasks, up to a thousand per call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelTasks {
    /// Also ask the workers of running tasks to stop.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_running: bool,
    /// Further conditions.
    #[serde(flatten)]
    pub options: BulkOptions,
}

/// Outcome of cancelling tasks of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CancelledTasks {
    /// Ready and delayed tasks that were cancelled.
    pub cancelled: u64,
    /// Running tasks whose workers were asked to stop.
    pub cancel_requested: u64,
    /// Ready and delayed tasks left and, if they were included, running ones.
    pub remaining: u64,
    /// What every bulk call says.
    #[serde(flatten)]
    pub progress: BulkProgress,
}

/// What to change about a waiting task. Fields that are not set stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskChanges {
    /// 0 to 9, higher first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Seconds until it is claimable, from now; 0 means now. Replaces an earlier delay or time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<u64>,
    /// When it becomes claimable (RFC 3339). Takes precedence over `delay_seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<String>,
}

/// The policy of a queue: settings that replace the server's defaults for its tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicPolicy {
    /// Allowed priorities. A task gets the highest tier at or below its priority, or else the lowest tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_tiers: Option<Vec<u8>>,
    /// Default and upper limit for the attempts of new tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// A dead-lettered task is also enqueued under this command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_topic_ref: Option<String>,
    /// How long finished tasks are kept, including dead letters unless they have their own setting; 0 means the
    /// server's setting.
    pub retention_seconds: u64,
    /// How long dead letters are kept; 0 means `retention_seconds` if set, or else the server's setting.
    #[serde(skip_serializing_if = "is_zero")]
    pub dead_letter_retention_seconds: u64,
    /// Upper limit of tasks in progress at once; 0 means no limit.
    pub max_consumers: u64,
    /// Seconds that an attempt may run if its task sets no limit; 0 means no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_run_seconds: u64,
}

// Zeros are left out, because an older server refuses fields that it does not know.
fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

/// A topic: a queue with a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Topic {
    /// `<tenant>.<name>`.
    pub topic_id: String,
    /// The tenant that owns the queue.
    pub tenant_id: String,
    /// The command of the queue.
    pub topic_name: String,
    /// The queue's settings.
    pub policy: TopicPolicy,
    /// Grows by one with every change.
    pub version: u64,
    /// When it was created.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
}

/// Outcome of a cleanup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CleanedUp {
    /// The cutoff: the given time, or else the time of the call. Tasks that finished before a given time, or whose
    /// retention had ended by the time of the call, were removed.
    pub before: String,
    /// Number of tasks removed.
    pub deleted: u64,
    /// Upper limit of the call.
    pub limit: u64,
    /// What every bulk call says.
    #[serde(flatten)]
    pub progress: BulkProgress,
}
