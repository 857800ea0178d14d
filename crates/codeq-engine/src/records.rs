//! Reads tenants' records, see [`codeq_core::record`]. All records of a tenant are in one shard, so that a conditional
//! put is one step.

use std::sync::Arc;

use codeq_core::id::ShardId;
use codeq_core::keys::Seq;
use codeq_core::limits::LIST_MAX;
use codeq_core::record::{Record, RecordKind};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::route::record_shard;

/// Where a walk over all records continues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordCursor {
    shard: ShardId,
    after: Seq,
}

/// A page of records.
#[derive(Debug, Clone)]
pub struct RecordPage {
    /// The records. A page may be short or empty without being the last.
    pub records: Vec<Record>,
    /// Where to continue; `None` on the last page.
    pub next: Option<RecordCursor>,
}

impl Engine {
    /// The record with this name, unless it has expired.
    pub async fn record(
        &self,
        tenant: &Arc<str>,
        kind: RecordKind,
        name: &str,
    ) -> Result<Option<Record>, EngineError> {
        let (shard, now) = (record_shard(tenant, self.shards()), self.now().now);
        self.read(shard, |reader| reader.record(tenant, kind, name, now.max(reader.state.now())))
            .await
    }

    /// A tenant's records of one kind, ordered by name.
    pub async fn records(
        &self,
        tenant: &Arc<str>,
        kind: RecordKind,
    ) -> Result<Vec<Record>, EngineError> {
        let (shard, now) = (record_shard(tenant, self.shards()), self.now().now);
        self.read(shard, |reader| reader.records(tenant, kind, now.max(reader.state.now()))).await
    }

    /// Some records of one kind, of all tenants. A record that is put meanwhile may be seen twice; one that stays is
    /// never missed.
    pub async fn all_records(
        &self,
        kind: RecordKind,
        from: RecordCursor,
    ) -> Result<RecordPage, EngineError> {
        let RecordCursor { shard, after } = from;
        let now = self.now().now;
        let page = self.read(shard, |reader| {
            reader.all_records(kind, now.max(reader.state.now()), after, LIST_MAX)
        });
        let (records, next) = page.await?;
        let next = match next {
            Some(after) => Some(RecordCursor { shard, after }),
            None => Some(shard.next())
                .filter(|shard| shard.0 < self.shards())
                .map(|shard| RecordCursor { shard, after: Seq(0) }),
        };
        Ok(RecordPage { records, next })
    }
}
