//! Everything that can change a shard, as data.
//!
//! A command carries all that its outcome depends on besides the rows: names, sizes, and the randomness
//! (`seed`) that was drawn for it outside. Time comes with the group that the command is applied in.
//! Commands are what the log holds, so the order of variants and fields is part of the on-disk format:
//! add variants at the end, never change one (see `codec`).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::TaskId;
use crate::idempotency::fingerprint_by_value;
use crate::limits::ENQUEUE_PAYLOAD_BYTES_MAX;
use crate::record::{Hidden, RecordKind};
use crate::settings::{Settings, SettingsV1};
use crate::topic::{Policy, PolicyV1};

mod bulk;
mod under_lease;

pub use bulk::{BulkFilter, BulkFrom, BulkPart, BulkPartV1, BulkWork, BulkWorkV1, ReplayFrom};
pub use under_lease::{Deed, UnderLease};

/// Milliseconds since the Unix epoch, or a length of time in milliseconds.
pub type Millis = u64;

/// What a client, an operator or the shard itself asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Replace the shard's settings, as versions before [`Command::Configure`] did.
    ConfigureV1(SettingsV1),
    /// Make tasks.
    Enqueue(Enqueue),
    /// Lease tasks to a worker.
    Claim(Claim),
    /// Extend a lease.
    Heartbeat(Heartbeat),
    /// Finish a task.
    Submit(Submit),
    /// Give a task back as failed, to be tried again.
    Nack(Nack),
    /// Give a task back.
    Abandon(Abandon),
    /// Finish a task that nobody runs, or ask its worker to stop.
    Cancel(Cancel),
    /// Return tasks that did not end well to their queue.
    Replay(Replay),
    /// Remove dead-lettered tasks, or finish waiting ones.
    Purge(Purge),
    /// Stop or allow claims of a queue.
    Pause(Pause),
    /// Create or change a topic policy, as versions before [`Command::PutTopic`] did.
    PutTopicV1(PutTopicV1),
    /// Remove a topic policy.
    DeleteTopic(DeleteTopic),
    /// Remove finished tasks before their retention ends.
    Cleanup(Cleanup),
    /// Act on what is due: expired leases, delays, retention. Proposed by the shard to itself.
    Sweep(Sweep),
    /// What became of an attempt to deliver a result callback.
    Callback(Callback),
    /// Create or replace a record.
    PutRecord(PutRecord),
    /// Remove a record.
    DeleteRecord(DeleteRecord),
    /// A bounded part of a cleanup, purge or replay, as versions before [`Command::BulkPart`] did it.
    BulkPartV1(BulkPartV1),
    /// Replace the shard's settings.
    Configure(Settings),
    /// Create or change a topic policy.
    PutTopic(PutTopic),
    /// A bounded part of a cleanup, purge or replay.
    BulkPart(BulkPart),
    /// What a worker does with its task, only if it still holds the lease that it names.
    UnderLease(UnderLease),
    /// Make tasks whose keys compare payloads as JSON values, or whose payloads are large.
    EnqueueByValue(EnqueueByValue),
}

/// Makes one or more tasks of one tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Enqueue {
    /// Whose tasks.
    pub tenant: Arc<str>,
    /// The tasks, in order.
    pub tasks: Vec<NewTask>,
    /// All or nothing; otherwise each task stands for itself.
    pub atomic: bool,
    /// Randomness for the ids.
    pub seed: u64,
}

/// A task to be made.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NewTask {
    /// The kind of work, as sent.
    pub command: Arc<str>,
    /// The producer's JSON text, byte for byte.
    pub payload: Bytes,
    /// Clamped to 0..=9.
    pub priority: i32,
    /// Attempts before dead-letter; none means the policy's or the shard's default.
    pub max_attempts: Option<u32>,
    /// Where the result is posted.
    pub webhook: Option<Arc<str>>,
    /// Makes the enqueue repeatable.
    pub idempotency_key: Option<Arc<str>>,
    /// Not claimable before this date, by the wall clock. Wins over `delay`.
    pub run_at: Option<Millis>,
    /// Not claimable for this long.
    pub delay: Option<Millis>,
    /// W3C trace context.
    pub trace_parent: Option<Arc<str>>,
    /// W3C trace context.
    pub trace_state: Option<Arc<str>>,
}

