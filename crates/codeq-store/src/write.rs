//! Fast writing of rows to a redb transaction.
//!
//! A checkpoint is one transaction. Splitting it into unsynced commits gained nothing in measurements: the library
//! already limits its dirty pages to half of its cache and writes the rest early, a page changed twice is copied once
//! instead of twice, readers never look into the write buffer, and a crash can only leave the old checkpoint or the
//! new one.
//!
//! The rows arrive sorted, which is where most of the speed comes from (for 254-byte rows): a cursor inserts a new
//! row in 0.7 µs instead of 1.4, and deleting a dense run in one pass costs 0.2 µs per row instead of 1.5.

use std::iter::Peekable;
use std::ops::Bound;

use codeq_core::kv::{Direction, Key, KvError, Table};
use redb::{CursorError, ReadableTable, StorageError};

use crate::file::{View, definition};
use crate::memtable::{Memtable, Slot};
use crate::row;

type RedbTable<'txn> = redb::Table<'txn, Key, &'static [u8]>;

/// From this many rows on, one pass over a range is cheaper than single deletes.
const DENSE_RUN: usize = 8;
/// Maximum number of rows per pass, to keep its list of keys small.
const LONGEST_RUN: usize = 4096;
/// A run ends where more than this many consecutive rows stay.
const GAP: usize = 4;

/// Writes rows to one transaction and tracks the change in live bytes.
pub(crate) struct Writer<'txn> {
    transaction: &'txn redb::WriteTransaction,
    stored: Vec<u8>,
    added: u64,
    removed: u64,
}

impl<'txn> Writer<'txn> {
    pub(crate) fn new(transaction: &'txn redb::WriteTransaction) -> Self {
        Writer { transaction, stored: Vec::new(), added: 0, removed: 0 }
    }

    /// Live bytes after the writes, given those before.
    pub(crate) fn live_bytes(&self, before: u64) -> u64 {
        (before + self.added).saturating_sub(self.removed)
    }

    /// Applies a memtable's rows below `end`, in table and key order.
    pub(crate) fn apply(
        &mut self,
        rows: &Memtable,
        end: Option<(Table, Key)>,
        mut stop: impl FnMut() -> bool,
    ) -> Result<(), redb::Error> {
        for table in Table::ALL {
            let to = match end {
                Some((last, _)) if table > last => break,
                Some((last, 0)) if table == last => break,
                Some((last, key)) if table == last => key - 1,
                _ => Key::MAX,
            };
            let mut rows = rows.range(table, 0, to).peekable();
            if rows.peek().is_none() {
                continue;
            }
            let mut target = self.transaction.open_table(definition(table))?;
            while let Some((key, slot)) = rows.peek() {
                if stop() {
                    return Ok(());
                }
                match slot {
                    Slot::Fresh(_) => self.insert_run(&mut target, &mut rows)?,
                    Slot::Tombstone => self.delete_run(&mut target, &mut rows)?,
                    Slot::Put(value) => {
                        self.put(&mut target, *key, value)?;
                        rows.next();
                    }
                }
            }
        }
        Ok(())
    }

    /// Sets one row, whether or not its key exists.
    fn put(
        &mut self,
        target: &mut RedbTable<'_>,
        key: Key,
        value: &[u8],
    ) -> Result<(), StorageError> {
        row::encode(key, value, &mut self.stored);
        if let Some(old) = target.insert(key, self.stored.as_slice())? {
            self.removed += row::live_bytes(old.value());
        }
        self.added += row::live_bytes(&self.stored);
        Ok(())
    }

