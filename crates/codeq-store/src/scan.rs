//! Merges the layers of a store into one ordered scan.

use std::iter::Peekable;

use bytes::Bytes;
use codeq_core::kv::{Direction, Key, KvError};

use crate::file::{Row, RowScan};
use crate::memtable::Slot;

/// Appends at most `limit` rows to `out`. The iterators run in the direction of the scan; for equal keys, `newer`
/// wins over `older`, and both win over the rows of the file.
pub(crate) fn merge<'a>(
    newer: impl Iterator<Item = (Key, &'a Slot)>,
    older: impl Iterator<Item = (Key, &'a Slot)>,
    mut rows: RowScan<'_>,
    direction: Direction,
    limit: usize,
    out: &mut Vec<(Key, Bytes)>,
) -> Result<(), KvError> {
    let mut newer = newer.peekable();
    let mut older = older.peekable();
    let mut row = rows.step(direction)?;
    let first = |a: Option<Key>, b: Option<Key>| match (a, b) {
        (Some(a), Some(b)) if direction == Direction::Forward => Some(a.min(b)),
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    let mut left = limit;
    while left > 0 {
        let in_memory = first(peek_key(&mut newer), peek_key(&mut older));
        let Some(key) = first(in_memory, row.as_ref().map(|row| row.key)) else {
            break;
        };
        let top = take(&mut newer, key);
        let middle = take(&mut older, key);
        let bottom = if row.as_ref().is_some_and(|row| row.key == key) {
            std::mem::replace(&mut row, rows.step(direction)?)
        } else {
            None
        };
        let value = match top.or(middle) {
            Some(slot) => slot.value().cloned(),
            None => bottom.as_ref().map(Row::value).transpose()?,
        };
        if let Some(value) = value {
            out.push((key, value));
            left -= 1;
        }
    }
    Ok(())
}

fn peek_key<'a>(slots: &mut Peekable<impl Iterator<Item = (Key, &'a Slot)>>) -> Option<Key> {
    slots.peek().map(|(key, _)| *key)
}

fn take<'a>(
    slots: &mut Peekable<impl Iterator<Item = (Key, &'a Slot)>>,
    key: Key,
) -> Option<&'a Slot> {
    slots.next_if(|(next, _)| *next == key).map(|(_, slot)| slot)
}
