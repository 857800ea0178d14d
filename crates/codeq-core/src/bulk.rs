//! Bulk operations in bounded parts: cleanup, purge, replay and cancellation of many tasks.
//!
//! Each part looks at a bounded number of rows across all queues of the call, so it never stalls its shard. The caller
//! continues where the previous part stopped, and other tenants' commands run in between. [`Reader::bulk`] finds the
//! tasks of a part without changing them, which is also how a dry run counts.

use std::ops::Bound;
use std::sync::Arc;

use crate::command::{BulkFilter, BulkFrom, BulkPart, BulkWork, ReplayFrom};
use crate::history::Event;
use crate::keys::{self, QueueId, Seq};
use crate::kv::{Direction, Kv, KvError, KvRead, Table};
use crate::limits::{BULK_LOOK_MAX, BULK_LOOK_MIN, BULK_TAKE_MAX};
use crate::moment::Millis;
use crate::names::is_worker;
use crate::place::Place;
use crate::read::Reader;
use crate::reply::{BulkDone, Reply};
use crate::rows::{OutboxRow, TaskRow};
use crate::step::{Cause, Step};

/// What a bulk operation does with a task it visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Apply the operation to it.
    Take,
    /// Leave it.
    Skip,
    /// Stop: no later task of the list matches either.
    Stop,
}

impl Verdict {
    pub fn take_if(wanted: bool) -> Verdict {
        if wanted { Verdict::Take } else { Verdict::Skip }
    }
}

/// How much work a search may still do.
pub(crate) struct Budget {
    /// Tasks it may still select.
    pub take: usize,
    /// Rows it may still look at.
    pub look: usize,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.take == 0 || self.look == 0
    }
}

/// Result of searching one list.
pub(crate) struct Found {
    /// Numbers of the matching tasks, in order. Only the numbers, because the rows of a hundred tasks with results may
    /// not fit in memory.
    pub numbers: Vec<Seq>,
    /// Number of the last task visited.
    pub last: Seq,
    /// Nothing more in the list matches.
    pub ended: bool,
}

/// The tasks that one part of a bulk operation changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BulkPlan {
    /// Numbers of the tasks.
    pub numbers: Vec<Seq>,
    /// Where the next part starts; `None` once there is nothing left to look at.
    pub next: Option<BulkFrom>,
}

/// The lists of finished tasks, in the order a cleanup visits them.
const FINISHED: [Place; 3] = [Place::Completed, Place::Failed, Place::Dead];