    /// Inserts rows with new keys, up to the first row of another kind.
    fn insert_run<'a>(
        &mut self,
        target: &mut RedbTable<'_>,
        rows: &mut Peekable<impl Iterator<Item = (Key, &'a Slot)>>,
    ) -> Result<(), redb::Error> {
        while let Some((first, Slot::Fresh(_))) = rows.peek() {
            let first = *first;
            let mut cursor = target.lower_bound_mut(Bound::Included(first))?;
            let mut blocked = None;
            while let Some((key, Slot::Fresh(value))) = rows.peek() {
                row::encode(*key, value, &mut self.stored);
                match cursor.insert_before(*key, self.stored.as_slice()) {
                    Ok(()) => self.added += row::live_bytes(&self.stored),
                    // An existing row precedes this key: the cursor has to skip it.
                    Err(CursorError::UnorderedKey) => {
                        blocked = Some((*key, value));
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
                rows.next();
            }
            cursor.close()?;
            // If the cursor is blocked at once, the key itself exists. The caller broke its promise that the key is
            // new, but its row is still the newer one.
            if let Some((key, value)) = blocked
                && key == first
            {
                self.put(target, key, value)?;
                rows.next();
            }
        }
        Ok(())
    }

    /// Deletes rows, up to the first row of another kind.
    fn delete_run<'a>(
        &mut self,
        target: &mut RedbTable<'_>,
        rows: &mut Peekable<impl Iterator<Item = (Key, &'a Slot)>>,
    ) -> Result<(), redb::Error> {
        let mut keys = Vec::new();
        while let Some((key, Slot::Tombstone)) = rows.peek() {
            keys.push(*key);
            rows.next();
            if keys.len() == LONGEST_RUN {
                break;
            }
        }
        let mut rest = keys.as_slice();
        while !rest.is_empty() {
            let dense = if rest.len() < DENSE_RUN { 0 } else { dense_prefix(target, rest)? };
            if dense >= DENSE_RUN {
                let (run, tail) = rest.split_at(dense);
                self.delete_dense(target, run)?;
                rest = tail;
            } else {
                // Looking ahead found no dense run; do not repeat it for each key.
                let (run, tail) = rest.split_at(rest.len().min(2 * DENSE_RUN));
                for key in run {
                    if let Some(old) = target.remove(key)? {
                        self.removed += row::live_bytes(old.value());
                    }
                }
                rest = tail;
            }
        }
        Ok(())
    }

    /// Deletes a sorted run of keys in one pass over the range they span.
    fn delete_dense(
        &mut self,
        target: &mut RedbTable<'_>,
        run: &[Key],
    ) -> Result<(), StorageError> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(());
        };
        target.retain_in(*first..=*last, |key, stored| {
            let keep = run.binary_search(&key).is_err();
            if !keep {
                self.removed += row::live_bytes(stored);
            }
            keep
        })
    }

    /// Appends a checkpoint's rows, starting at `from`, to a table whose rows all come before them. Returns the first
    /// row that did not fit into `budget` bytes.
    pub(crate) fn copy(
        &mut self,
        view: &View,
        table: Table,
        from: Key,
        budget: u64,
    ) -> Result<Option<Key>, redb::Error> {
        let corrupted = |error: KvError| redb::Error::Corrupted(error.to_string());
        let mut rows = view.range(table, from, Key::MAX).map_err(corrupted)?;
        let mut target = self.transaction.open_table(definition(table))?;
        let mut cursor = target.upper_bound_mut(Bound::<Key>::Unbounded)?;
        let end = self.added.saturating_add(budget);
        let mut rest = None;
        while let Some(row) = rows.step(Direction::Forward).map_err(corrupted)? {
            if self.added >= end {
                rest = Some(row.key);
                break;
            }
            row.verify().map_err(corrupted)?;
            cursor.insert_before(row.key, row.stored())?;
            self.added += row::live_bytes(row.stored());
        }
        cursor.close()?;
        Ok(rest)
    }
}

/// How many keys at the start are close together in the table, so that a pass over them visits few rows that stay. Keys
/// that are not in the table cost nothing.
fn dense_prefix(target: &RedbTable<'_>, keys: &[Key]) -> Result<usize, StorageError> {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else {
        return Ok(0);
    };
    let mut dense = 0;
    let mut gap = 0;
    for row in target.range(*first..=*last)? {
        match keys.binary_search(&row?.0.value()) {
            Ok(place) => {
                dense = place + 1;
                gap = 0;
            }
            Err(_) => gap += 1,
        }
        if gap > GAP {
            return Ok(dense);
        }
    }
    Ok(keys.len())
}
