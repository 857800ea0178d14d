//! The `Purge` command, which [`crate::command::BulkPartV1`] replaced: only replayed from old logs.

use crate::bulk::Verdict;
use crate::command::{Purge, PurgeTarget};
use crate::history::Event;
use crate::keys::{self, Seq};
use crate::kv::{Kv, KvError};
use crate::limits::BULK_MAX;
use crate::place::Place;
use crate::reply::{Bulk, Reply};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn purge(&mut self, command: &Purge) -> Result<Reply, KvError> {
        let Some(queue) = self.state.queue_id(&command.tenant, &command.command) else {
            return Ok(Reply::Bulk(Bulk { done: 0, remaining: 0, last: Seq(0) }));
        };
        let limit = command.limit.min(BULK_MAX) as usize;
        let place = match command.target {
            PurgeTarget::Dead => Place::Dead,
            PurgeTarget::Waiting => Place::Pending,
        };
        // Delivering a callback reads the task's rows, so keep them until the callback is delivered.
        let wanted = |seq, row: &TaskRow| {
            let kept = place == Place::Dead && self.awaits_callback(seq, row)?;
            Ok(Verdict::take_if(!kept))
        };
        let (numbers, last) = self.listed(queue, place, Seq(0), limit, wanted)?;
        let done = numbers.len() as u64;
        for seq in numbers {
            let Some(row) = TaskRow::load(self.kv, keys::task(seq))? else {
                continue;
            };
            match command.target {
                PurgeTarget::Dead => self.remove(seq, &row)?,
                PurgeTarget::Waiting => {
                    let why = Some("purge".into());
                    let cause = Cause { event: Event::Cancelled, who: Some(&command.by), why };
                    self.finish_cancelled(seq, row, cause)?;
                }
            }
        }
        let remaining = self.state.queue_row(queue).map_or(0, |row| match command.target {
            PurgeTarget::Dead => row.counts.dead,
            PurgeTarget::Waiting => row.counts.ready() + row.counts.delayed,
        });
        Ok(Reply::Bulk(Bulk { done, remaining, last }))
    }
}
