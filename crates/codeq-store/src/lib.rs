//! The rows of a shard on disk.
//!
//! A [`Store`] keeps recent writes in sorted memory and the rest in one redb file. Only checkpoints change the file,
//! off the commit path; between checkpoints, the log is what is durable. This crate knows tables, keys and bytes. It
//! knows nothing about tasks, the log's format or time, and exposes no type of the library underneath.
//!
//! Reading order: [`Store`], then `memtable` and `scan` (what reads see), `job` and `write` (a checkpoint), `file`,
//! `backend` and `blocks` (the library and its disk), `build` (space and backups), `export` and `import` (rows that
//! move to another node).

mod backend;
mod blocks;
mod build;
mod check;
mod error;
mod export;
mod file;
mod import;
mod job;
mod mem;
mod memtable;
mod overlay;
mod per_table;
mod row;
mod scan;
mod scrub;
mod store;
mod write;

pub use build::SnapshotJob;
pub use check::{CheckReport, check};
pub use error::StoreError;
pub use export::{CHUNK_BYTES, Export};
pub use file::unfinished_path;
pub use import::{Import, Imported};
pub use job::{FinishedJob, StoreJob};
pub use mem::MemStore;
pub use scrub::{ScrubJob, ScrubPlace, Scrubbed};
pub use store::Store;

/// Whose rows a store holds. Every checkpoint stores it in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The shard's number.
    pub shard: u16,
    /// The total number of shards.
    pub shards: u16,
    /// Id of the log that the rows come from.
    pub log_id: u64,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Owner { shard, shards, log_id } = self;
        write!(f, "shard {shard} of {shards} of log {log_id:016x}")
    }
}

/// Settings of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// The expected owner: a file that names another one is refused; a file of an older release that names none is
    /// accepted. `None` skips the check and keeps the file's owner.
    pub owner: Option<Owner>,
    /// Upper limit for cached pages, of which at most half hold changes that a checkpoint has not written yet.
    pub cache_bytes: usize,
    /// During a checkpoint the file is synced after this many bytes, so that no sync takes long. Measured with
    /// back-to-back checkpoints on the log's device: compared with no checkpoints, the p99 of a log sync was 1.05 times
    /// as long at 1 MiB, 1.3 times at 4 MiB, 3.4 times at 16 MiB, and 3.6 times with a single sync at the end (p99.9: 5
    /// times). A checkpoint of 64 MiB took 0.5 s instead of 0.4 s.
    pub sync_every: u64,
    /// Less unused space than this is not worth a rewrite.
    pub rewrite_slack: u64,
    /// Bytes that one step of a rewrite copies.
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
