//! Deadlines in the timer table, and where to look for the next one.

use bytes::Bytes;

use crate::command::Millis;
use crate::keys::{self, TimerKind};
use crate::kv::{Direction, Key, Kv, KvError, KvRead, Table};

/// For each kind of timer, the earliest deadline and a key below which no timer is left.
///
/// Without the second, every look at the head would walk over the rows that were deleted since the last
/// checkpoint. Both are hints: too early costs a look, too late never happens.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    cursors: [Cursor; TimerKind::ALL.len()],
}

#[derive(Debug, Default, Clone, Copy)]
struct Cursor {
    next: Option<Millis>,
    low: Key,
}

impl Timers {
    /// Finds the earliest deadline of every kind.
    pub fn load<K: KvRead + ?Sized>(kv: &K) -> Result<Timers, KvError> {
        let mut timers = Timers::default();
        for kind in TimerKind::ALL {
            timers.cursor(kind).low = keys::timer(kind, 0, 0);
            timers.peek(kv, kind)?;
        }
        Ok(timers)
    }

    pub fn arm<K: Kv>(
        &mut self,
        kv: &mut K,
        kind: TimerKind,
        deadline: Millis,
        seq: u64,
        value: Bytes,
    ) {
        let key = keys::timer(kind, deadline, seq);
        kv.put(Table::Timer, key, value);
        let cursor = self.cursor(kind);
        cursor.next = Some(cursor.next.map_or(deadline, |next| next.min(deadline)));
        cursor.low = cursor.low.min(key);
    }

    pub fn disarm<K: Kv>(&mut self, kv: &mut K, kind: TimerKind, deadline: Millis, seq: u64) {
        kv.delete(Table::Timer, keys::timer(kind, deadline, seq));
    }

    /// The earliest deadline of a kind, or a moment before it.
    pub fn next(&self, kind: TimerKind) -> Option<Millis> {
        self.cursors
            .get(kind as usize)
            .and_then(|cursor| cursor.next)
    }

    /// At most `limit` timers of a kind whose deadline is not after `now`, earliest first. The caller
    /// disarms every one of them before it asks again.
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
        let to = keys::timer(kind, now, u64::MAX);
        kv.scan(Table::Timer, from, to, Direction::Forward, limit, &mut rows)?;
        if let Some((last, _)) = rows.last() {
            self.cursor(kind).low = last.saturating_add(1);
        }
        if rows.len() < limit {
            self.cursor(kind).low = to.saturating_add(1);
        }
        self.peek(kv, kind)?;
        Ok(rows)
    }

    fn peek<K: KvRead + ?Sized>(&mut self, kv: &K, kind: TimerKind) -> Result<(), KvError> {
        let cursor = self.cursor(kind);
        let end = keys::timer(kind, Millis::MAX, u64::MAX);
        let mut rows = Vec::new();
        kv.scan(
            Table::Timer,
            cursor.low,
            end,
            Direction::Forward,
            1,
            &mut rows,
        )?;
        cursor.next = rows.first().map(|(key, _)| keys::timer_parts(*key).1);
        Ok(())
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "the array has an entry for every kind"
    )]
    fn cursor(&mut self, kind: TimerKind) -> &mut Cursor {
        &mut self.cursors[kind as usize]
    }
}
