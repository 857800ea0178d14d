//! Everything that can change a shard, as data.
//!
//! A command's outcome depends only on the rows, on the moment at which it is applied, and on what the command carries:
//! names, sizes, and randomness (`seed`) drawn by the caller. The log stores commands, so the order of variants and
//! fields is part of the on-disk format: add variants at the end and never change one (see `codec`).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::TaskId;
use crate::keys::Seq;
use crate::record::{Hidden, RecordKind};
use crate::settings::{Settings, SettingsV1};
use crate::topic::{Policy, PolicyV1, PolicyV2};

mod bulk;
mod enqueue_v1;
mod under_lease;

pub use bulk::{BulkFilter, BulkFrom, BulkPart, BulkPartV1, BulkWork, BulkWorkV1, ReplayFrom};
pub use enqueue_v1::{EnqueueByValueV1, EnqueueV1, NewTaskV1};
pub use under_lease::{Fence, Holder, LeaseAction, UnderLease};

pub use crate::moment::Millis;

/// A change requested by a client, an operator or the shard itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Replace the shard's settings. Superseded by [`Command::Configure`]; only in older logs.
    ConfigureV1(SettingsV1),
    /// Create tasks. Superseded by [`Command::Enqueue`]; only in older logs.
    EnqueueV1(EnqueueV1),
    /// Lease tasks to a worker.
    Claim(Claim),
    /// Extend a lease.
    Heartbeat(Heartbeat),
    /// Finish a task.
    Submit(Submit),
    /// Return a failed task, to be retried later.
    Nack(Nack),
    /// Return a task unfinished.
    Abandon(Abandon),
    /// Finish a task that is not running, or ask its worker to stop.
    Cancel(Cancel),
    /// Return dead-lettered, failed or cancelled tasks to their queue.
    Replay(Replay),
    /// Remove dead-lettered tasks, or cancel pending and delayed ones. Superseded by [`Command::BulkPart`]; only in
    /// older logs.
    Purge(Purge),
    /// Pause or resume claims of a queue.
    Pause(Pause),
    /// Create or change a topic policy. Superseded by [`Command::PutTopic`]; only in older logs.
    PutTopicV1(PutTopicV1),
    /// Remove a topic policy.
    DeleteTopic(DeleteTopic),
    /// Remove finished tasks before their retention ends. Superseded by [`Command::BulkPart`]; only in older logs.
    Cleanup(Cleanup),
    /// Handle what is due: expired leases, delays, retention. The shard proposes this to itself.
    Sweep(Sweep),
    /// Record the outcome of an attempt to deliver a result callback.
    Callback(Callback),
    /// Create or replace a record.
    PutRecord(PutRecord),
    /// Remove a record.
    DeleteRecord(DeleteRecord),
    /// A bounded part of a bulk operation. Superseded by [`Command::BulkPart`]; only in older logs.
    BulkPartV1(BulkPartV1),
    /// Replace the shard's settings.
    Configure(Settings),
    /// Create or change a topic policy. Superseded by [`Command::PutTopic`]; only in older logs.
    PutTopicV2(PutTopicV2),
    /// A bounded part of a cleanup, purge, replay or cancellation of many tasks.
    BulkPart(Box<BulkPart>),
    /// A worker's action on its task, valid only under the lease it names.
    UnderLease(UnderLease),
    /// Create tasks, as [`Command::EnqueueByValue`] does. Superseded by [`Command::EnqueueByValue`]; only in older logs.
    EnqueueByValueV1(EnqueueByValueV1),
    /// Create tasks.
    Enqueue(Enqueue),
    /// Create tasks whose idempotency keys compare payloads as JSON values, or whose payloads are large.
    EnqueueByValue(EnqueueByValue),
    /// Create or change a topic policy.
    PutTopic(PutTopic),
    /// Change the priority or the delay of a task that is not running.
    Reschedule(Reschedule),
}

