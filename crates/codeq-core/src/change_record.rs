//! Puts, deletes and expires records.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::{DeleteRecord, PutRecord};
use crate::effect::Effect;
use crate::keys::{self, Seq, TimerKind};
use crate::kv::{Kv, KvError, Table};
use crate::limits::{
    RECORD_TTL_MS_MAX, RECORD_VALUE_BYTES_MAX, RECORDS_PER_KIND_MAX, RECORDS_PER_SHARD_MAX,
};
use crate::moment::Millis;
use crate::names::{check_record_name, check_tenant};
use crate::record::RecordKind;
use crate::record_index::Slot;
use crate::reply::{Rejection, Reply};
use crate::rows::RecordRow;
use crate::state::State;
use crate::step::Step;

impl State {
    /// The number of a record, unless it has expired at `now`.
    pub fn record_number(
        &self,
        tenant: &Arc<str>,
        kind: RecordKind,
        name: &str,
        now: Millis,
    ) -> Option<Seq> {
        let slot = self.records.get(kind, tenant, name)?;
        (!slot.is_over(now)).then_some(slot.seq)
    }

    /// Number and expiry of all records of one kind of a tenant, ordered by name, including expired ones that are not
    /// removed yet.
    pub fn records_of(
        &self,
        tenant: &Arc<str>,
        kind: RecordKind,
    ) -> impl Iterator<Item = (Seq, Option<Millis>)> {
        let slots = self.records.of(kind, tenant).into_iter().flat_map(BTreeMap::values);
        slots.map(|slot| (slot.seq, slot.expires_at))
    }

    /// Kind, tenant, name, number and expiry of every record, ordered by kind, tenant and name.
    pub fn records(
        &self,
    ) -> impl Iterator<Item = (RecordKind, &Arc<str>, &Arc<str>, Seq, Option<Millis>)> {
        self.records.by_owner.iter().flat_map(|((kind, tenant), names)| {
            names.iter().map(move |(name, slot)| (*kind, tenant, name, slot.seq, slot.expires_at))
        })
    }

    /// Number of records in the shard.
    pub fn record_count(&self) -> usize {
        self.records.total
    }
}

