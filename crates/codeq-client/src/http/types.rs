//! What comes back over HTTP. Moments are RFC 3339 texts, as the server writes them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::Error;

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Waits, claimable or delayed.
    Pending,
    /// A worker has it.
    InProgress,
    /// Finished well.
    Completed,
    /// Finished badly, dead-lettered or cancelled.
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

/// A task as the server has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TaskRecord {
    /// Opaque.
    pub id: String,
    /// The kind of work.
    pub command: String,
    /// The producer's JSON, byte for byte; see [`TaskRecord::json`].
    pub payload: String,
    /// Higher first.
    #[serde(default)]
    pub priority: u8,
    /// Where the result is posted; empty if nowhere.
    #[serde(default)]
    pub webhook: String,
    /// How far it is.
    pub status: Status,
    /// `PENDING_LIST`, `DELAYED_ZSET`, `INPROG_SET`, `DLQ_SET` or `NONE`.
    pub last_known_location: String,
    /// Who has the lease; empty if nobody.
    #[serde(default)]
    pub worker_id: String,
    /// When the lease ends.
    pub lease_until: Option<String>,
    /// The number of the claim that it is leased under; absent while it is not.
    pub fence: Option<u64>,
    /// Failed executions so far.
    #[serde(default)]
    pub attempts: u32,
    /// The ceiling of attempts.
    #[serde(default)]
    pub max_attempts: u32,
    /// The last failure; empty if there was none.
    #[serde(default)]
    pub error: String,
    /// Its tenant.
    pub tenant_id: String,
    /// W3C trace context of the enqueue; empty if there was none.
    #[serde(default)]
    pub trace_parent: String,
    /// W3C trace state of the enqueue; empty if there was none.
    #[serde(default)]
    pub trace_state: String,
    /// The producer wants the work to stop.
    #[serde(default)]
    pub cancel_requested: bool,
    /// The dead letter that this task was made for.
    pub origin_task_id: Option<String>,
    /// When it was made.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
    /// When a delayed task becomes claimable.
    pub visible_at: Option<String>,
}

impl TaskRecord {
    /// The payload, typed.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_str(&self.payload).map_err(Error::Decode)
    }
}

/// An output of a task.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Artifact {
    /// Its name.
    pub name: String,
    /// Where it lies.
    pub url: String,
}

/// How a task ended. Written once.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TaskResult {
    /// The task.
    pub task_id: String,
    /// [`Status::Completed`] or [`Status::Failed`].
    pub status: Status,
    /// The worker's object as it was sent; see [`TaskResult::json`]. A failed task may have one, too.
    pub result: Option<Box<RawValue>>,
    /// Why it failed. A completed task may have one, if its worker sent both.
    #[serde(default)]
    pub error: String,
    /// Its outputs; those that the server stores are read with [`HttpClient::artifact`](crate::HttpClient::artifact).
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    /// When it ended.
    pub completed_at: String,
}

impl TaskResult {
    /// The worker's object, typed; [`Error::TaskFailed`] if the task failed.
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
    /// The tasks.
    pub items: Vec<TaskRecord>,
    /// Where the next page begins; absent on the last one.
    pub next_cursor: Option<String>,
}

/// Which tasks to list. The default is the newest fifty of all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// Only this queue.
    pub command: Option<String>,
    /// Only this status. Not for dead letters.
    pub status: Option<Status>,
    /// Terms that must all hold: `worker=w-1`, `created>2026-01-31T00:00:00Z`, `error~refused`.
    pub filter: Option<String>,
    /// Tasks on the page, 1 to 1,000.
    pub limit: Option<u32>,
    /// [`TaskPage::next_cursor`] of the page before, with the same other fields.
    pub cursor: Option<String>,
}

/// The transitions of a task.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct History {
    /// The task.
    pub task_id: String,
    /// Oldest first.
    pub items: Vec<Transition>,
    /// Transitions after the first that gave way to newer ones.
    #[serde(default)]
    pub dropped: u64,
}

/// A transition of a task.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Transition {
    /// When.
    pub at: String,
    /// What happened: `created`, `claimed`, `submitted`, `nacked`, `abandoned`, `released`,
    /// `lease_expired`, `due`, `cancel_requested`, `cancelled`, `replayed`, `removed` or
    /// `postponed`.
    pub event: String,
    /// Where the task was.
    pub from: Option<String>,
    /// Where it went.
    pub to: String,
    /// Its status since.
    pub status: Status,
    /// Who did it; absent for the server itself.
    pub who: Option<String>,
    /// The reason, if one was given.
    pub why: Option<String>,
}

