//! Snapshots: the rows of all shards, sent from one node to another.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::id::ShardId;
use codeq_store::{Export, Import, StoreError};

/// openraft's snapshot data. It holds handles on rows, never the rows themselves.
#[derive(Default)]
pub struct SnapshotRows {
    pub(crate) rows: Rows,
    /// openraft drops it when the rows are installed or no longer needed, which may be long after the sender has given
    /// up. Until then no other snapshot may overwrite them on disk.
    pub(crate) _installing: Option<Arc<()>>,
}

#[derive(Default)]
pub(crate) enum Rows {
    /// To be read from this node's stores.
    Outgoing(Vec<Export>),
    /// Complete and durable beside this node's stores.
    #[default]
    Incoming,
}

impl fmt::Debug for SnapshotRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.rows {
            Rows::Outgoing(_) => "SnapshotRows(outgoing)",
            Rows::Incoming => "SnapshotRows(incoming)",
        })
    }
}

impl SnapshotRows {
    /// The next chunk to send, and its shard; `None` after the last one.
    pub(crate) fn next_chunk(&mut self) -> Result<Option<(ShardId, Bytes)>, StoreError> {
        let Rows::Outgoing(exports) = &mut self.rows else { return Ok(None) };
        for (shard, export) in (0..).map(ShardId).zip(exports) {
            if let Some(chunk) = export.next_chunk()? {
                return Ok(Some((shard, chunk.into())));
            }
        }
        Ok(None)
    }
}

/// Rows that are arriving.
pub(crate) struct Receiving {
    pub number: u64,
    pub imports: Vec<Import>,
}

impl Receiving {
    /// Adds a chunk.
    pub fn add(&mut self, shard: ShardId, chunk: &[u8]) -> Result<(), StoreError> {
        match self.imports.get_mut(usize::from(shard)) {
            Some(import) => import.add(chunk),
            None => Ok(()),
        }
    }

    /// Verifies the rows and makes them durable beside the stores. They must include everything up
    /// to entry `index`: what they lack would never be applied.
    pub fn finish(self, index: u64) -> Result<(), String> {
        for import in self.imports {
            let position = import.finish().map_err(|error| error.to_string())?.position;
            // Entries 0 and 1 of a cluster that began empty do not exist.
            if position < index && index > 1 {
                return Err(format!("rows up to entry {position} came as a snapshot at {index}"));
            }
        }
        Ok(())
    }
}
