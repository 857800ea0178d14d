//! What clients know: every operation they requested, and its outcome.
//!
//! The history checkers read nothing else. A ledger is printed as text, one JSON line per operation ([`Line`]).
//! `codeq-crash` has ledger files of its own, whose entries use the types of this module. An operation that was never
//! answered is [`Outcome::Unknown`]: it may have happened at any time since it was requested, or never.

use codeq_core::command::{Fence, Millis};
use codeq_core::id::{ShardId, TaskId};
use serde::{Deserialize, Serialize};

use crate::rng::mix;

/// One operation of one client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When it was requested, on the ledger's own monotonic clock.
    pub invoked: u64,
    /// When its outcome was known, on the same clock. Never before `invoked`.
    pub done: u64,
    /// The requested operation.
    pub op: Op,
    /// Its outcome.
    pub outcome: Outcome,
}

/// An operation that a client requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Create tasks.
    Enqueue {
        /// The tenant of the producer.
        tenant: String,
        /// The tasks to create.
        tasks: Vec<Wanted>,
    },
    /// Lease tasks.
    Claim {
        /// The tenant of the worker.
        tenant: String,
        /// The worker that claims.
        worker: String,
        /// The queues to claim from; `None` means any.
        commands: Option<Vec<String>>,
    },
    /// Extend a lease.
    Heartbeat(Ref),
    /// Finish a task with a result that has this digest.
    Submit(Ref, Digest),
    /// Return a task as failed.
    Nack(Ref),
    /// Return a task; the flag says whether that costs an attempt.
    Abandon(Ref, bool),
    /// Cancel a task.
    Cancel(Ref),
    /// Replay one dead-lettered, failed or cancelled task.
    ReplayOne(Ref),
    /// Replay such tasks of a queue.
    ReplayQueue(Queue),
    /// Remove the dead-lettered tasks of a queue.
    PurgeDead(Queue),
    /// Cancel the ready and delayed tasks of a queue.
    PurgeWaiting(Queue),
    /// Remove a tenant's finished tasks.
    Cleanup {
        /// The tenant.
        tenant: String,
    },
    /// Report the delivery of a result callback.
    Callback(Ref, Delivered),
    /// Something that no history checker looks at.
    Other(String),
    /// Change the priority of a waiting task, or when it becomes claimable; `None` keeps the time.
    Reschedule(Ref, Option<NotBefore>),
}

/// Refers to a task in an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ref {
    /// The tenant of the caller.
    pub tenant: String,
    /// The calling worker.
    pub worker: String,
    /// The task's id, serialised as text.
    #[serde(with = "id_text")]
    pub id: TaskId,
}

/// Refers to a queue in an operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Queue {
    /// The tenant that owns it.
    pub tenant: String,
    /// The command in lowercase.
    pub command: String,
}

/// A task that a client wants to create.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The command, in the letter case that the producer used.
    pub command: String,
    /// Digest of the payload.
    pub payload: Digest,
    /// The idempotency key, if any.
    pub key: Option<String>,
    /// Whether it has a webhook.
    pub webhook: bool,
    /// The requested limit of attempts.
    pub max_attempts: Option<u32>,
    /// The requested maximum run time.
    pub max_run: Option<Millis>,
    /// The requested start time or delay.
    pub not_before: Option<NotBefore>,
}

/// How a client schedules a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotBefore {
    /// At a date of the server's wall clock.
    At(Millis),
    /// After a delay.
    After(Millis),
}

/// Outcome of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivered {
    /// The receiver has it.
    Yes,
    /// The receiver does not have it.
    No,
    /// It has to be sent again.
    Resend,
}

/// A digest of bytes, to compare them without keeping them.
pub type Digest = u64;

/// The digest of some bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    mix(&[codeq_core::id::fnv1a64(bytes), bytes.len() as u64])
}

/// Digest of the result of a completed task.
pub fn result_digest(result: &[u8]) -> Digest {
    digest(result) & !1
}

/// Digest of the error of an unsuccessful task. Never equal to that of a result.
pub fn error_digest(error: &str) -> Digest {
    digest(error.as_bytes()) | 1
}

/// Digest of a result with an error.
pub fn both_digest(completed: bool, result: &[u8], error: &str) -> Digest {
    let both = mix(&[digest(result), digest(error.as_bytes())]);
    if completed { both & !1 } else { both | 1 }
}

