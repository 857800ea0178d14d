//! The durable rows. Every field here is on disk; state that exists only in memory is in `queue` and `state`.
//!
//! The order of fields is the format; `codec` explains how to change it. Rows of older versions are in `old_versions`.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::codec::{
    DecodeError, VERSION, as_bytes, decode, decode_grown, decode_row, encode_row, row_error,
    strip_version,
};
use crate::command::{Artifact, Fence};
use crate::history::History;
use crate::id::TaskId;
use crate::keys::{self, Order, QueueId, Seq};
use crate::kv::{Key, KvError, KvRead, Table};
use crate::limits::{PRIORITIES, TASK_ROWS_BYTES};
use crate::moment::{Millis, Moment};
use crate::place::{Place, TaskState};
use crate::record::{Hidden, Record, RecordKind};
use crate::settings::Settings;
use crate::topic::Topic;

mod old_versions;

use old_versions::{MetaRowV2, QueueRowV1, QueueRowV2, QueueRowV3};

/// The mutable part of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    /// The random bits of its id.
    pub salt: u64,
    /// The queue's number.
    pub queue: QueueId,
    /// Where it is. Authoritative: status and lists follow from it.
    pub place: Place,
    /// 0..=9.
    pub priority: u8,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Upper bound on `attempts`.
    pub max_attempts: u32,
    /// Grows with every claim.
    pub fence: Fence,
    /// Order number in the queue, while pending.
    pub order: Order,
    /// Payload size in bytes.
    pub size: u32,
    /// Wall-clock time of its creation.
    pub created_at: Millis,
    /// Wall-clock time of its last change.
    pub updated_at: Millis,
    /// When its delay ends, by engine time. 0 if it is not delayed or waits for `run_at`.
    pub visible_at: Millis,
    /// Its lease, while in progress.
    pub lease: Option<Lease>,
    /// Cancellation was requested: its worker should stop.
    pub cancel_requested: bool,
    /// The error of the last failed attempt.
    pub error: Option<Arc<str>>,
    /// How it ended, once finished.
    pub finish: Option<Finish>,
    /// It has a webhook.
    pub has_webhook: bool,
    /// It was created with an idempotency key.
    pub has_key: bool,
    /// What happened to it.
    pub history: History,
    /// Never pending before this wall-clock time; 0 if not set. Since version 2.
    pub run_at: Millis,
    /// When it was created, by engine time. Since version 2.
    pub created_at_engine: Millis,
    /// Longest time that an attempt may run; 0 means its queue's policy decides. Since version 3.
    pub max_run: Millis,
    /// The limit of the running attempt: the task's own or else its queue's, as of the claim. 0 if it has none. Since
    /// version 3.
    pub run_limit: Millis,
    /// When the running attempt reaches `run_limit`, by engine time; its lease never ends later. 0 if it has none.
    /// Since version 3.
    pub run_until: Millis,
}

/// Who runs a task, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The worker that holds the lease.
    pub worker: Arc<str>,
    /// The last moment of the lease, by engine time; the lease is over once time is past this.
    pub until: Millis,
}

/// How a task ended, including its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finish {
    /// Wall-clock time.
    pub at: Millis,
    /// When retention removes it, by engine time.
    pub expires_at: Millis,
    /// Who submitted it; `None` if the server ended the task.
    pub worker: Option<Arc<str>>,
    /// The result, if the worker sent one.
    pub result: Option<Bytes>,
    /// What went wrong, if anything.
    pub error: Option<Arc<str>>,
    /// Named outputs stored elsewhere.
    pub artifacts: Vec<Artifact>,
}

/// What the producer sent; written once. Borrowed on read, so that a claim does not copy the payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BodyRow<'a> {
    /// The command in the letter case that the producer used.
    pub command: &'a str,
    /// URL that receives the result.
    pub webhook: Option<&'a str>,
    /// As the producer sent it.
    pub idempotency_key: Option<&'a str>,
    /// W3C `traceparent` header.
    pub trace_parent: Option<&'a str>,
    /// W3C `tracestate` header.
    pub trace_state: Option<&'a str>,
    /// The dead-lettered task that this one is a copy of.
    pub origin: Option<TaskId>,
    /// As the producer sent it.
    #[serde(borrow, serialize_with = "as_bytes")]
    pub payload: &'a [u8],
}