/// Creates one or more tasks of one tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Enqueue {
    /// The tenant that owns the tasks.
    pub tenant: Arc<str>,
    /// The tasks, in order.
    pub tasks: Vec<NewTask>,
    /// All or nothing; otherwise each task succeeds or fails on its own.
    pub atomic: bool,
    /// Randomness for the task ids.
    pub seed: u64,
}

/// A task to create.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NewTask {
    /// The kind of work, in the letter case that the producer used.
    pub command: Arc<str>,
    /// The producer's JSON text, byte for byte.
    pub payload: Bytes,
    /// Clamped to 0..=9.
    pub priority: i32,
    /// Attempts before the task is dead-lettered; `None` means the policy's or the shard's default.
    pub max_attempts: Option<u32>,
    /// URL that receives the result.
    pub webhook: Option<Arc<str>>,
    /// Makes it safe to repeat the enqueue.
    pub idempotency_key: Option<Arc<str>>,
    /// Not claimable before this wall-clock time. Takes precedence over `delay`.
    pub run_at: Option<Millis>,
    /// Not claimable for this long.
    pub delay: Option<Millis>,
    /// W3C `traceparent` header.
    pub trace_parent: Option<Arc<str>>,
    /// W3C `tracestate` header.
    pub trace_state: Option<Arc<str>>,
    /// Longest time that an attempt may run, from its claim; `None` or 0 means the policy's.
    pub max_run: Option<Millis>,
}

/// The tenant's queues that a claim takes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Selector {
    /// All of them.
    Any,
    /// The queues of these commands.
    Commands(Vec<Arc<str>>),
}

/// Leases up to `count` tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The tenant that owns the tasks.
    pub tenant: Arc<str>,
    /// The worker that receives the leases.
    pub worker: Arc<str>,
    /// The queues to claim from.
    pub from: Selector,
    /// How long each lease lasts.
    pub lease: Millis,
    /// Upper bound on the number of tasks.
    pub count: u32,
}

/// Sets the end of a lease to now + `extend`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The tenant that owns the task.
    pub tenant: Arc<str>,
    /// The task's id.
    pub id: TaskId,
    /// The worker that holds the lease.
    pub worker: Arc<str>,
    /// How long the lease lasts from now.
    pub extend: Millis,
}

/// How a task ended, as its worker reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done, with a JSON object as the result.
    Completed(Bytes),
    /// Failed for good, with an error.
    Failed(Arc<str>),
    /// Done or failed, with both a result and an error.
    Both {
        /// Whether the task succeeded.
        completed: bool,
        /// A JSON object.
        result: Bytes,
        /// What went wrong.
        error: Arc<str>,
    },
}

/// A named output of a task, stored elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Shown to whoever reads the result.
    pub name: Arc<str>,
    /// Where to fetch it.
    pub url: Arc<str>,
}

/// Finishes a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    /// The tenant that owns the task.
    pub tenant: Arc<str>,
    /// The task's id.
    pub id: TaskId,
    /// The worker that holds the lease.
    pub worker: Arc<str>,
    /// How it ended.
    pub outcome: Outcome,
    /// Named outputs stored elsewhere.
    pub artifacts: Vec<Artifact>,
}

/// Returns a task as failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nack {
    /// The tenant that owns the task.
    pub tenant: Arc<str>,
    /// The task's id.
    pub id: TaskId,
    /// The worker that holds the lease.
    pub worker: Arc<str>,
    /// Delay before the next attempt, at most the backoff policy's longest; `None` means that of the backoff policy.
    pub delay: Option<Millis>,
    /// Kept as the task's error.
    pub reason: Option<Arc<str>>,
    /// Randomness for the backoff.
    pub seed: u64,
}