/// Whether a digest belongs to an unsuccessful task.
pub fn is_failure(digest: Digest) -> bool {
    digest & 1 == 1
}

/// Outcome of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The server did it.
    Acked {
        /// The server's clock at that moment.
        at: Millis,
        /// The shard that did it.
        shard: ShardId,
        /// The server's answer.
        answer: Answer,
    },
    /// The server refused it, and nothing changed.
    Refused {
        /// The server's clock at that moment.
        at: Millis,
        /// Why, in short.
        code: String,
    },
    /// The operation was never answered.
    Unknown,
}

/// The server's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Success, with nothing that a checker needs.
    Done,
    /// One answer per task of an enqueue.
    Enqueued(Vec<Made>),
    /// The leased tasks.
    Claimed(Vec<Seen>),
    /// The new end of a lease.
    Extended(Millis),
    /// The stored result.
    Result(Digest),
    /// Where the returned task went.
    Returned(Back),
    /// The task after a cancel or a replay.
    Task(Seen),
}

/// Answer for one task of an enqueue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Made {
    /// It was created.
    Created(Seen),
    /// Its key was known: this is the key's task.
    Repeated(Seen),
    /// It was refused, and why.
    Refused(String),
}

/// Where a task went when its worker returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Back {
    /// To its queue, claimable after this delay.
    Requeued(Millis),
    /// To the dead letters.
    Dead,
    /// To its end, because it had been cancelled.
    Cancelled,
}

/// A task as an answer shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The task's id, serialised as text.
    #[serde(with = "id_text")]
    pub id: TaskId,
    /// The tenant that owns it.
    pub tenant: String,
    /// The command, in the letter case that the producer used.
    pub command: String,
    /// A digest of its payload.
    pub payload: Digest,
    /// Its priority.
    pub priority: u8,
    /// Its status, as on the wire.
    pub status: String,
    /// The worker that holds its lease.
    pub worker: Option<String>,
    /// The end of its lease.
    pub lease_until: Option<Millis>,
    /// Number of its latest claim; `None` if the interface does not show it.
    pub fence: Option<Fence>,
    /// Failed attempts.
    pub attempts: u32,
    /// Upper bound on `attempts`.
    pub max_attempts: u32,
    /// When it becomes claimable.
    pub visible_at: Option<Millis>,
    /// When the running attempt reaches its maximum run time.
    pub run_until: Option<Millis>,
    /// Wall-clock time of its last change.
    pub updated_at: Millis,
}

/// The server's tasks at the end, listed after all faults are over.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Final {
    /// The server's clock.
    pub at: Millis,
    /// The shortest retention that was ever in force.
    pub retention: Millis,
    /// Every task.
    pub tasks: Vec<Listed>,
}

/// A task at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// The task.
    pub task: Seen,
    /// It is dead-lettered.
    pub dead: bool,
    /// A digest of its result, if it has one.
    pub result: Option<Digest>,
    /// Whether a callback is kept for it, pending or failed.
    pub callback: bool,
}

/// Everything that clients know.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// The operations, in the order in which their outcomes became known.
    pub lines: Vec<Line>,
    /// The server's tasks at the end, once they were listed.
    pub end: Option<Final>,
}

impl Line {
    /// The line as text, without its end.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// When, where and with what answer the server did it, if it did.
    pub fn acked(&self) -> Option<(Millis, ShardId, &Answer)> {
        match &self.outcome {
            Outcome::Acked { at, shard, answer } => Some((*at, *shard, answer)),
            _ => None,
        }
    }

    /// Whether its outcome is unknown.
    pub fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }
}

impl Answer {
    /// Removes the fences, for interfaces that do not show them.
    pub fn without_fences(mut self) -> Answer {
        match &mut self {
            Answer::Enqueued(made) => made.iter_mut().for_each(|made| {
                if let Made::Created(seen) | Made::Repeated(seen) = made {
                    seen.fence = None;
                }
            }),
            Answer::Claimed(tasks) => tasks.iter_mut().for_each(|seen| seen.fence = None),
            Answer::Task(seen) => seen.fence = None,
            Answer::Done | Answer::Extended(_) | Answer::Result(_) | Answer::Returned(_) => {}
        }
        self
    }
}

mod id_text {
    use codeq_core::id::TaskId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(id: &TaskId, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(id)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TaskId, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
