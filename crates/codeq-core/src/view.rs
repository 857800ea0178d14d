//! Tasks and results as clients see them.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::command::{Artifact, Fence};
use crate::id::TaskId;
use crate::keys::{self, Seq};
use crate::kv::{KvError, KvRead, Table};
use crate::moment::{Millis, Moment};
use crate::place::{Place, Status};
use crate::rows::{BodyRow, QueueRow, TaskRow};

/// A task with everything that clients can see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Carries the task's number.
    pub id: TaskId,
    /// The tenant that owns it.
    pub tenant: Arc<str>,
    /// The command in the letter case that the producer used.
    pub command: Arc<str>,
    /// The payload, byte for byte.
    pub payload: Bytes,
    /// 0..=9.
    pub priority: u8,
    /// URL that receives the result.
    pub webhook: Option<Arc<str>>,
    /// W3C `traceparent` header.
    pub trace_parent: Option<Arc<str>>,
    /// W3C `tracestate` header.
    pub trace_state: Option<Arc<str>>,
    /// The dead-lettered task that this one is a copy of.
    pub origin: Option<TaskId>,
    /// Where it is.
    pub place: Place,
    /// The worker that holds its lease.
    pub worker: Option<Arc<str>>,
    /// The end of its lease.
    pub lease_until: Option<Millis>,
    /// The number of its latest claim.
    pub fence: Fence,
    /// Failed attempts.
    pub attempts: u32,
    /// Upper bound on `attempts`.
    pub max_attempts: u32,
    /// The error of the last failed attempt.
    pub error: Option<Arc<str>>,
    /// Cancellation was requested: its worker should stop.
    pub cancel_requested: bool,
    /// When it was created.
    pub created_at: Millis,
    /// When it last changed.
    pub updated_at: Millis,
    /// When it becomes claimable, while delayed.
    pub visible_at: Option<Millis>,
    /// Longest time that an attempt may run, if the task sets one.
    pub max_run: Option<Millis>,
    /// When the running attempt reaches its maximum run time.
    pub run_until: Option<Millis>,
}

/// The result of a finished task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultRecord {
    /// The task's id.
    pub id: TaskId,
    /// `COMPLETED` or `FAILED`.
    pub status: Status,
    /// The result, byte for byte, if the worker sent one.
    pub result: Option<Bytes>,
    /// What went wrong, if anything.
    pub error: Option<Arc<str>>,
    /// Named outputs stored elsewhere.
    pub artifacts: Vec<Artifact>,
    /// When it ended.
    pub completed_at: Millis,
}

impl Task {
    /// Its approximate size in memory and in a response.
    pub fn bytes(&self) -> usize {
        const BASE: usize = 512;
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let trace = text(&self.trace_parent) + text(&self.trace_state);
        let texts = self.command.len() + text(&self.webhook) + text(&self.error) + trace;
        BASE + self.payload.len() + texts
    }

    /// Builds a task from its rows. `at` converts its deadlines to dates.
    pub fn from_rows<K: KvRead + ?Sized>(
        kv: &K,
        seq: Seq,
        row: &TaskRow,
        queue: &QueueRow,
        at: Moment,
    ) -> Result<Task, KvError> {
        let bytes = kv.borrow(Table::Body, keys::task(seq))?.ok_or_else(|| KvError::Corrupt {
            table: Table::Body,
            key: keys::task(seq),
            reason: "task without body".to_owned(),
        })?;
        let body = BodyRow::decode(seq, &bytes)?;
        let payload = bytes.slice_ref(body.payload);
        Ok(Task::from_parts(seq, row, queue, &body, payload, at))
    }

    pub(crate) fn from_parts(
        seq: Seq,
        row: &TaskRow,
        queue: &QueueRow,
        body: &BodyRow<'_>,
        payload: Bytes,
        at: Moment,
    ) -> Task {
        let command = if *queue.name == *body.command {
            Arc::clone(&queue.name)
        } else {
            Arc::from(body.command)
        };
        Task {
            id: row.id(seq),
            tenant: Arc::clone(&queue.tenant),
            command,
            payload,
            priority: row.priority,
            webhook: body.webhook.map(Arc::from),
            trace_parent: body.trace_parent.map(Arc::from),
            trace_state: body.trace_state.map(Arc::from),
            origin: body.origin,
            place: row.place,
            worker: row.lease.as_ref().map(|lease| Arc::clone(&lease.worker)),
            lease_until: row.lease.as_ref().map(|lease| at.date_of(lease.until)),
            fence: row.fence,
            attempts: row.attempts,
            max_attempts: row.max_attempts,
            error: row.error.clone(),
            cancel_requested: row.cancel_requested,
            created_at: row.created_at,
            updated_at: row.updated_at,
            visible_at: (row.place == Place::Delayed).then(|| match row.visible_at {
                0 => row.run_at,
                // After its delay, a task may still have to wait for its `runAt`.
                delayed => at.date_of(delayed).max(row.run_at),
            }),
            max_run: Some(row.max_run).filter(|max_run| *max_run > 0),
            run_until: (row.run_until > 0).then(|| at.date_of(row.run_until)),
        }
    }
}

impl ResultRecord {
    /// The result of a finished task; `None` while it is not finished.
    pub fn from_row(seq: Seq, row: &TaskRow) -> Option<ResultRecord> {
        let finish = row.finish.as_ref()?;
        Some(ResultRecord {
            id: row.id(seq),
            status: row.place.status(),
            result: finish.result.clone(),
            error: finish.error.clone(),
            artifacts: finish.artifacts.clone(),
            completed_at: finish.at,
        })
    }
}