impl<K: Kv> Step<'_, K> {
    pub(crate) fn put_record(&mut self, command: &PutRecord) -> Result<Reply, KvError> {
        if let Err(rejection) = check(command) {
            return Ok(Reply::Rejected(rejection));
        }
        let PutRecord { tenant, kind, name, .. } = command;
        let slot = self.state.records.get(*kind, tenant, name);
        let known = self.live_record(slot)?;
        if !is_expected(command.expected, known.as_ref()) {
            return Ok(Reply::Rejected(Rejection::RecordChanged));
        }
        if known.is_none()
            && let Err(rejection) = self.check_room(*kind, tenant)
        {
            return Ok(Reply::Rejected(rejection));
        }
        if let Some(slot) = slot {
            self.drop_record(slot, *kind, tenant, name)?;
        }
        let row = RecordRow {
            kind: *kind,
            tenant: Arc::clone(tenant),
            name: Arc::clone(name),
            value: command.value.clone(),
            revision: known.as_ref().map_or(1, |known| known.revision.saturating_add(1)),
            created_at: known.as_ref().map_or(self.wall, |known| known.created_at),
            updated_at: self.wall,
            expires_at: command.ttl.map(|ttl| self.now.saturating_add(ttl)),
        };
        let seq = self.take_seq();
        self.kv.insert(Table::Record, keys::record(seq), row.encode());
        if let Some(at) = row.expires_at {
            self.state.timers.arm(self.kv, TimerKind::Record, at, seq, Bytes::new());
        }
        let slot = Slot { seq, expires_at: row.expires_at };
        self.state.records.set(*kind, tenant, name, slot);
        self.record_changed(*kind, tenant, name);
        Ok(Reply::Record(Box::new(row.into())))
    }

    pub(crate) fn delete_record(&mut self, command: &DeleteRecord) -> Result<Reply, KvError> {
        let DeleteRecord { tenant, kind, name, expected } = command;
        let slot = self.state.records.get(*kind, tenant, name);
        let Some(known) = self.live_record(slot)? else {
            return Ok(Reply::Rejected(Rejection::NotFound));
        };
        if !is_expected(*expected, Some(&known)) {
            return Ok(Reply::Rejected(Rejection::RecordChanged));
        }
        if let Some(slot) = slot {
            self.drop_record(slot, *kind, tenant, name)?;
        }
        self.record_changed(*kind, tenant, name);
        Ok(Reply::Done)
    }

    /// Removes at most `limit` expired records.
    pub(crate) fn remove_old_records(&mut self, limit: usize) -> Result<u32, KvError> {
        let due = self.state.timers.due(self.kv, TimerKind::Record, self.now, limit)?;
        let mut removed = 0;
        for (key, _) in due {
            let seq = keys::seq_of(key);
            let Some(row) = RecordRow::load(self.kv, keys::record(seq))? else {
                continue;
            };
            let slot = Slot { seq, expires_at: row.expires_at };
            self.drop_record(slot, row.kind, &row.tenant, &row.name)?;
            self.record_changed(row.kind, &row.tenant, &row.name);
            removed += 1;
        }
        Ok(removed)
    }

    fn live_record(&self, slot: Option<Slot>) -> Result<Option<RecordRow>, KvError> {
        match slot.filter(|slot| !slot.is_over(self.now)) {
            Some(slot) => RecordRow::load(self.kv, keys::record(slot.seq)),
            None => Ok(None),
        }
    }

    /// Checks the limits on records. Expired records that are not swept yet do not count against their tenant.
    fn check_room(&self, kind: RecordKind, tenant: &Arc<str>) -> Result<(), Rejection> {
        let full = |max| Err(Rejection::TooManyRecords { max });
        if self.state.records.total >= RECORDS_PER_SHARD_MAX {
            return full(RECORDS_PER_SHARD_MAX);
        }
        let Some(names) = self.state.records.of(kind, tenant) else {
            return Ok(());
        };
        let live = || names.values().filter(|slot| !slot.is_over(self.now)).count();
        if names.len() >= RECORDS_PER_KIND_MAX && live() >= RECORDS_PER_KIND_MAX {
            return full(RECORDS_PER_KIND_MAX);
        }
        Ok(())
    }

    fn drop_record(
        &mut self,
        slot: Slot,
        kind: RecordKind,
        tenant: &Arc<str>,
        name: &str,
    ) -> Result<(), KvError> {
        self.kv.delete(Table::Record, keys::record(slot.seq));
        if let Some(at) = slot.expires_at {
            self.state.timers.disarm(self.kv, TimerKind::Record, at, slot.seq)?;
        }
        self.state.records.remove(kind, tenant, name);
        Ok(())
    }

    fn record_changed(&mut self, kind: RecordKind, tenant: &Arc<str>, name: &Arc<str>) {
        self.changed = true;
        let (tenant, name) = (Arc::clone(tenant), Arc::clone(name));
        self.effects.push(Effect::RecordChanged { kind, tenant, name });
    }
}

fn check(command: &PutRecord) -> Result<(), Rejection> {
    check_tenant(&command.tenant)?;
    check_record_name(&command.name)?;
    if command.value.len() > RECORD_VALUE_BYTES_MAX {
        return Err(Rejection::InvalidRecord { field: "value".into() });
    }
    if command.ttl.is_some_and(|ttl| !(1..=RECORD_TTL_MS_MAX).contains(&ttl)) {
        return Err(Rejection::InvalidRecord { field: "ttl".into() });
    }
    Ok(())
}

fn is_expected(expected: Option<u64>, known: Option<&RecordRow>) -> bool {
    expected.is_none_or(|wanted| known.map_or(0, |known| known.revision) == wanted)
}