impl<K: Kv> Step<'_, K> {
    pub(crate) fn bulk_part(&mut self, command: &BulkPart) -> Result<Reply, KvError> {
        let plan = self.reader().bulk(command, self.now)?;
        let done = plan.numbers.len() as u64;
        for seq in plan.numbers {
            let Some(row) = TaskRow::load(self.kv, keys::task(seq))? else {
                continue;
            };
            match &command.work {
                BulkWork::Cleanup { .. } | BulkWork::PurgeDead { .. } => self.remove(seq, &row)?,
                BulkWork::PurgeWaiting { .. } => {
                    let why = Some("purge".into());
                    let cause = Cause { event: Event::Cancelled, who: Some(&command.by), why };
                    self.finish_cancelled(seq, row, cause)?;
                }
                BulkWork::Replay { .. } => {
                    self.revive(seq, row, &command.by)?;
                }
                BulkWork::Cancel { .. } => self.cancel_one(seq, row, &command.by)?,
            }
        }
        Ok(Reply::BulkPart(BulkDone { done, next: plan.next }))
    }
}

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// The tasks that a part of a bulk operation would change at `now`, by engine time.
    pub fn bulk(&self, part: &BulkPart, now: Millis) -> Result<BulkPlan, KvError> {
        let mut budget = Budget {
            take: part.take.min(BULK_TAKE_MAX) as usize,
            look: part.look.clamp(BULK_LOOK_MIN, BULK_LOOK_MAX) as usize,
        };
        let (name, place) = match &part.work {
            BulkWork::Cleanup { .. } => return self.cleanup_part(part, now, &mut budget),
            BulkWork::PurgeDead { command }
            | BulkWork::Replay { command, from: ReplayFrom::DeadLetters } => (command, Place::Dead),
            BulkWork::Replay { command, .. } => (command, Place::Failed),
            BulkWork::PurgeWaiting { command } => (command, Place::Pending),
            BulkWork::Cancel { command, running } => {
                return self.cancel_part(part, command, *running, now, &mut budget);
            }
        };
        let Some(queue) = self.state.queue_id(&part.tenant, name) else {
            return Ok(BulkPlan::default());
        };
        let wanted = |seq, row: &TaskRow| self.wanted(part, now, seq, row);
        let found = self.search(queue, place, part.from.after, &mut budget, wanted)?;
        let next = BulkFrom { after: found.last, ..BulkFrom::default() };
        Ok(BulkPlan { numbers: found.numbers, next: (!found.ended).then_some(next) })
    }

    /// Visits the pending and delayed tasks of a queue; once all are done, the next part visits the running ones. A part
    /// visits only one list, so that the caller can tell cancelled tasks from those whose worker was asked to stop.
    fn cancel_part(
        &self,
        part: &BulkPart,
        command: &str,
        running: bool,
        now: Millis,
        budget: &mut Budget,
    ) -> Result<BulkPlan, KvError> {
        let BulkFrom { list, after, .. } = part.from;
        let queue = self.state.queue_id(&part.tenant, command).filter(|_| list == 0 || running);
        let Some(queue) = queue else {
            return Ok(BulkPlan::default());
        };
        let place = if list == 0 { Place::Pending } else { Place::InProgress };
        let wanted = |seq, row: &TaskRow| self.wanted(part, now, seq, row);
        let found = self.search(queue, place, after, budget, wanted)?;
        let next = match found.ended {
            false => Some(BulkFrom { queue: None, list, after: found.last }),
            true if list == 0 && running => Some(BulkFrom { queue: None, list: 1, after: Seq(0) }),
            true => None,
        };
        Ok(BulkPlan { numbers: found.numbers, next })
    }

    /// Visits the finished tasks of the tenant's queues, ordered by queue name.
    fn cleanup_part(
        &self,
        part: &BulkPart,
        now: Millis,
        budget: &mut Budget,
    ) -> Result<BulkPlan, KvError> {
        let mut plan = BulkPlan::default();
        let from = &part.from;
        let start: &str = from.queue.as_deref().unwrap_or_default();
        let queues = self.state.queues_from(&part.tenant, Bound::Included(start));
        let queues: Vec<(&Arc<str>, QueueId)> = queues.take(budget.look).collect();
        let queues_max = budget.look;
        for (name, id) in &queues {
            let resumed = from.queue.as_ref() == Some(*name);
            let at =
                |list: u8, after| Some(BulkFrom { queue: Some(Arc::clone(name)), list, after });
            let first = if resumed { from.list } else { 0 };
            if budget.is_spent() {
                plan.next = at(first, if resumed { from.after } else { Seq(0) });
                return Ok(plan);
            }
            // Empty queues count against the budget too: there may be ten thousand of them.
            budget.look -= 1;
            for (list, place) in (0..).zip(FINISHED).skip(usize::from(first)) {
                let after = if resumed && list == from.list { from.after } else { Seq(0) };
                let counts = self.state.queue_row(*id).map(|row| row.counts);
                if counts.is_none_or(|counts| counts.of(place) == 0) {
                    continue;
                }
                let wanted = |seq, row: &TaskRow| self.wanted(part, now, seq, row);
                let found = self.search(*id, place, after, budget, wanted)?;
                plan.numbers.extend(found.numbers);
                if !found.ended {
                    plan.next = at(list, found.last);
                    return Ok(plan);
                }
            }
        }
        if let (true, Some((name, _))) = (queues.len() == queues_max, queues.last()) {
            let list = FINISHED.len() as u8;
            plan.next = Some(BulkFrom { queue: Some(Arc::clone(name)), list, after: Seq(0) });
        }
        Ok(plan)
    }

    /// Decides what the operation does with one task of its list.
    fn wanted(
        &self,
        part: &BulkPart,
        now: Millis,
        seq: Seq,
        row: &TaskRow,
    ) -> Result<Verdict, KvError> {
        let finish = row.finish.as_ref();
        let removes = match &part.work {
            BulkWork::Cleanup { expired } => {
                // Lists are in creation order, and a task cannot finish before it is created.
                if part.filter.before.is_some_and(|before| row.created_at >= before) {
                    return Ok(Verdict::Stop);
                }
                if *expired && finish.is_none_or(|finish| finish.expires_at > now) {
                    return Ok(Verdict::Skip);
                }
                true
            }
            BulkWork::PurgeDead { .. } => true,
            BulkWork::PurgeWaiting { .. } => false,
            // A worker is asked only once.
            BulkWork::Cancel { .. } if row.cancel_requested => return Ok(Verdict::Skip),
            BulkWork::Cancel { .. } => false,
            BulkWork::Replay { from, .. } => {
                let other = match from {
                    ReplayFrom::DeadLetters => false,
                    ReplayFrom::Failed => row.is_cancelled(),
                    ReplayFrom::Cancelled => !row.is_cancelled(),
                };
                if other {
                    return Ok(Verdict::Skip);
                }
                false
            }
        };
        if !part.filter.matches(row) {
            return Ok(Verdict::Skip);
        }
        // Delivering a callback reads the task's rows, so keep them until the callback is delivered.
        Ok(Verdict::take_if(!(removes && self.awaits_callback(seq, row)?)))
    }

    /// Whether the task's callback still has to be delivered; such a task must not be removed.
    pub(crate) fn awaits_callback(&self, seq: Seq, row: &TaskRow) -> Result<bool, KvError> {
        if !row.has_webhook {
            return Ok(false);
        }
        let outbox = OutboxRow::load(self.kv, keys::task(seq))?;
        Ok(outbox.is_some_and(|outbox| outbox.next_at.is_some()))
    }

    /// The matching tasks of one list, ordered by number, until the budget is spent. Reads a page at a time.
    pub(crate) fn search(
        &self,
        queue: QueueId,
        place: Place,
        after: Seq,
        budget: &mut Budget,
        wanted: impl Fn(Seq, &TaskRow) -> Result<Verdict, KvError>,
    ) -> Result<Found, KvError> {
        const PAGE: usize = 256;
        let mut found = Found { numbers: Vec::new(), last: after, ended: false };
        let mut page = Vec::new();
        while !budget.is_spent() {
            page.clear();
            let limit = PAGE.min(budget.look);
            let from = keys::index(queue, place, found.last.next());
            let to = keys::index(queue, place, Seq::MAX);
            self.kv.scan(Table::Index, from, to, Direction::Forward, limit, &mut page)?;
            for (key, _) in &page {
                let seq = keys::seq_of(*key);
                budget.look -= 1;
                let Some(row) = TaskRow::load(self.kv, keys::task(seq))? else {
                    continue;
                };
                let verdict = wanted(seq, &row)?;
                if verdict == Verdict::Stop {
                    found.ended = true;
                    return Ok(found);
                }
                found.last = seq;
                if verdict == Verdict::Take {
                    found.numbers.push(seq);
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

impl BulkFilter {
    /// Whether every condition holds for a task.
    fn matches(&self, row: &TaskRow) -> bool {
        let date = row.finish.as_ref().map_or(row.created_at, |finish| finish.at);
        let error = || row.error.as_deref().unwrap_or_default();
        self.before.is_none_or(|before| date < before)
            && self.after.is_none_or(|after| date >= after)
            && self.error_contains.as_deref().is_none_or(|part| error().contains(part))
            && self.worker.as_deref().is_none_or(|worker| {
                row.history.last_worker().is_some_and(|last| is_worker(&last, worker))
            })
    }
}
