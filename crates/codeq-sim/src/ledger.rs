//! What clients know: every operation that they asked for, and what came of it.
//!
//! The history checkers read nothing else, so the same checkers serve the simulator and a harness that
//! drives a real server: another process appends one JSON line per operation to a file ([`Line`]) and a
//! judge reads them back ([`Ledger::parse`]). An operation whose answer never came is [`Outcome::Unknown`]:
//! it may have happened at any time since it was asked for, or never.

use codeq_core::command::Millis;
use codeq_core::id::TaskId;
use serde::{Deserialize, Serialize};

use crate::rng::mix;

/// One operation of one client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When it was asked for, on the ledger's own monotone clock.
    pub invoked: u64,
    /// When its outcome was known, on the same clock. Never below `invoked`.
    pub done: u64,
    /// What was asked for.
    pub op: Op,
    /// What came of it.
    pub outcome: Outcome,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Make tasks.
    Enqueue {
        /// Whose.
        tenant: String,
        /// The tasks.
        tasks: Vec<Wanted>,
    },
    /// Lease tasks.
    Claim {
        /// Whose.
        tenant: String,
        /// For whom.
        worker: String,
        /// From which queues; none means any.
        commands: Option<Vec<String>>,
    },
    /// Extend a lease.
    Heartbeat(Ref),
    /// Finish a task with the result of this digest.
    Submit(Ref, Digest),
    /// Give a task back as failed.
    Nack(Ref),
    /// Give a task back; the flag says whether an attempt is spent.
    Abandon(Ref, bool),
    /// Cancel a task.
    Cancel(Ref),
    /// Return one task that did not end well.
    ReplayOne(Ref),
    /// Return tasks of a queue that did not end well.
    ReplayQueue(Queue),
    /// Remove the dead-lettered tasks of a queue.
    PurgeDead(Queue),
    /// Finish the waiting tasks of a queue as cancelled.
    PurgeWaiting(Queue),
    /// Remove finished tasks of a tenant.
    Cleanup {
        /// Whose.
        tenant: String,
    },
    /// Say what became of a result callback.
    Callback(Ref, Delivered),
    /// Something that no history checker looks at.
    Other(String),
}

/// A task as an operation names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ref {
    /// The tenant of the caller.
    pub tenant: String,
    /// The caller.
    pub worker: String,
    /// The task, by the text of its id.
    #[serde(with = "id_text")]
    pub id: TaskId,
}

/// A queue as an operation names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Queue {
    /// Whose.
    pub tenant: String,
    /// The command in lower case.
    pub command: String,
}

/// A task that a client wants made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The command as sent.
    pub command: String,
    /// A digest of the payload.
    pub payload: Digest,
    /// The idempotency key.
    pub key: Option<String>,
    /// The result is to be posted somewhere.
    pub webhook: bool,
    /// The ceiling of attempts that was asked for.
    pub max_attempts: Option<u32>,
    /// Not before this moment, or for this long, as asked for.
    pub not_before: Option<NotBefore>,
}

/// How a client put a task into the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotBefore {
    /// At a date of the server's wall clock.
    At(Millis),
    /// After so long.
    After(Millis),
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivered {
    /// The receiver has it.
    Yes,
    /// It does not.
    No,
    /// It is to be sent again.
    Resend,
}

/// A digest of bytes, to compare them without keeping them.
pub type Digest = u64;

/// The digest of some bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    mix(&[codeq_core::id::fnv1a64(bytes), bytes.len() as u64])
}

/// The digest of the result of a completed task.
pub fn result_digest(result: &[u8]) -> Digest {
    digest(result) & !1
}

/// The digest of the error of a task that did not end well. It is that of no result.
pub fn error_digest(error: &str) -> Digest {
    digest(error.as_bytes()) | 1
}

/// The digest of a result with an error beside it.
pub fn both_digest(completed: bool, result: &[u8], error: &str) -> Digest {
    let both = mix(&[digest(result), digest(error.as_bytes())]);
    if completed { both & !1 } else { both | 1 }
}

