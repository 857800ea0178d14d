//! Replay: returns dead-lettered, failed and cancelled tasks to their queue.

use std::sync::Arc;

use crate::bulk::{Budget, Verdict};
use crate::command::{Replay, ReplayTarget};
use crate::history::Event;
use crate::keys::{self, QueueId, Seq};
use crate::kv::{Kv, KvError};
use crate::limits::{BULK_MAX, BULK_SCAN_MAX};
use crate::place::Place;
use crate::reply::{Bulk, Rejection, Reply};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn replay(&mut self, command: &Replay) -> Result<Reply, KvError> {
        match &command.target {
            ReplayTarget::One(id) => {
                let seq = id.seq();
                let Some(row) = self.find(&command.tenant, *id)? else {
                    return Ok(Reply::Rejected(Rejection::NotFound));
                };
                match row.place {
                    Place::Dead | Place::Failed => {}
                    Place::Completed => return Ok(Reply::Rejected(Rejection::Completed)),
                    Place::Pending | Place::Delayed | Place::InProgress => {
                        return Ok(Reply::Rejected(Rejection::NotFinished));
                    }
                }
                let row = self.revive(seq, row, &command.by)?;
                Ok(Reply::Replayed(Box::new(self.view(seq, &row)?)))
            }
            ReplayTarget::Queue { command: name, error_contains, after, limit } => {
                let Some(queue) = self.state.queue_id(&command.tenant, name) else {
                    return Ok(Reply::Bulk(Bulk { done: 0, remaining: 0, last: *after }));
                };
                let wanted = |_, row: &TaskRow| {
                    let error = row.error.as_deref().unwrap_or_default();
                    let part = error_contains.as_deref();
                    Ok(Verdict::take_if(part.is_none_or(|part| error.contains(part))))
                };
                self.revive_some(queue, *after, (*limit).min(BULK_MAX), wanted, &command.by)
            }
        }
    }

    fn revive_some(
        &mut self,
        queue: QueueId,
        after: Seq,
        limit: u32,
        wanted: impl Fn(Seq, &TaskRow) -> Result<Verdict, KvError>,
        by: &Arc<str>,
    ) -> Result<Reply, KvError> {
        let mut done = 0;
        let (numbers, last) = self.listed(queue, Place::Dead, after, limit as usize, wanted)?;
        for seq in numbers {
            if let Some(row) = TaskRow::load(self.kv, keys::task(seq))? {
                self.revive(seq, row, by)?;
                done += 1;
            }
        }
        let remaining = self.queue(queue)?.row.counts.dead;
        Ok(Reply::Bulk(Bulk { done, remaining, last }))
    }

    /// Returns a finished task to its queue without its result and callback. Its history stays.
    pub(crate) fn revive(
        &mut self,
        seq: Seq,
        mut row: TaskRow,
        by: &Arc<str>,
    ) -> Result<TaskRow, KvError> {
        self.drop_callback(seq, &row)?;
        self.drop_artifacts(seq, &row);
        row.attempts = 0;
        row.cancel_requested = false;
        self.requeue(seq, row, 0, Cause::by(Event::Replayed, by))
    }

    /// Numbers of at most `limit` matching tasks of one list, in order, and the number of the last task visited. Only
    /// used to replay commands of older logs, which [`crate::command::BulkPartV1`] replaced.
    pub(crate) fn listed(
        &self,
        queue: QueueId,
        place: Place,
        after: Seq,
        limit: usize,
        wanted: impl Fn(Seq, &TaskRow) -> Result<Verdict, KvError>,
    ) -> Result<(Vec<Seq>, Seq), KvError> {
        let mut budget = Budget { take: limit, look: BULK_SCAN_MAX };
        let found = self.reader().search(queue, place, after, &mut budget, wanted)?;
        Ok((found.numbers, found.last))
    }
}
