//! The `Cleanup` command, which [`crate::command::BulkPartV1`] replaced: only replayed from old logs.

use crate::bulk::Verdict;
use crate::command::Cleanup;
use crate::keys::{self, QueueId, Seq};
use crate::kv::{Kv, KvError};
use crate::limits::BULK_MAX;
use crate::moment::Millis;
use crate::place::Place;
use crate::reply::{Bulk, Reply};
use crate::rows::TaskRow;
use crate::step::Step;

impl<K: Kv> Step<'_, K> {
    pub(crate) fn cleanup(&mut self, command: &Cleanup) -> Result<Reply, KvError> {
        let queues: Vec<QueueId> =
            self.state.queues_of(&command.tenant).map(|(id, _)| id).collect();
        let limit = command.limit.min(BULK_MAX) as usize;
        let (mut done, mut last) = (0, Seq(0));
        for queue in queues {
            for place in [Place::Completed, Place::Failed, Place::Dead] {
                let left = limit - done;
                if left == 0 {
                    break;
                }
                let old = |seq, row: &TaskRow| self.is_old(seq, row, command.before);
                let (numbers, seen) = self.listed(queue, place, Seq(0), left, old)?;
                last = last.max(seen);
                done += numbers.len();
                for seq in numbers {
                    if let Some(row) = TaskRow::load(self.kv, keys::task(seq))? {
                        self.remove(seq, &row)?;
                    }
                }
            }
        }
        Ok(Reply::Bulk(Bulk { done: done as u64, remaining: 0, last }))
    }

    /// Lists are in creation order, and a task cannot finish before it is created, so the first young task ends the
    /// scan.
    fn is_old(&self, seq: Seq, row: &TaskRow, before: Millis) -> Result<Verdict, KvError> {
        if row.created_at >= before {
            return Ok(Verdict::Stop);
        }
        let over = row.finish.as_ref().is_some_and(|end| end.at < before);
        Ok(Verdict::take_if(over && !self.awaits_callback(seq, row)?))
    }
}
