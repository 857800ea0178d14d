//! Bulk operations in bounded parts: cleanup, purge and replay of many tasks.
//!
//! One part looks at a bounded number of rows over all queues of the call, so that a shard never stands still
//! for it. Whoever asks goes on where the part before stopped, with other tenants' commands in between.

use std::ops::Bound;
use std::sync::Arc;

use crate::command::{BulkFrom, BulkPart, BulkWork};
use crate::history::Event;
use crate::keys::{self, QueueId};
use crate::kv::{Direction, Kv, KvError, Table};
use crate::limits::{BULK_LOOK_MAX, BULK_LOOK_MIN, BULK_TAKE_MAX};
use crate::place::Place;
use crate::reply::{BulkDone, Reply};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};

/// What a bulk operation does about a task that it comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Touches it.
    Take,
    /// Leaves it.
    Skip,
    /// Looks no further: no later task is wanted either.
    Stop,
}

impl Look {
    pub fn take_if(wanted: bool) -> Look {
        if wanted { Look::Take } else { Look::Skip }
    }
}

/// How much a search may still do.
pub(crate) struct Budget {
    /// Tasks to be touched.
    pub take: usize,
    /// Rows to be looked at.
    pub look: usize,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.take == 0 || self.look == 0
    }
}

/// What a search of one list found.
pub(crate) struct Found {
    /// The tasks, in the order of their numbers.
    pub rows: Vec<(u64, TaskRow)>,
    /// The number of the last task that was looked at.
    pub last: u64,
    /// The list has nothing more that is wanted.
    pub ended: bool,
}

/// The lists of finished tasks, in the order in which a cleanup goes through them.
const FINISHED: [Place; 3] = [Place::Completed, Place::Failed, Place::Dead];