/// Which queues of the tenant a claim takes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Selector {
    /// Any queue.
    Any,
    /// The queues of these commands.
    Commands(Vec<Arc<str>>),
}

/// Leases up to `count` tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Whose tasks.
    pub tenant: Arc<str>,
    /// Who becomes the owner.
    pub worker: Arc<str>,
    /// From which queues.
    pub from: Selector,
    /// Length of the lease.
    pub lease: Millis,
    /// At most so many tasks.
    pub count: u32,
}

/// Sets the end of a lease to now + `extend`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Whose task.
    pub tenant: Arc<str>,
    /// Which task.
    pub id: TaskId,
    /// The owner.
    pub worker: Arc<str>,
    /// Length of the lease from now.
    pub extend: Millis,
}

/// How a task ended, in its worker's words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done; the result is a JSON object as text.
    Completed(Bytes),
    /// Failed for good.
    Failed(Arc<str>),
    /// Done or failed, with both a result and an error.
    Both {
        /// Whether the task is done.
        completed: bool,
        /// A JSON object as text.
        result: Bytes,
        /// What went wrong.
        error: Arc<str>,
    },
}

/// A named output of a task that lies elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its name.
    pub name: Arc<str>,
    /// Where it is.
    pub url: Arc<str>,
}

/// Finishes a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    /// Whose task.
    pub tenant: Arc<str>,
    /// Which task.
    pub id: TaskId,
    /// The owner.
    pub worker: Arc<str>,
    /// How it ended.
    pub outcome: Outcome,
    /// Its outputs.
    pub artifacts: Vec<Artifact>,
}

/// Gives a task back as failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nack {
    /// Whose task.
    pub tenant: Arc<str>,
    /// Which task.
    pub id: TaskId,
    /// The owner.
    pub worker: Arc<str>,
    /// Wait so long before the next attempt; none means the backoff policy.
    pub delay: Option<Millis>,
    /// Why.
    pub reason: Option<Arc<str>>,
    /// Randomness for the backoff.
    pub seed: u64,
}

/// Gives a task back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Abandon {
    /// Whose task.
    pub tenant: Arc<str>,
    /// Which task.
    pub id: TaskId,
    /// The owner.
    pub worker: Arc<str>,
    /// Whether this spends an attempt. A worker that shuts down cleanly says no.
    pub penalty: bool,
    /// Only if the lease is still the one with this fence; none means whichever the worker has.
    pub fence: Option<u64>,
}

/// Cancels a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cancel {
    /// Whose task.
    pub tenant: Arc<str>,
    /// Which task.
    pub id: TaskId,
    /// Who asks, for the history.
    pub by: Arc<str>,
}

/// Which tasks are replayed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ReplayTarget {
    /// One that is dead-lettered, failed or cancelled.
    One(TaskId),
    /// Dead-lettered tasks of a queue, oldest first, a bounded number at a time. Only read from older logs.
    Queue {
        /// The queue.
        command: Arc<str>,
        /// Only tasks whose last error contains this.
        error_contains: Option<Arc<str>>,
        /// Only tasks with a higher number: where the last call stopped.
        after: u64,
        /// At most so many.
        limit: u32,
    },
}

/// Returns tasks to their queue with fresh attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// Whose tasks.
    pub tenant: Arc<str>,
    /// Which.
    pub target: ReplayTarget,
    /// Who asks, for the history.
    pub by: Arc<str>,
}

/// What a purge takes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PurgeTarget {
    /// Dead-lettered tasks: removed with their results.
    Dead,
    /// Pending and delayed tasks: finished as cancelled, so that their producers hear of it.
    Waiting,
}

/// Empties a queue or its dead letters, a bounded number at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Purge {
    /// Whose queue.
    pub tenant: Arc<str>,
    /// Which queue.
    pub command: Arc<str>,
    /// What goes.
    pub target: PurgeTarget,
    /// At most so many.
    pub limit: u32,
    /// Who asks, for the history.
    pub by: Arc<str>,
}

/// Stops or allows claims of a queue; enqueues go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// Whose queue.
    pub tenant: Arc<str>,
    /// Which queue.
    pub command: Arc<str>,
    /// Stop, or allow.
    pub paused: bool,
}

/// Creates or changes the policy of a queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PutTopic {
    /// Whose queue.
    pub tenant: Arc<str>,
    /// The queue's name: a DNS label.
    pub name: Arc<str>,
    /// The policy.
    pub policy: Policy,
}