/// Returns a task unfinished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Abandon {
    /// The tenant that owns the task.
    pub tenant: Arc<str>,
    /// The task's id.
    pub id: TaskId,
    /// The worker that holds the lease.
    pub worker: Arc<str>,
    /// Whether this counts as a failed attempt. A worker that shuts down cleanly says no.
    pub penalty: bool,
    /// Applies only if this is still the fence of the lease; `None` accepts the worker's current lease.
    pub fence: Option<Fence>,
}

/// Cancels a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cancel {
    /// The tenant that owns the task.
    pub tenant: Arc<str>,
    /// The task's id.
    pub id: TaskId,
    /// Who asked, for the history.
    pub by: Arc<str>,
}

/// Changes a pending or delayed task: its priority, the time at which it becomes claimable, or both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reschedule {
    /// The tenant that owns the task.
    pub tenant: Arc<str>,
    /// The task's id.
    pub id: TaskId,
    /// The new priority, clamped to 0..=9; `None` keeps it.
    pub priority: Option<i32>,
    /// The new time, which replaces delay and `runAt`; `None` keeps them.
    pub when: Option<RunWhen>,
    /// Who asked, for the history.
    pub by: Arc<str>,
}

/// When a rescheduled task becomes claimable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunWhen {
    /// After this long; 0 means now.
    After(Millis),
    /// At this wall-clock time; a time in the past means now.
    At(Millis),
}

/// Which tasks a replay returns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ReplayTarget {
    /// A dead-lettered, failed or cancelled task.
    One(TaskId),
    /// Dead-lettered tasks of a queue, oldest first, a bounded number at a time. Only in older logs.
    Queue {
        /// The queue's command.
        command: Arc<str>,
        /// Only tasks whose last error contains this.
        error_contains: Option<Arc<str>>,
        /// Only tasks with a higher number: where the previous call stopped.
        after: Seq,
        /// Upper bound on the number of tasks.
        limit: u32,
    },
}

/// Returns tasks to their queue with all their attempts restored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// The tenant that owns the tasks.
    pub tenant: Arc<str>,
    /// The tasks to replay.
    pub target: ReplayTarget,
    /// Who asked, for the history.
    pub by: Arc<str>,
}

/// Which tasks of a queue a purge takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PurgeTarget {
    /// Dead-lettered tasks: removed with their results.
    Dead,
    /// Pending and delayed tasks: cancelled, so that their producers are notified.
    Waiting,
}

/// Empties a queue or its dead letters, a bounded number of tasks at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Purge {
    /// The tenant that owns the queue.
    pub tenant: Arc<str>,
    /// The queue's command.
    pub command: Arc<str>,
    /// What to purge.
    pub target: PurgeTarget,
    /// Upper bound on the number of tasks.
    pub limit: u32,
    /// Who asked, for the history.
    pub by: Arc<str>,
}

/// Pauses or resumes claims of a queue; enqueues continue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// The tenant that owns the queue.
    pub tenant: Arc<str>,
    /// The queue's command.
    pub command: Arc<str>,
    /// True to pause, false to resume.
    pub paused: bool,
}

/// Creates or changes the policy of a queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PutTopic {
    /// The tenant that owns the queue.
    pub tenant: Arc<str>,
    /// The queue's name, a DNS label.
    pub name: Arc<str>,
    /// The policy to set.
    pub policy: Policy,
}

/// Creates or changes the policy of a queue, as version 1 encoded it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PutTopicV1 {
    /// The tenant that owns the queue.
    pub tenant: Arc<str>,
    /// The queue's name, a DNS label.
    pub name: Arc<str>,
    /// The policy to set.
    pub policy: PolicyV1,
}

impl From<PutTopicV1> for PutTopic {
    fn from(put: PutTopicV1) -> PutTopic {
        PutTopic { tenant: put.tenant, name: put.name, policy: put.policy.into() }
    }
}

/// Creates or changes the policy of a queue, as version 2 encoded it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PutTopicV2 {
    /// The tenant that owns the queue.
    pub tenant: Arc<str>,
    /// The queue's name, a DNS label.
    pub name: Arc<str>,
    /// The policy to set.
    pub policy: PolicyV2,
}