impl<K: Kv> Step<'_, K> {
    pub(crate) fn bulk_part(&mut self, command: &BulkPart) -> Result<Reply, KvError> {
        let mut budget = Budget {
            take: command.take.min(BULK_TAKE_MAX) as usize,
            look: command.look.clamp(BULK_LOOK_MIN, BULK_LOOK_MAX) as usize,
        };
        let (name, place) = match &command.work {
            BulkWork::Cleanup { .. } => {
                return self.cleanup_part(command, &mut budget).map(Reply::BulkPart);
            }
            BulkWork::PurgeDead { command } | BulkWork::Replay { command, .. } => {
                (command, Place::Dead)
            }
            BulkWork::PurgeWaiting { command } => (command, Place::Pending),
        };
        let Some(queue) = self.state.queue_id(&command.tenant, name) else {
            return Ok(Reply::BulkPart(BulkDone::default()));
        };
        let mut done = 0;
        let next =
            self.list_part(command, queue, place, command.from.after, &mut budget, &mut done)?;
        let next = next.map(|after| BulkFrom { after, ..BulkFrom::default() });
        Ok(Reply::BulkPart(BulkDone { done, next }))
    }

    /// Goes through the finished tasks of the tenant's queues, in the order of the queues' names.
    fn cleanup_part(
        &mut self,
        command: &BulkPart,
        budget: &mut Budget,
    ) -> Result<BulkDone, KvError> {
        let mut bulk = BulkDone::default();
        let from = &command.from;
        let start: &str = from.queue.as_deref().unwrap_or_default();
        let queues = self.state.queues_from(&command.tenant, Bound::Included(start));
        let queues: Vec<(Arc<str>, QueueId)> =
            queues.take(budget.look).map(|(name, id)| (Arc::clone(name), id)).collect();
        for (name, id) in &queues {
            let resumed = from.queue.as_ref() == Some(name);
            let at =
                |list: u8, after| Some(BulkFrom { queue: Some(Arc::clone(name)), list, after });
            let first = if resumed { from.list } else { 0 };
            if budget.is_spent() {
                bulk.next = at(first, if resumed { from.after } else { 0 });
                return Ok(bulk);
            }
            // A queue is looked at too: ten thousand empty ones are work.
            budget.look -= 1;
            for (list, place) in (0..).zip(FINISHED).skip(usize::from(first)) {
                let after = if resumed && list == from.list { from.after } else { 0 };
                let counts = self.state.queue_row(*id).map(|row| row.counts);
                if counts.is_none_or(|counts| counts.of(place) == 0) {
                    continue;
                }
                let next = self.list_part(command, *id, place, after, budget, &mut bulk.done)?;
                if let Some(after) = next {
                    bulk.next = at(list, after);
                    return Ok(bulk);
                }
            }
        }
        let more = queues.len() == command.look.clamp(BULK_LOOK_MIN, BULK_LOOK_MAX) as usize;
        if let (true, Some((name, _))) = (more, queues.last()) {
            let list = FINISHED.len() as u8;
            bulk.next = Some(BulkFrom { queue: Some(Arc::clone(name)), list, after: 0 });
        }
        Ok(bulk)
    }

    /// Does the work on one list. Returns where to go on, or none if the list is done with.
    fn list_part(
        &mut self,
        command: &BulkPart,
        queue: QueueId,
        place: Place,
        after: u64,
        budget: &mut Budget,
        done: &mut u64,
    ) -> Result<Option<u64>, KvError> {
        let wanted = |seq, row: &TaskRow| match &command.work {
            BulkWork::Cleanup { before } => self.is_old(seq, row, *before),
            // A callback that is still to be delivered needs its task: that one stays until it is.
            BulkWork::PurgeDead { .. } => Ok(Look::take_if(!self.awaits_callback(seq, row)?)),
            BulkWork::PurgeWaiting { .. } => Ok(Look::Take),
            BulkWork::Replay { error_contains, .. } => {
                let error = row.error.as_deref().unwrap_or_default();
                let part = error_contains.as_deref();
                Ok(Look::take_if(part.is_none_or(|part| error.contains(part))))
            }
        };
        let found = self.search(queue, place, after, budget, wanted)?;
        *done += found.rows.len() as u64;
        for (seq, was) in found.rows {
            match &command.work {
                BulkWork::Cleanup { .. } | BulkWork::PurgeDead { .. } => self.remove(seq, &was)?,
                BulkWork::PurgeWaiting { .. } => {
                    let why = Some("purge".into());
                    let cause = Cause { event: Event::Cancelled, who: Some(&command.by), why };
                    self.finish_cancelled(seq, was.clone(), &was, cause)?;
                }
                BulkWork::Replay { .. } => {
                    self.revive(seq, &was, &command.by)?;
                }
            }
        }
        Ok((!found.ended).then_some(found.last))
    }

    /// The tasks of one list that are wanted, in the order of their numbers, as far as the budget goes. Reads a
    /// page at a time.
    pub(crate) fn search(
        &self,
        queue: QueueId,
        place: Place,
        after: u64,
        budget: &mut Budget,
        wanted: impl Fn(u64, &TaskRow) -> Result<Look, KvError>,
    ) -> Result<Found, KvError> {
        const PAGE: usize = 256;
        let mut found = Found { rows: Vec::new(), last: after, ended: false };
        let mut page = Vec::new();
        while !budget.is_spent() {
            page.clear();
            let limit = PAGE.min(budget.look);
            let from = keys::index(queue, place, found.last.saturating_add(1));
            let to = keys::index(queue, place, u64::MAX);
            self.kv.scan(Table::Index, from, to, Direction::Forward, limit, &mut page)?;
            for (key, _) in &page {
                let seq = keys::seq_of(*key);
                budget.look -= 1;
                let Some(row) = TaskRow::load(self.kv, keys::task(seq))? else {
                    continue;
                };
                let look = wanted(seq, &row)?;
                if look == Look::Stop {
                    found.ended = true;
                    return Ok(found);
                }
                found.last = seq;
                if look == Look::Take {
                    found.rows.push((seq, row));
                    budget.take -= 1;
                    if budget.take == 0 {
                        return Ok(found);
                    }
                }
            }
            if page.len() < limit {
                found.ended = true;
                return Ok(found);
            }
        }
        Ok(found)
    }
}