/// Whether a digest is that of a task that did not end well.
pub fn is_failure(digest: Digest) -> bool {
    digest & 1 == 1
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The server did it.
    Acked {
        /// The server's clock when it did.
        at: Millis,
        /// The shard that did it.
        shard: u16,
        /// What it answered.
        answer: Answer,
    },
    /// The server refused: the operation changed nothing.
    Refused {
        /// The server's clock when it refused.
        at: Millis,
        /// Why, in short.
        code: String,
    },
    /// No answer came.
    Unknown,
}

/// What the server answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing that a checker needs.
    Done,
    /// One answer per task of an enqueue.
    Enqueued(Vec<Made>),
    /// The tasks that were leased.
    Claimed(Vec<Seen>),
    /// The new end of a lease.
    Extended(Millis),
    /// The stored result.
    Result(Digest),
    /// Where a task went that was given back.
    Returned(Back),
    /// The task after a cancel or a replay.
    Task(Seen),
}

/// What became of one task of an enqueue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Made {
    /// It was made.
    Created(Seen),
    /// Its key was known: this is the task of that key.
    Repeated(Seen),
    /// It was refused, and why.
    Refused(String),
}

/// Where a task went that its worker gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Back {
    /// To its queue, after this long.
    Requeued(Millis),
    /// To the dead letters.
    Dead,
    /// To its end: it had been cancelled.
    Cancelled,
}

/// A task as an answer shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Its id.
    #[serde(with = "id_text")]
    pub id: TaskId,
    /// Whose it is.
    pub tenant: String,
    /// The command as sent.
    pub command: String,
    /// A digest of its payload.
    pub payload: Digest,
    /// Its priority.
    pub priority: u8,
    /// Its status, in the words of the wire.
    pub status: String,
    /// The owner of its lease.
    pub worker: Option<String>,
    /// The end of its lease.
    pub lease_until: Option<Millis>,
    /// The number of its latest claim; none where the interface does not show it.
    pub fence: Option<u64>,
    /// Failed executions.
    pub attempts: u32,
    /// Their ceiling.
    pub max_attempts: u32,
    /// When it becomes claimable.
    pub visible_at: Option<Millis>,
    /// The date at which it last changed.
    pub updated_at: Millis,
}

/// What the server holds at the end, as listed after all faults are over.
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
    /// A callback is kept for it: still to be delivered, or as failed.
    pub callback: bool,
}

/// All that clients know.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// The operations in the order in which their outcomes became known.
    pub lines: Vec<Line>,
    /// The end, once it has been looked at.
    pub end: Option<Final>,
}

/// A line that does not parse.
#[derive(Debug, thiserror::Error)]
#[error("ledger line {number}: {reason}")]
pub struct BadLine {
    /// Which, from 1.
    pub number: usize,
    /// What is wrong.
    pub reason: String,
}

impl Line {
    /// The line as text, without its end.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// When and where the server did it, if it did.
    pub fn acked(&self) -> Option<(Millis, u16, &Answer)> {
        match &self.outcome {
            Outcome::Acked { at, shard, answer } => Some((*at, *shard, answer)),
            _ => None,
        }
    }

    /// Whether it may have happened without an answer.
    pub fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }
}

impl Answer {
    /// Leaves out the fences, as an interface does that does not show them.
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

impl Ledger {
    /// Reads lines back; a last line that was cut short (its writer died) is left out.
    pub fn parse(text: &str) -> Result<Ledger, BadLine> {
        let mut lines = Vec::new();
        let whole = text.rfind('\n').map_or("", |end| text.get(..end).unwrap_or(""));
        for (number, line) in (1..).zip(whole.lines()) {
            let line = serde_json::from_str(line)
                .map_err(|error| BadLine { number, reason: error.to_string() })?;
            lines.push(line);
        }
        Ok(Ledger { lines, end: None })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_a_cut_one_is_left_out() {
        let line = Line {
            invoked: 1,
            done: 2,
            op: Op::Submit(
                Ref { tenant: "t".into(), worker: "w".into(), id: TaskId::new(7, 9) },
                digest(b"{}"),
            ),
            outcome: Outcome::Refused { at: 5, code: "not-owner".into() },
        };
        let text = format!("{0}\n{0}\n{1}", line.to_text(), &line.to_text()[..10]);
        let ledger = Ledger::parse(&text).unwrap();
        assert_eq!(ledger.lines, [line.clone(), line]);
        assert_eq!(Ledger::parse("{}\n").unwrap_err().number, 1);
    }
}
