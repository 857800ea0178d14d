//! Leases: who may act on a task, how a lease ends, and what happens to a task whose attempt failed.

use std::sync::Arc;

use crate::command::{LeaseAction, UnderLease};
use crate::history::Event;
use crate::id::TaskId;
use crate::keys::{self, Seq};
use crate::kv::{Kv, KvError};
use crate::limits::ERROR_BYTES_MAX;
use crate::moment::Millis;
use crate::names::cut;
use crate::place::Place;
use crate::reply::{Rejection, Reply, Returned};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};

pub use crate::command::Holder;

/// Error of a task whose lease ended.
pub(crate) const LEASE_EXPIRED: &str = "LEASE_EXPIRED";
/// Error of a task that ran for its maximum run time.
pub(crate) const TIMED_OUT: &str = "TIMED_OUT";
/// Error of a task that used up its attempts without a reported reason.
pub(crate) const MAX_ATTEMPTS: &str = "MAX_ATTEMPTS";
/// Error of a cancelled task.
pub(crate) const CANCELLED: &str = "CANCELLED";

/// When a failed task is retried.
pub(crate) enum Retry {
    /// After the backoff policy's delay, with this randomness.
    Backoff(u64),
    /// After this delay, or the backoff policy's longest if that is shorter.
    After(Millis),
}

impl<K: Kv> Step<'_, K> {
    /// Applies a worker's action under the lease it names.
    pub(crate) fn under_lease(&mut self, command: &UnderLease) -> Result<Reply, KvError> {
        let holder = Holder::of(command);
        match &*command.action {
            LeaseAction::Heartbeat(action) => self.heartbeat(action, holder),
            LeaseAction::Submit(action) => self.submit(action, holder),
            LeaseAction::Nack(action) => self.nack(action, holder),
            LeaseAction::Abandon(action) => self.abandon(action, holder),
        }
    }

    /// Loads the task and the owner of its lease, checking in this order that the tenant has it, that it was not claimed
    /// again after the named claim, that it is in progress, and that the holder owns its lease. A lease that is over is
    /// expired here, before anything can act under it.
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

    /// Same as [`Step::owned`], for a task that is already loaded.
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
            self.expire(id.seq(), row, self.now ^ id.salt())?;
            return Ok(Err(Rejection::NotInProgress));
        }
        if !holder.is(&lease.worker) {
            return Ok(Err(Rejection::NotOwner));
        }
        let owner = Arc::clone(&lease.worker);
        Ok(Ok((row, owner)))
    }

    /// The task with this id, if the tenant owns it. A lease that is over is expired first.
    pub(crate) fn find_unexpired(
        &mut self,
        tenant: &str,
        id: TaskId,
    ) -> Result<Option<TaskRow>, KvError> {
        match self.find(tenant, id)? {
            Some(row) if row.lease.as_ref().is_some_and(|lease| lease.until < self.now) => {
                self.expire(id.seq(), row, self.now ^ id.salt())?;
                TaskRow::load(self.kv, keys::task(id.seq()))
            }
            found => Ok(found),
        }
    }

    /// Ends a lease whose time is over, which counts as a failed attempt.
    pub(crate) fn expire(&mut self, seq: Seq, row: TaskRow, seed: u64) -> Result<(), KvError> {
        let (error, cause) = if row.runs_until_limit() {
            let why = Some(Arc::from(format!("ran for {}", seconds(row.run_limit))));
            (TIMED_OUT, Cause { event: Event::TimedOut, who: None, why })
        } else {
            (LEASE_EXPIRED, Cause::server(Event::LeaseExpired))
        };
        self.fail_attempt(seq, row, Some(Arc::from(error)), Retry::Backoff(seed), cause)?;
        Ok(())
    }

    /// Counts a failed attempt and moves the task on: back to its queue, to the dead letters, or, if cancellation was
    /// requested meanwhile, to its end as cancelled.
    pub(crate) fn fail_attempt(
        &mut self,
        seq: Seq,
        mut row: TaskRow,
        error: Option<Arc<str>>,
        retry: Retry,
        cause: Cause<'_>,
    ) -> Result<Returned, KvError> {
        row.attempts += 1;
        if let Some(error) = error.or_else(|| cause.why.clone()) {
            row.error = Some(shorten(error));
        }
        if row.cancel_requested {
            self.finish_cancelled(seq, row, cause)?;
            return Ok(Returned::Cancelled);
        }
        if row.attempts >= row.max_attempts {
            self.dead_letter(seq, row, cause)?;
            return Ok(Returned::Dead);
        }
        let backoff = self.state.meta.settings.backoff;
        let delay = match retry {
            Retry::Backoff(seed) => backoff.pause(row.attempts, seed),
            Retry::After(delay) => delay.min(backoff.max),
        };
        self.requeue(seq, row, delay, cause)?;
        Ok(Returned::Requeued { delay })
    }

    /// Returns a task to its queue, claimable after `delay` and not before its `runAt`.
    pub(crate) fn requeue(
        &mut self,
        seq: Seq,
        mut row: TaskRow,
        delay: Millis,
        cause: Cause<'_>,
    ) -> Result<TaskRow, KvError> {
        let (place, visible_at) = match delay {
            0 => (self.place_by_run_at(&row), 0),
            delay => (Place::Delayed, self.now.saturating_add(delay)),
        };
        self.relocate(seq, &mut row, cause, |row| {
            row.place = place;
            row.visible_at = visible_at;
            row.end_attempt();
            row.finish = None;
        })?;
        Ok(row)
    }
}

/// A length of time as text, such as `90s` or `1.5s`.
fn seconds(length: Millis) -> String {
    match (length / 1_000, length % 1_000) {
        (whole, 0) => format!("{whole}s"),
        (whole, rest) => format!("{}s", format!("{whole}.{rest:03}").trim_end_matches('0')),
    }
}

pub(crate) fn shorten(text: Arc<str>) -> Arc<str> {
    if text.len() <= ERROR_BYTES_MAX { text } else { cut(&text, ERROR_BYTES_MAX).into() }
}
