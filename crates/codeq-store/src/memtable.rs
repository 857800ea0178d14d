//! The rows written since a checkpoint, sorted, in memory.
//!
//! A memtable shadows the layers below: a value replaces the row there, a tombstone hides it. It knows nothing about
//! files; only the log makes its rows durable.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use codeq_core::kv::{Key, Table};

use crate::per_table::PerTable;

/// Cost of a row beyond its value: 16 bytes of key and 40 of slot, in B-tree nodes that ascending keys leave half full
/// (measured 112 bytes per row with a million empty rows), plus the allocator's rounding.
const ROW_OVERHEAD: usize = 128;

/// A memtable's entry for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A row whose key is in no layer below, so deleting it needs no tombstone.
    Fresh(Bytes),
    /// A row that may replace one below.
    Put(Bytes),
    /// The row is deleted, whatever is below.
    Tombstone,
}

impl Slot {
    /// The value; `None` for a tombstone.
    pub(crate) fn value(&self) -> Option<&Bytes> {
        match self {
            Slot::Fresh(value) | Slot::Put(value) => Some(value),
            Slot::Tombstone => None,
        }
    }

    fn cost(&self) -> usize {
        ROW_OVERHEAD + self.value().map_or(0, Bytes::len)
    }
}

/// A key as two words. A single 128-bit number would align every node of the tree to 16 bytes, which sends the
/// allocator down a slow path (3 % of the writer's time).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Words(u64, u64);

impl Words {
    fn of(key: Key) -> Words {
        Words((key >> 64) as u64, key as u64)
    }

    fn key(self) -> Key {
        (Key::from(self.0) << 64) | Key::from(self.1)
    }
}

/// Sorted rows of all tables.
#[derive(Debug, Default)]
pub(crate) struct Memtable {
    tables: PerTable<BTreeMap<Words, Slot>>,
    bytes: usize,
}

impl Memtable {
    /// Approximate memory used by the rows.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, table: Table, key: Key) -> Option<&Slot> {
        self.tables.get(table).get(&Words::of(key))
    }

    /// Entries with `from <= key <= to`. `from` must not exceed `to`.
    pub(crate) fn range(
        &self,
        table: Table,
        from: Key,
        to: Key,
    ) -> impl DoubleEndedIterator<Item = (Key, &Slot)> {
        let rows = self.tables.get(table).range(Words::of(from)..=Words::of(to));
        rows.map(|(words, slot)| (words.key(), slot))
    }

    pub(crate) fn put(&mut self, table: Table, key: Key, value: Bytes) {
        match self.tables.get_mut(table).entry(Words::of(key)) {
            Entry::Occupied(mut entry) => {
                let slot = match entry.get() {
                    Slot::Fresh(_) => Slot::Fresh(value),
                    Slot::Put(_) | Slot::Tombstone => Slot::Put(value),
                };
                self.bytes += slot.cost();
                let old = entry.insert(slot);
                self.bytes -= old.cost();
            }
            Entry::Vacant(entry) => {
                self.bytes += entry.insert(Slot::Put(value)).cost();
            }
        }
    }

    pub(crate) fn insert(&mut self, table: Table, key: Key, value: Bytes) {
        match self.tables.get_mut(table).entry(Words::of(key)) {
            Entry::Vacant(entry) => {
                self.bytes += entry.insert(Slot::Fresh(value)).cost();
            }
            // The caller broke the promise that the key is new. A plain put is always correct.
            Entry::Occupied(_) => self.put(table, key, value),
        }
    }

    pub(crate) fn delete(&mut self, table: Table, key: Key) {
        match self.tables.get_mut(table).entry(Words::of(key)) {
            Entry::Occupied(entry) if matches!(entry.get(), Slot::Fresh(_)) => {
                self.bytes -= entry.remove().cost();
            }
            Entry::Occupied(mut entry) => {
                let old = entry.insert(Slot::Tombstone);
                self.bytes = self.bytes + ROW_OVERHEAD - old.cost();
            }
            Entry::Vacant(entry) => {
                self.bytes += entry.insert(Slot::Tombstone).cost();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_deleted_before_a_checkpoint_leaves_nothing() {
        let mut rows = Memtable::default();
        rows.insert(Table::Task, 7, Bytes::from_static(b"body"));
        rows.put(Table::Task, 7, Bytes::from_static(b"changed body"));
        rows.delete(Table::Task, 7);
        assert_eq!(rows.get(Table::Task, 7), None);
        assert_eq!(rows.bytes(), 0);
    }

    #[test]
    fn a_row_that_may_exist_below_leaves_a_tombstone() {
        let mut rows = Memtable::default();
        rows.put(Table::Task, 7, Bytes::from_static(b"body"));
        rows.delete(Table::Task, 7);
        assert_eq!(rows.get(Table::Task, 7), Some(&Slot::Tombstone));
        assert_eq!(rows.bytes(), ROW_OVERHEAD);
        // An insert over a tombstone must remember that a row may exist below.
        rows.insert(Table::Task, 7, Bytes::from_static(b"again"));
        rows.delete(Table::Task, 7);
        assert_eq!(rows.get(Table::Task, 7), Some(&Slot::Tombstone));
    }

    #[test]
    fn the_byte_count_follows_replacements() {
        let mut rows = Memtable::default();
        rows.insert(Table::Body, 1, Bytes::from_static(b"12345678"));
        rows.insert(Table::Body, 1, Bytes::from_static(b"12"));
        rows.put(Table::Body, 2, Bytes::from_static(b"123"));
        assert_eq!(rows.bytes(), 2 * ROW_OVERHEAD + 5);
    }
}
