//! The rows of a shard on disk.
//!
//! A [`Store`] keeps recent writes in sorted memory and the rest in one redb file. The file only changes
//! by checkpoints, which run beside the commit path; between two of them the log is what is durable.
//! This crate knows tables, keys and bytes. It knows nothing of tasks, of the log's format or of time,
//! and no type of the library under it is visible from outside.
//!
//! Reading order: [`Store`], then `memtable` and `scan` (what reads see), `flush` and `write` (a
//! checkpoint), `file`, `backend` and `blocks` (the library and its disk), `rewrite` (space and backups).

mod backend;
mod blocks;
mod check;
mod error;
mod file;
mod flush;
mod mem;
mod memtable;
mod overlay;
mod per_table;
mod rewrite;
mod row;
mod scan;
mod scrub;
mod store;
mod write;

pub use check::{CheckReport, check};
pub use error::StoreError;
pub use flush::{FlushJob, Flushed};
pub use mem::MemStore;
pub use rewrite::SnapshotJob;
pub use scrub::{ScrubJob, ScrubPlace, Scrubbed};
pub use store::Store;

/// Whose rows a store holds. Every checkpoint writes it into the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The shard's number.
    pub shard: u16,
    /// How many shards there are.
    pub shards: u16,
    /// The id of the log that the rows come from.
    pub log_id: u64,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Owner { shard, shards, log_id } = self;
        write!(f, "shard {shard} of {shards} of log {log_id:016x}")
    }
}

/// The bounds of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whose rows these are: a file that says otherwise is refused, one of an older release that says
    /// nothing is not. None asks nothing and leaves the file's own.
    pub owner: Option<Owner>,
    /// The most memory that cached pages take, half of it at most for pages that a checkpoint has
    /// changed and not written yet.
    pub cache_bytes: usize,
    /// While a checkpoint is written the file is synced after this many bytes, so that no sync is long.
    /// With checkpoints back to back on the log's device, a log sync's p99 was 1.05 times the one
    /// without checkpoints at 1 MiB, 1.3 times at 4, 3.4 times at 16, and 3.6 times with a single sync
    /// at the end (p99.9 then 5 times); a checkpoint of 64 MiB took 0.5 s instead of 0.4.
    pub sync_every: u64,
    /// Unused space below this is not worth a rewrite.
    pub rewrite_slack: u64,
    /// How many bytes one step of a rewrite copies.
    pub rewrite_step: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            owner: None,
            cache_bytes: 64 << 20,
            sync_every: 1 << 20,
            rewrite_slack: 64 << 20,
            rewrite_step: 64 << 20,
        }
    }
}
