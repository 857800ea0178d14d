//! Tasks and results as the outside sees them.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::command::{Artifact, Millis};
use crate::id::TaskId;
use crate::keys;
use crate::kv::{KvError, KvRead, Table};
use crate::moment::Moment;
use crate::place::{Place, Status};
use crate::rows::{BodyRow, QueueRow, TaskRow};

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Whose it is.
    pub tenant: Arc<str>,
    /// The command as sent.
    pub command: Arc<str>,
    /// The payload as sent.
    pub payload: Bytes,
    /// 0..=9.
    pub priority: u8,
    /// Where the result is posted.
    pub webhook: Option<Arc<str>>,
    /// W3C trace context.
    pub trace_parent: Option<Arc<str>>,
    /// W3C trace context.
    pub trace_state: Option<Arc<str>>,
    /// The task whose dead letter this is.
    pub origin: Option<TaskId>,
    /// Where it is.
    pub place: Place,
    /// The owner of its lease.
    pub worker: Option<Arc<str>>,
    /// The end of its lease.
    pub lease_until: Option<Millis>,
    /// The number of its latest claim.
    pub fence: u64,
    /// Failed executions.
    pub attempts: u32,
    /// The ceiling of `attempts`.
    pub max_attempts: u32,
    /// Its last failure.
    pub error: Option<Arc<str>>,
    /// Its worker is asked to stop.
    pub cancel_requested: bool,
    /// When it was made.
    pub created_at: Millis,
    /// When it last changed.
    pub updated_at: Millis,
    /// When it becomes claimable, while delayed.
    pub visible_at: Option<Millis>,
}

/// The one result of a finished task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultRecord {
    /// The task.
    pub id: TaskId,
    /// `COMPLETED` or `FAILED`.
    pub status: Status,
    /// The result of a completed task, as sent.
    pub result: Option<Bytes>,
    /// The error of a failed one.
    pub error: Option<Arc<str>>,
    /// Its outputs.
    pub artifacts: Vec<Artifact>,
    /// When it ended.
    pub completed_at: Millis,
}

impl Task {
    /// About how many bytes it takes, in memory and in an answer.
    pub fn bytes(&self) -> usize {
        const BASE: usize = 512;
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let trace = text(&self.trace_parent) + text(&self.trace_state);
        let texts = self.command.len() + text(&self.webhook) + text(&self.error) + trace;
        BASE + self.payload.len() + texts
    }

    /// Puts a task together from its rows. `at` says which dates its deadlines are.
    pub fn from_rows<K: KvRead + ?Sized>(
        kv: &K,
        seq: u64,
        row: &TaskRow,
        queue: &QueueRow,
        at: Moment,
    ) -> Result<Task, KvError> {
        let bytes = kv.get(Table::Body, keys::task(seq))?.ok_or_else(|| KvError::Corrupt {
            table: Table::Body,
            key: keys::task(seq),
            reason: "task without body".to_owned(),
        })?;
        let body = BodyRow::decode(seq, &bytes)?;
        let payload = bytes.slice_ref(body.payload);
        Ok(Task::from_parts(seq, row, queue, &body, payload, at))
    }

    pub(crate) fn from_parts(
        seq: u64,
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
                // After a delay a task may still have to wait for its date.
                delayed => at.date_of(delayed).max(row.run_at),
            }),
        }
    }
}

impl ResultRecord {
    /// The result of a finished task; none while it is not.
    pub fn from_row(seq: u64, row: &TaskRow) -> Option<ResultRecord> {
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
