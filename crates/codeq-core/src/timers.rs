//! Deadlines in the timer table, and a cache of the next one.

use bytes::Bytes;

use crate::keys::{self, Seq, TimerKind};
use crate::kv::{Direction, Key, Kv, KvError, KvRead, Table};
use crate::moment::Millis;

/// For each kind of timer, the first one and a key below which there are none.
///
/// Without that key, finding the first timer would visit all rows deleted since the last checkpoint. The first timer
/// is exact, because a thread sleeps until its deadline: a disarmed timer left in place would wake it for nothing,
/// possibly over and over.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    cursors: [Cursor; TimerKind::ALL.len()],
    /// Upper bound on the dates of kind `RunAtPassed`.
    passed_until: Millis,
}

#[derive(Debug, Default, Clone, Copy)]
struct Cursor {
    first: Option<Key>,
    low: Key,
}

impl Timers {
    /// Finds the first timer of every kind.
    pub fn load<K: KvRead + ?Sized>(kv: &K) -> Result<Timers, KvError> {
        let mut timers = Timers::default();
        for kind in TimerKind::ALL {
            timers.cursor(kind).low = keys::timer(kind, 0, Seq(0));
            timers.peek(kv, kind)?;
        }
        let (from, to) = passed_after(0);
        let mut rows = Vec::new();
        kv.scan(Table::Timer, from, to, Direction::Reverse, 1, &mut rows)?;
        timers.passed_until = rows.first().map_or(0, |(key, _)| keys::timer_parts(*key).1);
        Ok(timers)
    }

    pub fn arm<K: Kv>(
        &mut self,
        kv: &mut K,
        kind: TimerKind,
        deadline: Millis,
        seq: Seq,
        value: Bytes,
    ) {
        let key = keys::timer(kind, deadline, seq);
        kv.put(Table::Timer, key, value);
        let cursor = self.cursor(kind);
        cursor.first = Some(cursor.first.map_or(key, |first| first.min(key)));
        cursor.low = cursor.low.min(key);
    }

    pub fn disarm<K: Kv>(
        &mut self,
        kv: &mut K,
        kind: TimerKind,
        deadline: Millis,
        seq: Seq,
    ) -> Result<(), KvError> {
        let key = keys::timer(kind, deadline, seq);
        kv.delete(Table::Timer, key);
        if self.cursor(kind).first == Some(key) {
            self.peek(kv, kind)?;
        }
        Ok(())
    }

    /// The earliest deadline of a kind.
    pub fn next(&self, kind: TimerKind) -> Option<Millis> {
        let first = self.cursors.get(kind as usize)?.first?;
        Some(keys::timer_parts(first).1)
    }

    /// At most `limit` timers of a kind whose deadline is `now` or earlier, earliest first. The caller must disarm
    /// all of them before the next call.
    pub fn due<K: KvRead + ?Sized>(
        &mut self,
        kv: &K,
        kind: TimerKind,
        now: Millis,
        limit: usize,
    ) -> Result<Vec<(Key, Bytes)>, KvError> {
        let mut rows = Vec::new();
        if self.next(kind).is_none_or(|next| next > now) {
            return Ok(rows);
        }
        let from = self.cursor(kind).low;
        let to = keys::timer(kind, now, Seq::MAX);
        kv.scan(Table::Timer, from, to, Direction::Forward, limit, &mut rows)?;
        if let Some((last, _)) = rows.last() {
            self.cursor(kind).low = last.saturating_add(1);
            self.peek(kv, kind)?;
        }
        Ok(rows)
    }

    /// Records the `runAt` of a pending task, which has passed.
    pub fn arm_passed<K: Kv>(&mut self, kv: &mut K, date: Millis, seq: Seq) {
        kv.put(Table::Timer, keys::timer(TimerKind::RunAtPassed, date, seq), Bytes::new());
        self.passed_until = self.passed_until.max(date);
    }

    /// Undoes [`Timers::arm_passed`], because the task is no longer pending.
    pub fn disarm_passed<K: Kv>(&mut self, kv: &mut K, date: Millis, seq: Seq) {
        kv.delete(Table::Timer, keys::timer(TimerKind::RunAtPassed, date, seq));
    }

    /// Whether pending tasks may have a `runAt` after `wall`, which happens only if the clock was set back.
    pub fn may_be_early(&self, wall: Millis) -> bool {
        self.passed_until > wall
    }

    /// Numbers of at most `limit` pending tasks whose date is after `wall`, latest first. The caller must disarm all of
    /// them.
    pub fn early<K: KvRead + ?Sized>(
        &mut self,
        kv: &K,
        wall: Millis,
        limit: usize,
    ) -> Result<Vec<Seq>, KvError> {
        let mut rows = Vec::new();
        if !self.may_be_early(wall) || limit == 0 {
            return Ok(Vec::new());
        }
        let (from, to) = passed_after(wall);
        kv.scan(Table::Timer, from, to, Direction::Reverse, limit, &mut rows)?;
        if rows.len() < limit {
            self.passed_until = wall;
        }
        Ok(rows.iter().map(|(key, _)| keys::seq_of(*key)).collect())
    }

    fn peek<K: KvRead + ?Sized>(&mut self, kv: &K, kind: TimerKind) -> Result<(), KvError> {
        let cursor = self.cursor(kind);
        let end = keys::timer(kind, Millis::MAX, Seq::MAX);
        let mut rows = Vec::new();
        kv.scan(Table::Timer, cursor.low, end, Direction::Forward, 1, &mut rows)?;
        cursor.first = rows.first().map(|(key, _)| *key);
        cursor.low = cursor.first.unwrap_or(end.saturating_add(1));
        Ok(())
    }

    #[allow(clippy::indexing_slicing, reason = "the array has an entry for every kind")]
    fn cursor(&mut self, kind: TimerKind) -> &mut Cursor {
        &mut self.cursors[kind as usize]
    }
}

/// The key range of `RunAtPassed` timers whose date is after `wall`.
fn passed_after(wall: Millis) -> (Key, Key) {
    let kind = TimerKind::RunAtPassed;
    (keys::timer(kind, wall, Seq::MAX), keys::timer(kind, Millis::MAX, Seq::MAX))
}
