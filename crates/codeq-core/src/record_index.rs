//! Where a shard's records are: an index by kind, tenant and name, kept in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::keys::{self, Seq};
use crate::kv::{Key, KvError, KvRead, Table, for_each};
use crate::moment::Millis;
use crate::record::RecordKind;
use crate::rows::RecordRow;

/// Locates a record: its number and expiry. The rest is in its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub seq: Seq,
    pub expires_at: Option<Millis>,
}

impl Slot {
    pub fn is_over(&self, now: Millis) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// The index. An expired record stays in it until a sweep removes the record.
#[derive(Debug, Default)]
pub(crate) struct RecordIndex {
    pub by_owner: BTreeMap<(RecordKind, Arc<str>), BTreeMap<Arc<str>, Slot>>,
    pub total: usize,
}

impl RecordIndex {
    /// Builds the index from the table.
    pub fn load<K: KvRead + ?Sized>(kv: &K) -> Result<RecordIndex, KvError> {
        let mut records = RecordIndex::default();
        for_each(kv, Table::Record, 0, Key::MAX, |key, value| {
            let row = RecordRow::decode(key, value)?;
            let slot = Slot { seq: keys::seq_of(key), expires_at: row.expires_at };
            records.set(row.kind, &row.tenant, &row.name, slot);
            Ok(())
        })?;
        Ok(records)
    }

    pub fn of(&self, kind: RecordKind, tenant: &Arc<str>) -> Option<&BTreeMap<Arc<str>, Slot>> {
        self.by_owner.get(&(kind, Arc::clone(tenant)))
    }

    pub fn get(&self, kind: RecordKind, tenant: &Arc<str>, name: &str) -> Option<Slot> {
        self.of(kind, tenant)?.get(name).copied()
    }

    pub fn set(&mut self, kind: RecordKind, tenant: &Arc<str>, name: &Arc<str>, slot: Slot) {
        let names = self.by_owner.entry((kind, Arc::clone(tenant))).or_default();
        if names.insert(Arc::clone(name), slot).is_none() {
            self.total += 1;
        }
    }

    pub fn remove(&mut self, kind: RecordKind, tenant: &Arc<str>, name: &str) {
        let owner = (kind, Arc::clone(tenant));
        let Some(names) = self.by_owner.get_mut(&owner) else {
            return;
        };
        if names.remove(name).is_some() {
            self.total -= 1;
        }
        if names.is_empty() {
            self.by_owner.remove(&owner);
        }
    }
}
