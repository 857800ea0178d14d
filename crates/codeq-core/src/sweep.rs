//! Sweep: what time brings about. Leases end, delayed tasks come due, finished tasks and old records go.

use bytes::Bytes;

use crate::command::Sweep;
use crate::history::Event;
use crate::id::split_mix64;
use crate::keys::{self, TimerKind};
use crate::kv::{Kv, KvError, Table};
use crate::limits::{CALLBACK_RETENTION_STEP_MS, SWEEP_MAX};
use crate::place::Place;
use crate::reply::{Reply, Swept};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn sweep(&mut self, command: &Sweep) -> Result<Reply, KvError> {
        let limit = command.limit.min(SWEEP_MAX);
        let mut swept = self.make_due(limit, command.seed)?;
        let left = limit - swept.expired - swept.promoted;
        swept.removed = self.remove_old(left)?;
        Ok(Reply::Swept(swept))
    }

    /// Ends leases that are over and makes delayed tasks claimable, at most `limit` together.
    pub(crate) fn make_due(&mut self, limit: u32, seed: u64) -> Result<Swept, KvError> {
        let mut swept = Swept::default();
        while swept.expired < limit
            && let Some((until, seq)) = self.state.leases.first().copied()
            && until < self.now
        {
            self.state.leases.remove(&(until, seq));
            if let Some(was) = TaskRow::load(self.kv, keys::task(seq))?
                && was.place == Place::InProgress
            {
                self.expire(seq, &was, split_mix64(seed ^ seq))?;
                swept.expired += 1;
            }
        }
        let left = (limit - swept.expired) as usize;
        let due = self.state.timers.due(self.kv, TimerKind::Delayed, self.now, left)?;
        for (key, _) in due {
            let seq = keys::seq_of(key);
            let Some(was) = TaskRow::load(self.kv, keys::task(seq))? else {
                continue;
            };
            let row = was.clone();
            self.requeue(seq, row, &was, 0, Cause::server(Event::Due))?;
            swept.promoted += 1;
        }
        Ok(swept)
    }

    /// Removes what retention no longer keeps, at most `limit` tasks, keys and records.
    fn remove_old(&mut self, limit: u32) -> Result<u32, KvError> {
        let due = self.state.timers.due(self.kv, TimerKind::Retention, self.now, limit as usize)?;
        let left = (limit as usize).saturating_sub(due.len());
        let mut removed = 0;
        for (key, _) in due {
            let seq = keys::seq_of(key);
            let Some(row) = TaskRow::load(self.kv, keys::task(seq))? else {
                continue;
            };
            if self.awaits_callback(seq, &row)? {
                self.keep_longer(seq, row)?;
            } else {
                self.remove(seq, &row)?;
                removed += 1;
            }
        }
        let due = self.state.timers.due(self.kv, TimerKind::Idempotency, self.now, left)?;
        let left = left.saturating_sub(due.len());
        for (key, value) in due {
            self.kv.delete(Table::Timer, key);
            if let Ok(hash) = <[u8; 16]>::try_from(&value[..]) {
                self.kv.delete(Table::Idempotency, u128::from_le_bytes(hash));
            }
            self.changed = true;
            removed += 1;
        }
        removed += self.remove_old_records(left)?;
        Ok(removed)
    }

    /// A callback that is still to be delivered needs the task's rows: they stay a while longer.
    fn keep_longer(&mut self, seq: u64, mut row: TaskRow) -> Result<(), KvError> {
        if let Some(finish) = &mut row.finish {
            let timers = &mut self.state.timers;
            timers.disarm(self.kv, TimerKind::Retention, finish.expires_at, seq)?;
            finish.expires_at = self.now.saturating_add(CALLBACK_RETENTION_STEP_MS);
            timers.arm(self.kv, TimerKind::Retention, finish.expires_at, seq, Bytes::new());
        }
        self.save(seq, &row);
        Ok(())
    }
}
