//! What every command of a worker checks first, and what happens when an attempt fails.

use std::sync::Arc;

use crate::command::{Deed, Millis, UnderLease};
use crate::history::Event;
use crate::id::TaskId;
use crate::kv::{Kv, KvError};
use crate::limits::ERROR_BYTES_MAX;
use crate::names::cut;
use crate::place::Place;
use crate::reply::{Rejection, Reply, Returned};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};

/// The error of a task whose lease ended.
pub(crate) const LEASE_EXPIRED: &str = "LEASE_EXPIRED";
/// The error of a task whose attempts ran out without anybody saying why.
pub(crate) const MAX_ATTEMPTS: &str = "MAX_ATTEMPTS";
/// The error of a cancelled task.
pub(crate) const CANCELLED: &str = "CANCELLED";

/// When a failed task is tried again.
pub(crate) enum Retry {
    /// By the backoff policy, with this randomness.
    Backoff(u64),
    /// After this pause.
    After(Millis),
}

/// Who acts on a task.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    /// The worker.
    pub worker: &'a str,
    /// Its instance, if it names one.
    pub instance: Option<&'a str>,
    /// The claim that it acts under, if it names one.
    pub fence: Option<u64>,
}

impl<'a> Holder<'a> {
    /// A worker that names neither an instance nor a claim.
    pub fn plain(worker: &'a str) -> Holder<'a> {
        Holder { worker, instance: None, fence: None }
    }

    /// Who acts in a command that names more than the worker.
    pub fn of(command: &'a UnderLease) -> Holder<'a> {
        let (worker, instance) = (command.deed.worker(), command.instance.as_deref());
        Holder { worker, instance, fence: command.fence }
    }

    /// Whether the owner of a lease is the one who acts.
    pub fn is(&self, owner: &str) -> bool {
        owner == self.worker || self.instance == Some(owner)
    }

    /// Whether the latest claim of the task is the one that is named, if one is.
    pub fn is_current(&self, fence: u64) -> bool {
        self.fence.is_none_or(|named| named == fence)
    }
}

impl<K: Kv> Step<'_, K> {
    /// What a worker does under a lease that it names.
    pub(crate) fn under_lease(&mut self, command: &UnderLease) -> Result<Reply, KvError> {
        let holder = Holder::of(command);
        match &*command.deed {
            Deed::Heartbeat(deed) => self.heartbeat(deed, holder),
            Deed::Submit(deed) => self.submit(deed, holder),
            Deed::Nack(deed) => self.nack(deed, holder),
            Deed::Abandon(deed) => self.abandon(deed, holder),
        }
    }

    /// The task, if it exists in the tenant, no later claim than the named one was made of it, it is in progress,
    /// and the holder owns its lease; checked in this order. A lease that has ended is ended here, before anybody
    /// can act on it.
    pub(crate) fn owned(
        &mut self,
        tenant: &str,
        id: TaskId,
        holder: Holder<'_>,
    ) -> Result<Result<(TaskRow, Arc<str>), Rejection>, KvError> {
        match self.find(tenant, id)? {
            Some(row) => self.owned_row(id, row, holder),
            None => Ok(Err(Rejection::NotFound)),
        }
    }

    /// The same for a task that was found already. With the task comes the owner of its lease.
    pub(crate) fn owned_row(
        &mut self,
        id: TaskId,
        row: TaskRow,
        holder: Holder<'_>,
    ) -> Result<Result<(TaskRow, Arc<str>), Rejection>, KvError> {
        if !holder.is_current(row.fence) {
            return Ok(Err(Rejection::LeaseLost));
        }
        let Some(lease) = row.lease.as_ref().filter(|_| row.place == Place::InProgress) else {
            return Ok(Err(Rejection::NotInProgress));
        };
        if lease.until < self.now {
            self.expire(id.seq(), &row, self.now ^ id.salt())?;
            return Ok(Err(Rejection::NotInProgress));
        }
        if !holder.is(&lease.worker) {
            return Ok(Err(Rejection::NotOwner));
        }
        let owner = Arc::clone(&lease.worker);
        Ok(Ok((row, owner)))
    }

    /// Ends a lease whose time is over.
    pub(crate) fn expire(&mut self, seq: u64, was: &TaskRow, seed: u64) -> Result<(), KvError> {
        let error = Some(Arc::from(LEASE_EXPIRED));
        let cause = Cause::server(Event::LeaseExpired);
        self.fail_attempt(seq, was, error, Retry::Backoff(seed), cause)?;
        Ok(())
    }

    /// Counts a failed execution and sends the task where it belongs now: back, to the dead letters, or,
    /// if somebody has asked for that meanwhile, to its end.
    pub(crate) fn fail_attempt(
        &mut self,
        seq: u64,
        was: &TaskRow,
        error: Option<Arc<str>>,
        retry: Retry,
        cause: Cause<'_>,
    ) -> Result<Returned, KvError> {
        let mut row = was.clone();
        row.lease = None;
        row.attempts += 1;
        if let Some(error) = error.or_else(|| cause.why.clone()) {
            row.error = Some(shorten(error));
        }
        if row.cancel_requested {
            self.finish_cancelled(seq, row, was, cause)?;
            return Ok(Returned::Cancelled);
        }
        if row.attempts >= row.max_attempts {
            self.dead_letter(seq, row, was, cause)?;
            return Ok(Returned::Dead);
        }
        let backoff = self.state.meta.settings.backoff;
        let delay = match retry {
            Retry::Backoff(seed) => backoff.pause(row.attempts, seed),
            Retry::After(delay) => delay.min(backoff.max),
        };
        self.requeue(seq, row, was, delay, cause)?;
        Ok(Returned::Requeued { delay })
    }

    /// Puts a task back into its queue, claimable after `delay` and not before its date.
    pub(crate) fn requeue(
        &mut self,
        seq: u64,
        mut row: TaskRow,
        was: &TaskRow,
        delay: Millis,
        cause: Cause<'_>,
    ) -> Result<TaskRow, KvError> {
        row.lease = None;
        row.finish = None;
        row.visible_at = if delay == 0 { 0 } else { self.now.saturating_add(delay) };
        row.place = if delay == 0 { self.first_place(&row) } else { Place::Delayed };
        self.relocate(seq, &mut row, was, cause)?;
        Ok(row)
    }
}

pub(crate) fn shorten(text: Arc<str>) -> Arc<str> {
    if text.len() <= ERROR_BYTES_MAX { text } else { cut(&text, ERROR_BYTES_MAX).into() }
}
