//! Records of tenants: each tenant's in one shard, so that a put that expects a revision is one step.

use std::sync::Arc;

use codeq_core::limits::LIST_MAX;
use codeq_core::record::{Record, RecordKind};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::route::record_shard;

/// Where a walk over all records goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordCursor {
    shard: u16,
    after: u64,
}

/// Some of all records.
#[derive(Debug, Clone)]
pub struct RecordPage {
    /// The records. A page may be short, even empty, and still go on.
    pub records: Vec<Record>,
    /// Where to go on; none on the last page.
    pub next: Option<RecordCursor>,
}

impl Engine {
    /// The record of that name, unless its time is over.
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

    /// The records of a kind that a tenant has, in the order of their names.
    pub async fn records(
        &self,
        tenant: &Arc<str>,
        kind: RecordKind,
    ) -> Result<Vec<Record>, EngineError> {
        let (shard, now) = (record_shard(tenant, self.shards()), self.now().now);
        self.read(shard, |reader| reader.records(tenant, kind, now.max(reader.state.now()))).await
    }

    /// Some records of a kind, of all tenants. One that is put meanwhile is seen twice at worst; none that
    /// stays is missed.
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
            None => Some(shard + 1)
                .filter(|shard| *shard < self.shards())
                .map(|shard| RecordCursor { shard, after: 0 }),
        };
        Ok(RecordPage { records, next })
    }
}
