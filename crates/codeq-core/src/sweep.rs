//! Sweep: everything that time triggers. Leases expire (by the rule in `lease`), delayed tasks come due, finished tasks
//! and old records are removed, and tasks are delayed again if the wall clock was set back before their `runAt`.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::command::Sweep;
use crate::effect::Effect;
use crate::history::Event;
use crate::id::split_mix64;
use crate::keys::{self, Seq, TimerKind};
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
        let left = limit - swept.expired - swept.promoted - swept.postponed;
        swept.removed = self.remove_old(left)?;
        Ok(Reply::Swept(swept))
    }

    /// Expires leases, makes delayed tasks claimable, and delays pending tasks again if the wall clock was set back
    /// before their `runAt`; at most `limit` tasks in total.
    pub(crate) fn make_due(&mut self, limit: u32, seed: u64) -> Result<Swept, KvError> {
        let mut swept = Swept::default();
        while swept.expired < limit
            && let Some((until, seq)) = self.state.leases.first().copied()
            && until < self.now
        {
            self.state.leases.remove(&(until, seq));
            if let Some(row) = TaskRow::load(self.kv, keys::task(seq))?
                && row.place == Place::InProgress
            {
                self.expire(seq, row, split_mix64(seed ^ seq.0))?;
                swept.expired += 1;
            }
        }
        swept.postponed = self.postpone_early(limit - swept.expired)?;
        for (kind, time) in [(TimerKind::Delayed, self.now), (TimerKind::RunAt, self.wall)] {
            let left = limit - swept.expired - swept.postponed - swept.promoted;
            let due = self.state.timers.due(self.kv, kind, time, left as usize)?;
            for (key, _) in due {
                let seq = keys::seq_of(key);
                let Some(row) = TaskRow::load(self.kv, keys::task(seq))? else {
                    continue;
                };
                self.requeue(seq, row, 0, Cause::server(Event::Due))?;
                swept.promoted += 1;
            }
        }
        Ok(swept)
    }

    /// Delays pending tasks again, at most `limit`, if their `runAt` is in the future because the wall clock was set
    /// back.
    fn postpone_early(&mut self, limit: u32) -> Result<u32, KvError> {
        let mut postponed = 0;
        let mut queues = BTreeSet::new();
        for seq in self.state.timers.early(self.kv, self.wall, limit as usize)? {
            let Some(mut row) = TaskRow::load(self.kv, keys::task(seq))? else {
                continue;
            };
            let cause = Cause::server(Event::Postponed);
            self.relocate(seq, &mut row, cause, |row| row.place = Place::Delayed)?;
            queues.insert(row.queue);
            postponed += 1;
        }
        // Claims that such a task held up may be waiting for the tasks behind it.
        let open = queues.into_iter().filter(|id| self.state.is_claimable(*id));
        self.effects.extend(open.map(|queue| Effect::Ready { queue }));
        Ok(postponed)
    }

    /// Removes at most `limit` tasks, keys and records whose retention has ended.
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

    /// Postpones the removal of a task whose callback is still to be delivered, because the delivery reads its rows.
    fn keep_longer(&mut self, seq: Seq, mut row: TaskRow) -> Result<(), KvError> {
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