/// A queue: one tenant's tasks of one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueRow {
    /// The tenant that owns it.
    pub tenant: Arc<str>,
    /// The command in ASCII lowercase.
    pub name: Arc<str>,
    /// Claims are paused.
    pub paused: bool,
    /// The policy, if an operator set one.
    pub topic: Option<Topic>,
    /// Number of tasks in each place.
    pub counts: Counts,
}

/// Number of a queue's tasks in each place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Pending tasks by priority, including those of a paused queue.
    pub pending: [u64; PRIORITIES],
    /// Waiting for a delay or `runAt`.
    pub delayed: u64,
    /// Leased.
    pub in_progress: u64,
    /// Succeeded and not yet removed.
    pub completed: u64,
    /// Failed by a worker and not yet removed.
    pub failed: u64,
    /// Dead-lettered and not yet removed.
    pub dead: u64,
    /// Payload bytes of the tasks that are not finished.
    pub live_bytes: u64,
    /// Bytes of all tasks, including finished ones: see [`TaskRow::stored_bytes`].
    pub stored_bytes: u64,
    /// Cancelled and not yet removed. Since version 4; before, `failed` included them.
    pub cancelled: u64,
}

/// The task created with an idempotency key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdempotencyRow {
    /// Its id.
    pub id: TaskId,
    /// When it was created.
    pub created_at: Millis,
    /// Hash of its command and payload.
    pub fingerprint: u128,
    /// How the task ended, once it is removed.
    pub gone: Option<Place>,
    /// Whether the fingerprint compares JSON values (since version 2) or bytes.
    #[serde(skip)]
    pub by_value: bool,
}

/// A result callback that is not delivered yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutboxRow {
    /// The finished task.
    pub id: TaskId,
    /// Delivery attempts so far.
    pub attempts: u32,
    /// When the next attempt is due, by engine time; `None` once the callback has failed.
    pub next_at: Option<Millis>,
    /// The receiver's last HTTP status.
    pub last_status: Option<u16>,
    /// The error of the last attempt.
    pub last_error: Option<Arc<str>>,
}

/// A record; see the `record` module.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordRow {
    /// What it is for.
    pub kind: RecordKind,
    /// The tenant that owns it.
    pub tenant: Arc<str>,
    /// Unique within the tenant and kind.
    pub name: Arc<str>,
    /// The record's content, opaque to the rules.
    pub value: Bytes,
    /// Starts at 1 and grows by one with every put.
    pub revision: u64,
    /// Wall-clock time of its creation.
    pub created_at: Millis,
    /// Wall-clock time of the last put.
    pub updated_at: Millis,
    /// When it expires, by engine time.
    pub expires_at: Option<Millis>,
}

// The value may be a secret.
impl fmt::Debug for RecordRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordRow")
            .field("kind", &self.kind)
            .field("tenant", &self.tenant)
            .field("name", &self.name)
            .field("value", &Hidden(&self.value))
            .field("revision", &self.revision)
            .field("created_at", &self.created_at)
            .field("updated_at", &self.updated_at)
            .field("expires_at", &self.expires_at)
            .finish()
    }
}

/// The shard's counters and settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetaRow {
    /// The next number of a task, an order or a record.
    pub next_seq: Seq,
    /// The next queue number.
    pub next_queue: QueueId,
    /// Engine time of the latest command that changed something.
    pub now: Millis,
    /// The settings in force.
    pub settings: Settings,
    /// Number of the next transition.
    pub transitions: u64,
    /// Wall time of the latest command that changed something. Since version 2.
    pub wall: Millis,
}

impl Counts {
    /// Pending tasks of all priorities, including those of a paused queue.
    pub fn ready(&self) -> u64 {
        self.pending.iter().sum()
    }

    /// Tasks that are not finished.
    pub fn live(&self) -> u64 {
        self.ready() + self.delayed + self.in_progress
    }

    /// All tasks.
    pub fn total(&self) -> u64 {
        self.live() + self.completed + self.failed + self.cancelled + self.dead
    }

    /// Number of tasks in the list of a place; pending and delayed tasks share a list.
    pub fn of(&self, place: Place) -> u64 {
        match place {
            Place::Pending | Place::Delayed => self.ready() + self.delayed,
            Place::InProgress => self.in_progress,
            Place::Completed => self.completed,
            Place::Failed => self.failed + self.cancelled,
            Place::Dead => self.dead,
        }
    }