/// Creates or changes the policy of a queue, as version 1 wrote it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PutTopicV1 {
    /// Whose queue.
    pub tenant: Arc<str>,
    /// The queue's name: a DNS label.
    pub name: Arc<str>,
    /// The policy.
    pub policy: PolicyV1,
}

impl From<PutTopicV1> for PutTopic {
    fn from(put: PutTopicV1) -> PutTopic {
        PutTopic { tenant: put.tenant, name: put.name, policy: put.policy.into() }
    }
}

/// Removes the policy of a queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeleteTopic {
    /// Whose queue.
    pub tenant: Arc<str>,
    /// The queue's name.
    pub name: Arc<str>,
}

/// Removes finished tasks early.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cleanup {
    /// Whose tasks.
    pub tenant: Arc<str>,
    /// Only those that finished before this moment.
    pub before: Millis,
    /// At most so many.
    pub limit: u32,
}

/// Acts on what is due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Moves at most so many tasks.
    pub limit: u32,
    /// Randomness for the backoffs.
    pub seed: u64,
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Delivery {
    /// Delivered: the callback is done.
    Delivered,
    /// Not delivered: tried again later, or kept as failed when its attempts are spent.
    Failed {
        /// The receiver's HTTP status, if it answered.
        status: Option<u16>,
        /// What went wrong.
        error: Arc<str>,
        /// The receiver asked for at least this pause.
        retry_after: Option<Millis>,
    },
    /// An operator wants a failed callback sent again.
    Resend,
    /// The receiver wants no more of it: kept as failed without further attempts.
    Refused {
        /// Its HTTP status.
        status: u16,
        /// What went wrong.
        error: Arc<str>,
    },
}

/// What became of the callback of a finished task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Callback {
    /// Whose task.
    pub tenant: Arc<str>,
    /// Which task.
    pub id: TaskId,
    /// Which of its ends; none means the latest. A task that was replayed can end again, and a late report
    /// about the callback of its first end must not be taken for one about the second.
    pub completed_at: Option<Millis>,
    /// What became of it.
    pub delivery: Delivery,
}

/// Creates or replaces a record.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct PutRecord {
    /// Whose.
    pub tenant: Arc<str>,
    /// What it is for.
    pub kind: RecordKind,
    /// Its name, unique in the tenant and kind.
    pub name: Arc<str>,
    /// Its content.
    pub value: Bytes,
    /// It goes by itself after so long; none means never.
    pub ttl: Option<Millis>,
    /// Only if it has this revision now: 0 means that it must not exist. None means whatever there is.
    pub expected: Option<u64>,
}

// A value may be a secret.
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
    /// Whose.
    pub tenant: Arc<str>,
    /// What it is for.
    pub kind: RecordKind,
    /// Its name.
    pub name: Arc<str>,
    /// Only if it has this revision now; none means whichever.
    pub expected: Option<u64>,
}

/// Makes tasks, by rules that [`Enqueue`] did not have when it was first logged: payloads may have up to
/// [`PAYLOAD_BYTES_MAX`](crate::limits::PAYLOAD_BYTES_MAX) bytes, and keys compare them as JSON values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnqueueByValue {
    /// The tasks.
    pub enqueue: Enqueue,
    /// For each task with a key, what makes it the same work as another: see
    /// [`fingerprint_by_value`](crate::idempotency::fingerprint_by_value). Zero for the others.
    pub fingerprints: Vec<u128>,
}

impl Command {
    /// The command as it is proposed now. What an older version proposed is applied as it was then; this is where
    /// newer rules begin. Reads the payloads of tasks with a key, so the caller's thread should do it.
    pub fn current(self) -> Command {
        match self {
            Command::Enqueue(enqueue) if enqueue.tasks.iter().any(needs_value) => {
                let print = |task: &NewTask| match task.idempotency_key {
                    Some(_) => fingerprint_by_value(&task.command, &task.payload),
                    None => 0,
                };
                let fingerprints = enqueue.tasks.iter().map(print).collect();
                Command::EnqueueByValue(EnqueueByValue { enqueue, fingerprints })
            }
            other => other,
        }
    }
}

fn needs_value(task: &NewTask) -> bool {
    task.idempotency_key.is_some() || task.payload.len() > ENQUEUE_PAYLOAD_BYTES_MAX
}