impl From<PutTopicV2> for PutTopic {
    fn from(put: PutTopicV2) -> PutTopic {
        PutTopic { tenant: put.tenant, name: put.name, policy: put.policy.into() }
    }
}

/// Removes the policy of a queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeleteTopic {
    /// The tenant that owns the queue.
    pub tenant: Arc<str>,
    /// The queue's name.
    pub name: Arc<str>,
}

/// Removes finished tasks before their retention ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cleanup {
    /// The tenant that owns the tasks.
    pub tenant: Arc<str>,
    /// Only tasks that finished before this time.
    pub before: Millis,
    /// Upper bound on the number of tasks.
    pub limit: u32,
}

/// Handles what is due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Upper bound on the number of tasks moved.
    pub limit: u32,
    /// Randomness for the backoffs.
    pub seed: u64,
}

/// The outcome of a delivery attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Delivery {
    /// Delivered: the callback is done.
    Delivered,
    /// Not delivered: retried later, or kept as failed once its attempts are used up.
    Failed {
        /// The receiver's HTTP status, if it answered.
        status: Option<u16>,
        /// What went wrong.
        error: Arc<str>,
        /// The minimum delay the receiver asked for.
        retry_after: Option<Millis>,
    },
    /// An operator asked for a failed callback to be sent again.
    Resend,
    /// The receiver rejected it permanently: kept as failed, without further attempts.
    Refused {
        /// Its HTTP status.
        status: u16,
        /// What went wrong.
        error: Arc<str>,
    },
}

/// Reports on the callback of a finished task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Callback {
    /// The tenant that owns the task.
    pub tenant: Arc<str>,
    /// The task's id.
    pub id: TaskId,
    /// Identifies which completion of the task this is about; `None` means the latest. A replayed task can finish
    /// again, and a late report about its first callback must not be taken for one about the second.
    pub completed_at: Option<Millis>,
    /// The outcome of the delivery.
    pub delivery: Delivery,
}

/// Creates or replaces a record.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct PutRecord {
    /// The tenant that owns it.
    pub tenant: Arc<str>,
    /// What it is for.
    pub kind: RecordKind,
    /// Its name, unique in the tenant and kind.
    pub name: Arc<str>,
    /// The record's content, opaque to the rules.
    pub value: Bytes,
    /// How long it lives; `None` means until it is deleted.
    pub ttl: Option<Millis>,
    /// Applies only at this revision; 0 means that the record must not exist. `None` accepts any.
    pub expected: Option<u64>,
}

// The value may be a secret.
impl fmt::Debug for PutRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutRecord")
            .field("tenant", &self.tenant)
            .field("kind", &self.kind)
            .field("name", &self.name)
            .field("value", &Hidden(&self.value))
            .field("ttl", &self.ttl)
            .field("expected", &self.expected)
            .finish()
    }
}

/// Removes a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeleteRecord {
    /// The tenant that owns it.
    pub tenant: Arc<str>,
    /// What it is for.
    pub kind: RecordKind,
    /// Its name.
    pub name: Arc<str>,
    /// Applies only at this revision; `None` accepts any.
    pub expected: Option<u64>,
}

/// Creates tasks under newer rules: payloads may have up to [`PAYLOAD_BYTES_MAX`](crate::limits::PAYLOAD_BYTES_MAX)
/// bytes, and repeats of an idempotency key are recognised by comparing payloads as JSON values. The [`Enqueue`] commands
/// in existing logs must keep the older rules, so this is a separate command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnqueueByValue {
    /// The tasks to create.
    pub enqueue: Enqueue,
    /// For each task with an idempotency key, the identity of its work (see
    /// [`fingerprint_by_value`](crate::idempotency::fingerprint_by_value)); 0 for the others.
    pub fingerprints: Vec<u128>,
}