    /// The counter that a task belongs to.
    #[allow(clippy::indexing_slicing, reason = "the index is clamped to the array")]
    pub fn slot(&mut self, row: &TaskRow) -> &mut u64 {
        match row.state() {
            TaskState::Ready => {
                let index = usize::from(row.priority).min(PRIORITIES - 1);
                &mut self.pending[index]
            }
            TaskState::Delayed => &mut self.delayed,
            TaskState::Running => &mut self.in_progress,
            TaskState::Completed => &mut self.completed,
            TaskState::Failed => &mut self.failed,
            TaskState::Cancelled => &mut self.cancelled,
            TaskState::Dead => &mut self.dead,
        }
    }
}

macro_rules! plain_row {
    ($row:ty, $table:expr, $capacity:expr) => {
        impl $row {
            /// Encodes the row.
            pub fn encode(&self) -> Bytes {
                encode_row(self, VERSION, $capacity)
            }

            /// Decodes the row at `key`.
            pub fn decode(key: Key, bytes: &[u8]) -> Result<Self, KvError> {
                decode_row($table, key, bytes)
            }
        }
        loaded_row!($row, $table);
    };
}

macro_rules! loaded_row {
    ($row:ty, $table:expr) => {
        impl $row {
            /// Reads the row at `key`.
            pub fn load<K: KvRead + ?Sized>(kv: &K, key: Key) -> Result<Option<Self>, KvError> {
                kv.borrow($table, key)?.map(|bytes| Self::decode(key, &bytes)).transpose()
            }
        }
    };
}

loaded_row!(TaskRow, Table::Task);
loaded_row!(MetaRow, Table::Meta);
loaded_row!(IdempotencyRow, Table::Idempotency);
plain_row!(OutboxRow, Table::Outbox, 64);
plain_row!(RecordRow, Table::Record, 512);

impl IdempotencyRow {
    const BY_VALUE: u8 = 2;

    /// Encodes the row.
    pub fn encode(&self) -> Bytes {
        encode_row(self, if self.by_value { Self::BY_VALUE } else { VERSION }, 64)
    }

    /// Decodes the row at `key`.
    pub fn decode(key: Key, bytes: &[u8]) -> Result<IdempotencyRow, KvError> {
        let Some((&IdempotencyRow::BY_VALUE, body)) = bytes.split_first() else {
            return decode_row(Table::Idempotency, key, bytes);
        };
        let row: Result<IdempotencyRow, _> = decode(body);
        let row = row.map_err(|error| row_error(Table::Idempotency, key, error))?;
        Ok(IdempotencyRow { by_value: true, ..row })
    }
}

impl QueueRow {
    const VERSION: u8 = 4;

    /// Encodes the row.
    pub fn encode(&self) -> Bytes {
        encode_row(self, Self::VERSION, 128)
    }

    /// Decodes the row at `key`. Version 1 does not count the bytes of finished tasks, and versions before 4 count
    /// cancelled tasks as failed.
    pub fn decode(key: Key, bytes: &[u8]) -> Result<QueueRow, KvError> {
        let decoded = match bytes.split_first() {
            Some((&QueueRow::VERSION, body)) => decode(body),
            Some((3, body)) => decode::<QueueRowV3>(body).map(QueueRow::from),
            Some((2, body)) => decode::<QueueRowV2>(body).map(QueueRow::from),
            _ => strip_version(bytes).and_then(decode::<QueueRowV1>).map(QueueRow::from),
        };
        decoded.map_err(|error| row_error(Table::Queue, key, error))
    }

    /// Whether the bytes are of version 1, which does not count the bytes of finished tasks.
    pub(crate) fn lacks_finished_bytes(bytes: &[u8]) -> bool {
        bytes.first() == Some(&VERSION)
    }

    /// Whether the bytes are of a version before 4, which counts cancelled tasks as failed.
    pub(crate) fn mixes_cancelled(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|version| *version < 4)
    }
}

impl TaskRow {
    const VERSION: u8 = 3;
    /// How many fields versions 2 and 3 added.
    const ADDED: [usize; 2] = [2, 3];

    /// Encodes the row.
    pub fn encode(&self) -> Bytes {
        encode_row(self, Self::VERSION, 200)
    }

