//! Deadlines in the timer table, and where to look for the next one.

use bytes::Bytes;

use crate::command::Millis;
use crate::keys::{self, TimerKind};
use crate::kv::{Direction, Key, Kv, KvError, KvRead, Table};

/// For each kind of timer, the first one and a key below which none is left.
///
/// Without the second, every look at the head would walk over the rows that were deleted since the last
/// checkpoint. The first is exact: somebody sleeps until its deadline, and a deadline that was disarmed
/// would wake him for nothing, over and over if nobody takes it away.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    cursors: [Cursor; TimerKind::ALL.len()],
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
        cursor.first = Some(cursor.first.map_or(key, |first| first.min(key)));
        cursor.low = cursor.low.min(key);
    }

    pub fn disarm<K: Kv>(
        &mut self,
        kv: &mut K,
        kind: TimerKind,
        deadline: Millis,
        seq: u64,
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
            self.peek(kv, kind)?;
        }
        Ok(rows)
    }

    fn peek<K: KvRead + ?Sized>(&mut self, kv: &K, kind: TimerKind) -> Result<(), KvError> {
        let cursor = self.cursor(kind);
        let end = keys::timer(kind, Millis::MAX, u64::MAX);
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
