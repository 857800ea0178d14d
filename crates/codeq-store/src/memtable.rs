//! The rows written since a checkpoint, sorted, in memory.
//!
//! A memtable shadows what lies under it: a value replaces the row below, a tombstone hides it. It knows
//! nothing of files; its rows are durable only through the log.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use codeq_core::kv::{Key, Table};

use crate::per_table::PerTable;

/// What a row costs beyond its value: 16 bytes of key and 40 of slot in B-tree nodes that ascending keys
/// leave half full (112 bytes a row measured, with a million empty rows), and the allocator's rounding.
const ROW_OVERHEAD: usize = 128;

/// What a memtable says about one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A row whose key is in no layer below, so that deleting it needs no tombstone.
    Fresh(Bytes),
    /// A row that may replace one below.
    Put(Bytes),
    /// The row is deleted, whatever lies below.
    Tombstone,
}

impl Slot {
    /// The value, if the row is there.
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

/// A key as two words. As one 128-bit number it would be aligned to 16 bytes, and with it every node of
/// the tree, which sends the allocator down a slow path (3 % of the writer's time).
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
    /// About how much memory the rows take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, table: Table, key: Key) -> Option<&Slot> {
        self.tables.get(table).get(&Words::of(key))
    }

    /// The slots with `from <= key <= to`. `from` must not be above `to`.
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
            // The caller broke the promise that the key is new. A plain put is always right.
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
    fn a_row_that_lived_and_died_in_memory_leaves_nothing() {
        let mut rows = Memtable::default();
        rows.insert(Table::Task, 7, Bytes::from_static(b"body"));
        rows.put(Table::Task, 7, Bytes::from_static(b"changed body"));
        rows.delete(Table::Task, 7);
        assert_eq!(rows.get(Table::Task, 7), None);
        assert_eq!(rows.bytes(), 0);
    }

    #[test]
    fn a_row_that_may_lie_below_leaves_a_tombstone() {
        let mut rows = Memtable::default();
        rows.put(Table::Task, 7, Bytes::from_static(b"body"));
        rows.delete(Table::Task, 7);
        assert_eq!(rows.get(Table::Task, 7), Some(&Slot::Tombstone));
        assert_eq!(rows.bytes(), ROW_OVERHEAD);
        // An insert over a tombstone must not forget that something may lie below.
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
