//! Tables in memory that check the contract of the `Kv` traits.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use codeq_core::kv::{Direction, Key, Kv, KvError, KvRead, Table};

#[derive(Clone, Default)]
pub struct Mem {
    tables: BTreeMap<Table, BTreeMap<Key, Bytes>>,
    /// Every key that was ever in a table: `insert` promises a new one.
    ever: BTreeSet<(Table, Key)>,
    /// Number of task rows read one by one.
    pub reads: Cell<usize>,
}

impl Mem {
    pub fn rows(&self, table: Table) -> impl Iterator<Item = (Key, &Bytes)> {
        let rows = self.tables.get(&table).into_iter().flatten();
        rows.map(|(key, value)| (*key, value))
    }

    pub fn keys(&self, table: Table) -> BTreeSet<Key> {
        self.rows(table).map(|(key, _)| key).collect()
    }

    pub fn len(&self, table: Table) -> usize {
        self.tables.get(&table).map_or(0, BTreeMap::len)
    }
}

impl KvRead for Mem {
    fn borrow(&self, table: Table, key: Key) -> Result<Option<Cow<'_, Bytes>>, KvError> {
        if table == Table::Task {
            self.reads.set(self.reads.get() + 1);
        }
        let rows = self.tables.get(&table);
        Ok(rows.and_then(|rows| rows.get(&key)).map(Cow::Borrowed))
    }

    fn scan(
        &self,
        table: Table,
        from: Key,
        to: Key,
        direction: Direction,
        limit: usize,
        out: &mut Vec<(Key, Bytes)>,
    ) -> Result<(), KvError> {
        let Some(rows) = self.tables.get(&table).filter(|_| from <= to) else {
            return Ok(());
        };
        let range = rows.range(from..=to).map(|(key, value)| (*key, value.clone()));
        match direction {
            Direction::Forward => out.extend(range.take(limit)),
            Direction::Reverse => out.extend(range.rev().take(limit)),
        }
        Ok(())
    }
}

impl Kv for Mem {
    fn put(&mut self, table: Table, key: Key, value: Bytes) {
        assert!(!value.is_empty() || matches!(table, Table::Pending | Table::Index | Table::Timer));
        self.ever.insert((table, key));
        self.tables.entry(table).or_default().insert(key, value);
    }

    fn insert(&mut self, table: Table, key: Key, value: Bytes) {
        assert!(self.ever.insert((table, key)), "{table:?} {key:#x} is not new");
        self.put(table, key, value);
    }

    fn delete(&mut self, table: Table, key: Key) {
        self.tables.entry(table).or_default().remove(&key);
    }
}
