//! Claim: a worker leases the first tasks in line.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::command::{Claim, Selector};
use crate::history::Event;
use crate::id::split_mix64;
use crate::keys::{self, Order, QueueId};
use crate::kv::{Kv, KvError, Table};
use crate::limits::{
    CLAIM_BYTES_MAX, CLAIM_COMMANDS_MAX, CLAIM_MAX, CLAIM_REPAIR_MAX, LEASE_MS_MAX, LEASE_MS_MIN,
};
use crate::moment::Millis;
use crate::names::{check_command, check_tenant, check_worker};
use crate::place::Place;
use crate::queue::Head;
use crate::reply::{Rejection, Reply};
use crate::rows::{Lease, TaskRow};
use crate::step::{Cause, Step};
use crate::view::Task;

impl<K: Kv> Step<'_, K> {
    pub(crate) fn claim(&mut self, command: &Claim) -> Result<Reply, KvError> {
        if let Err(rejection) = check(command) {
            return Ok(Reply::Rejected(rejection));
        }
        // A task that is due can be claimed now, even if the sweep has not reached it yet.
        let seed = split_mix64(self.now ^ self.state.meta.next_seq.0);
        self.make_due(CLAIM_REPAIR_MAX, seed)?;
        let mut taken = Taken::default();
        match &command.from {
            Selector::Any => {
                while taken.has_room(command)
                    && let Some(queue) = self.first_of_tenant(&command.tenant)
                    && self.take_head(queue, command, &mut taken)?
                {}
            }
            Selector::Commands(commands) => {
                let mut heads = self.heads_named(&command.tenant, commands);
                while taken.has_room(command)
                    && let Some(Reverse((head, queue))) = heads.pop()
                {
                    // A claim may name a command twice, so the heap holds its head twice. The second one is stale by
                    // now.
                    if self.head_of(queue) == Some(head) {
                        if !self.take_head(queue, command, &mut taken)? {
                            break;
                        }
                        heads.extend(self.head_of(queue).map(|head| Reverse((head, queue))));
                    }
                }
            }
        }
        Ok(Reply::Claimed(taken.tasks))
    }

    /// The queues' heads, ordered by priority and then by when they became claimable. A heap, because at the limits of
    /// names and tasks per claim a linear scan would take a million steps.
    fn heads_named(
        &self,
        tenant: &str,
        commands: &[Arc<str>],
    ) -> BinaryHeap<Reverse<(Head, QueueId)>> {
        let heads = commands.iter().filter_map(|command| {
            let queue = self.state.queue_id(tenant, command)?;
            Some(Reverse((self.head_of(queue)?, queue)))
        });
        heads.collect()
    }

    fn head_of(&self, queue: QueueId) -> Option<Head> {
        self.state.queues.get(&queue)?.head
    }

    fn first_of_tenant(&self, tenant: &str) -> Option<QueueId> {
        self.state.tenants.get(tenant)?.heads.first().map(|(_, id)| *id)
    }

    /// Leases the first task of a queue. Returns `false` if the wall clock was set back before the task's date and more
    /// tasks are affected than one claim repairs: the sweep handles the rest.
    fn take_head(
        &mut self,
        queue: QueueId,
        command: &Claim,
        taken: &mut Taken,
    ) -> Result<bool, KvError> {
        let (_, (order, seq)) =
            self.queue(queue)?.next().ok_or_else(|| missing(queue, Order(0)))?;
        let mut row =
            TaskRow::load(self.kv, keys::task(seq))?.ok_or_else(|| missing(queue, order))?;
        if row.run_at > self.wall {
            return Ok(false);
        }
        row.fence = row.fence.next();
        row.run_limit = self.run_limit(&row)?;
        row.run_until = match row.run_limit {
            0 => 0,
            limit => self.now.saturating_add(limit),
        };
        let until = row.latest_end(self.now.saturating_add(command.lease));
        let lease = Lease { worker: Arc::clone(&command.worker), until };
        self.relocate(seq, &mut row, Cause::by(Event::Claimed, &command.worker), |row| {
            row.place = Place::InProgress;
            row.lease = Some(lease);
        })?;
        taken.count += 1;
        taken.bytes += row.size as usize;
        if !self.quiet {
            taken.tasks.push(self.view(seq, &row)?);
        }
        Ok(true)
    }

    /// How long an attempt of the task may run: its own limit or, if it has none, its queue's. 0 means no limit.
    fn run_limit(&self, row: &TaskRow) -> Result<Millis, KvError> {
        if row.max_run > 0 {
            return Ok(row.max_run);
        }
        Ok(self.queue(row.queue)?.row.topic.as_ref().map_or(0, |topic| topic.policy.max_run))
    }
}

/// The tasks that a claim has leased so far.
#[derive(Default)]
struct Taken {
    count: usize,
    /// Bytes of their payloads.
    bytes: usize,
    /// The tasks themselves, unless nobody reads the reply.
    tasks: Vec<Task>,
}

impl Taken {
    fn has_room(&self, command: &Claim) -> bool {
        self.count < command.count as usize && self.bytes < CLAIM_BYTES_MAX
    }
}

/// Checks everything about a claim that does not depend on the state.
pub fn check(command: &Claim) -> Result<(), Rejection> {
    check_tenant(&command.tenant)?;
    check_worker(&command.worker)?;
    if !(LEASE_MS_MIN..=LEASE_MS_MAX).contains(&command.lease) {
        return Err(Rejection::InvalidLease { min: LEASE_MS_MIN, max: LEASE_MS_MAX });
    }
    if !(1..=CLAIM_MAX).contains(&(command.count as usize)) {
        return Err(Rejection::InvalidCount { max: CLAIM_MAX });
    }
    if let Selector::Commands(commands) = &command.from {
        if commands.len() > CLAIM_COMMANDS_MAX {
            return Err(Rejection::TooManyCommands { max: CLAIM_COMMANDS_MAX });
        }
        commands.iter().try_for_each(|command| check_command(command))?;
    }
    Ok(())
}

fn missing(queue: QueueId, order: Order) -> KvError {
    KvError::Corrupt {
        table: Table::Pending,
        key: keys::pending(queue, 0, order),
        reason: "a pending row refers to a task that does not exist".to_owned(),
    }
}
