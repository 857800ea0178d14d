//! Records by name, by tenant, or all of them page by page.

use std::sync::Arc;

use crate::keys::{self, Seq};
use crate::kv::{Direction, Key, KvError, KvRead, Table};
use crate::limits::LIST_MAX;
use crate::moment::Millis;
use crate::read::Reader;
use crate::record::{Record, RecordKind};
use crate::rows::RecordRow;

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// The record with this name, unless it has expired at `now`, by engine time.
    pub fn record(
        &self,
        tenant: &Arc<str>,
        kind: RecordKind,
        name: &str,
        now: Millis,
    ) -> Result<Option<Record>, KvError> {
        let Some(seq) = self.state.record_number(tenant, kind, name, now) else {
            return Ok(None);
        };
        Ok(RecordRow::load(self.kv, keys::record(seq))?.map(Record::from))
    }

    /// A tenant's records of one kind at `now`, ordered by name.
    pub fn records(
        &self,
        tenant: &Arc<str>,
        kind: RecordKind,
        now: Millis,
    ) -> Result<Vec<Record>, KvError> {
        let ours = self.state.records_of(tenant, kind);
        let live = ours.filter(|(_, expires_at)| expires_at.is_none_or(|at| at > now));
        let rows = live.map(|(seq, _)| RecordRow::load(self.kv, keys::record(seq)));
        rows.filter_map(Result::transpose).map(|row| Ok(row?.into())).collect()
    }

    /// Records of one kind of all tenants at `now` with a number above `after`, and where to continue. Reads at most
    /// `limit` records.
    pub fn all_records(
        &self,
        kind: RecordKind,
        now: Millis,
        after: Seq,
        limit: usize,
    ) -> Result<(Vec<Record>, Option<Seq>), KvError> {
        let mut rows = Vec::new();
        let from = keys::record(after.next());
        let limit = limit.clamp(1, LIST_MAX);
        self.kv.scan(Table::Record, from, Key::MAX, Direction::Forward, limit, &mut rows)?;
        let next = rows.last().filter(|_| rows.len() == limit);
        let next = next.map(|(key, _)| keys::seq_of(*key));
        let mut records = Vec::new();
        for (key, value) in rows {
            let row = RecordRow::decode(key, &value)?;
            if row.kind == kind && row.expires_at.is_none_or(|at| at > now) {
                records.push(row.into());
            }
        }
        Ok((records, next))
    }
}