    /// Decodes the row at `key`.
    pub fn decode(key: Key, bytes: &[u8]) -> Result<TaskRow, KvError> {
        let mut row: TaskRow = decode_grown(Table::Task, key, bytes, &Self::ADDED)?;
        if row.created_at_engine == 0 {
            // Version 1 had a single clock.
            row.created_at_engine = row.created_at;
        }
        Ok(row)
    }

    /// Bytes that the task counts against its tenant's quota: payload, result, and an allowance for its rows.
    pub fn stored_bytes(&self) -> u64 {
        let finish = self.finish.as_ref().map_or(0, |finish| {
            let artifact = |artifact: &Artifact| artifact.name.len() + artifact.url.len();
            finish.result.as_ref().map_or(0, Bytes::len)
                + finish.error.as_ref().map_or(0, |error| error.len())
                + finish.artifacts.iter().map(artifact).sum::<usize>()
        });
        TASK_ROWS_BYTES + u64::from(self.size) + finish as u64
    }

    /// The task's state.
    pub fn state(&self) -> TaskState {
        match self.place {
            Place::Pending => TaskState::Ready,
            Place::Delayed => TaskState::Delayed,
            Place::InProgress => TaskState::Running,
            Place::Completed => TaskState::Completed,
            Place::Failed if self.is_cancelled() => TaskState::Cancelled,
            Place::Failed => TaskState::Failed,
            Place::Dead => TaskState::Dead,
        }
    }

    /// Whether the task ended as cancelled. A failed task's result names its worker; a cancelled task's names none.
    pub fn is_cancelled(&self) -> bool {
        let by_worker = self.finish.as_ref().is_some_and(|finish| finish.worker.is_some());
        self.place == Place::Failed && !by_worker
    }

    /// Ends the running attempt: its lease, and its maximum run time.
    pub(crate) fn end_attempt(&mut self) {
        self.lease = None;
        self.run_limit = 0;
        self.run_until = 0;
    }

    /// The end of a lease that should last until `until`: the attempt's maximum run time may end it earlier.
    pub(crate) fn latest_end(&self, until: Millis) -> Millis {
        if self.run_until > 0 { until.min(self.run_until) } else { until }
    }

    /// Whether the lease lasts as long as the attempt may run.
    pub(crate) fn runs_until_limit(&self) -> bool {
        let until = self.lease.as_ref().map_or(0, |lease| lease.until);
        self.run_until > 0 && until >= self.run_until
    }

    /// The task's id, given its number.
    pub fn id(&self, seq: Seq) -> TaskId {
        TaskId::new(seq, self.salt)
    }
}

impl MetaRow {
    const VERSION: u8 = 3;

    /// Encodes the row.
    pub fn encode(&self) -> Bytes {
        encode_row(self, Self::VERSION, 64)
    }

    /// Decodes the row at `key`.
    pub fn decode(key: Key, bytes: &[u8]) -> Result<MetaRow, KvError> {
        let mut row: MetaRow = match bytes.split_first() {
            Some((&MetaRow::VERSION, body)) => {
                decode(body).map_err(|error| row_error(Table::Meta, key, error))?
            }
            _ => decode_grown::<MetaRowV2>(Table::Meta, key, bytes, &[1])?.into(),
        };
        if row.wall == 0 {
            row.wall = row.now;
        }
        Ok(row)
    }

    /// The moment of the latest command that changed something.
    pub fn moment(&self) -> Moment {
        Moment { now: self.now, wall: self.wall }
    }
}

impl<'a> BodyRow<'a> {
    /// Encodes the row.
    pub fn encode(&self) -> Bytes {
        let names = self.command.len() + self.webhook.map_or(0, str::len);
        encode_row(self, VERSION, self.payload.len() + names + 64)
    }

    /// Decodes the row of task number `seq`.
    pub fn decode(seq: Seq, bytes: &'a [u8]) -> Result<BodyRow<'a>, KvError> {
        strip_version(bytes)
            .and_then(|body| {
                postcard::from_bytes(body).map_err(|_| DecodeError::Malformed("does not decode"))
            })
            .map_err(|error| row_error(Table::Body, keys::task(seq), error))
    }
}

impl From<RecordRow> for Record {
    fn from(row: RecordRow) -> Record {
        Record {
            tenant: row.tenant,
            name: row.name,
            value: row.value,
            revision: row.revision,
            created_at: row.created_at,
            updated_at: row.updated_at,
            expires_at: row.expires_at,
        }
    }
}