/// The numbers of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct QueueStats {
    /// The queue.
    pub command: String,
    /// Claimable tasks.
    pub ready: u64,
    /// Tasks that wait for their time.
    pub delayed: u64,
    /// Leased tasks.
    pub in_progress: u64,
    /// Dead letters.
    pub dlq: u64,
}

/// A queue in the list of queues.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Queue {
    /// How many tasks are where.
    #[serde(flatten)]
    pub stats: QueueStats,
    /// Its tenant.
    pub tenant_id: String,
    /// Finished tasks that are kept, completed.
    pub completed: u64,
    /// Finished tasks that are kept, failed.
    pub failed: u64,
    /// Payload bytes of unfinished tasks.
    pub bytes: u64,
    /// Claims are stopped.
    pub paused: bool,
    /// Age of the oldest claimable task; 0 if there is none.
    pub oldest_ready_seconds: f64,
    /// Tasks made, over the last minute.
    pub enqueued_per_second: f64,
    /// Tasks claimed, over the last minute.
    pub claimed_per_second: f64,
    /// Tasks finished, over the last minute.
    pub finished_per_second: f64,
}

#[derive(Deserialize)]
pub(crate) struct QueueList {
    pub(crate) items: Vec<Queue>,
}

/// Which tasks a purge or a cleanup touches: those of which everything holds that is given. The default is all, a
/// thousand in a call. Ask with `dry_run` first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BulkOptions {
    /// Only tasks whose last error contains this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_contains: Option<String>,
    /// Only tasks that finished before this moment (RFC 3339), or, of waiting tasks, were created before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The same at this moment or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Only tasks whose latest claim was this worker's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Touch at most so many, up to 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the call before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Touch nothing; `matched` of the answer says how many match.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Which tasks of a queue are replayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ReplayFrom {
    /// Those whose attempts are spent.
    #[default]
    DeadLetters,
    /// Those that a worker failed for good.
    Failed,
    /// Those that were cancelled, alone or with their queue.
    Cancelled,
}

impl ReplayFrom {
    fn is_dead_letters(&self) -> bool {
        *self == ReplayFrom::DeadLetters
    }
}

/// What a replay puts back: by default all dead letters, a thousand in a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Replay {
    /// Where the tasks come from.
    #[serde(skip_serializing_if = "ReplayFrom::is_dead_letters")]
    pub from: ReplayFrom,
    /// Which of them.
    #[serde(flatten)]
    pub options: BulkOptions,
}

/// What a purge did.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Purged {
    /// Tasks that are gone from the place.
    pub purged: u64,
    /// Tasks that are still there: call again.
    pub remaining: u64,
    /// Of a dry run: tasks that match.
    pub matched: Option<u64>,
    /// Where to go on, if not all were looked at.
    pub next_cursor: Option<String>,
}

/// What a replay did.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Replayed {
    /// Tasks that are back in their queue.
    pub replayed: u64,
    /// Dead letters that are left in the queue; of another [`ReplayFrom`], failed and cancelled tasks together.
    pub remaining: u64,
    /// Of a dry run: tasks that match.
    pub matched: Option<u64>,
    /// Where to go on, if not all were looked at.
    pub next_cursor: Option<String>,
}

/// The policy of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicPolicy {
    /// A task's priority is lowered to the nearest tier not above it, or raised to the lowest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_tiers: Option<Vec<u8>>,
    /// Default and ceiling for new tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// A dead letter is also enqueued under this command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_topic_ref: Option<String>,
    /// How long finished tasks are kept, dead letters included unless they have a setting of their own; 0 means the
    /// server's setting.
    pub retention_seconds: u64,
    /// How long dead letters are kept; 0 means `retention_seconds` if that is set, or else the server's setting.
    #[serde(skip_serializing_if = "is_zero")]
    pub dead_letter_retention_seconds: u64,
    /// At most so many tasks in progress at once; 0 means no limit.
    pub max_consumers: u64,
}

// An older server does not know the field, and refuses what it does not know.
fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

/// A topic: a queue with a policy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Topic {
    /// `<tenant>.<name>`.
    pub topic_id: String,
    /// The tenant.
    pub tenant_id: String,
    /// The name, which is the command of the queue.
    pub topic_name: String,
    /// The policy.
    pub policy: TopicPolicy,
    /// Grows by one with every change.
    pub version: u64,
    /// When it was first written.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
}

/// What a cleanup did.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CleanedUp {
    /// The moment that was used.
    pub before: String,
    /// Tasks that are gone.
    pub deleted: u64,
    /// How many could have gone.
    pub limit: u64,
    /// Of a dry run: tasks that match.
    pub matched: Option<u64>,
    /// Where to go on, if not all were looked at.
    pub next_cursor: Option<String>,
}
