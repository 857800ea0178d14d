//! A store in memory: the reference for [`crate::Store`], and the base of tests of the rules.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use codeq_core::kv::{Direction, Key, Kv, KvError, KvRead, Table};

use crate::per_table::PerTable;

/// Sorted maps behind the store's traits. Nothing is ever durable.
#[derive(Debug, Default, Clone)]
pub struct MemStore {
    tables: PerTable<BTreeMap<Key, Bytes>>,
}

impl MemStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl KvRead for MemStore {
    fn borrow(&self, table: Table, key: Key) -> Result<Option<Cow<'_, Bytes>>, KvError> {
        Ok(self.tables.get(table).get(&key).map(Cow::Borrowed))
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
        if from > to {
            return Ok(());
        }
        let rows = self.tables.get(table).range(from..=to);
        let copy = |(key, value): (&Key, &Bytes)| (*key, value.clone());
        match direction {
            Direction::Forward => out.extend(rows.take(limit).map(copy)),
            Direction::Reverse => out.extend(rows.rev().take(limit).map(copy)),
        }
        Ok(())
    }
}

impl Kv for MemStore {
    fn put(&mut self, table: Table, key: Key, value: Bytes) {
        self.tables.get_mut(table).insert(key, value);
    }

    fn insert(&mut self, table: Table, key: Key, value: Bytes) {
        self.put(table, key, value);
    }

    fn delete(&mut self, table: Table, key: Key) {
        self.tables.get_mut(table).remove(&key);
    }
}
