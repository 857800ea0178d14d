//! The durable log: the only thing that codeQ syncs before it answers.
//!
//! A log is a directory of fixed-size *segments*. The unit of writing is the *frame*: one commit
//! group, with the records of any number of shards, written by one write and made durable by one
//! sync. Frames are numbered 1, 2, 3… over the whole log and each one carries the checksum of the
//! one before it, so that the frames form a chain in which nothing can be missing, doubled or moved
//! without being noticed.
//!
//! What the log promises:
//!
//! - A frame is durable when [`Log::sync`] has returned, and not before.
//! - [`Log::open`] gives back every durable frame, in order, or refuses. It repairs one kind of
//!   damage only, the kind that a crash leaves: a bad frame that was never known to be synced.
//! - After a failed write or sync nothing more is written ([`LogError::Poisoned`]); a sync is never
//!   tried a second time, because the second one may succeed without the data.
//!
//! What it leaves to others: what the records mean, when to sync, which frames may be purged, and
//! that one process at a time has the directory. It reads no clock, starts no thread, and touches
//! files through [`codeq_disk::Disk`] only.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let tmp = tempfile::tempdir()?;
//! # let dir = tmp.path().join("log");
//! # let log_id = 4;
//! use codeq_log::{Log, LogError, NewLog, Options};
//!
//! let disk = std::sync::Arc::new(codeq_disk::RealDisk);
//! let options = Options { segment_bytes: 1024 * 1024 };
//! let mut log = match Log::open(disk.clone(), &dir, options) {
//!     Err(LogError::NotFound { .. }) => {
//!         Log::create(disk, &dir, options, NewLog { first_index: 1, log_id })?
//!     }
//!     other => other?,
//! };
//! // Usually on another thread.
//! while let Some(job) = log.wanted() {
//!     log.provide(job.run()?);
//! }
//! let index = log.append(&[(0, b"one"), (3, b"two")])?;
//! log.sync()?;
//! // Now, and not before, clients may be told.
//!
//! log.replay(index, |_, shard, record| {
//!     println!("shard {shard}: {} bytes", record.len());
//!     Ok::<_, LogError>(())
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! The bytes are described in `FORMAT.md` beside this crate's sources.

mod bytes;
mod error;
mod frame;
mod log;
mod open;
mod prepare;
mod reader;
mod recover;
mod segment;
mod verify;
mod watermark;

pub use error::LogError;
pub use frame::{FRAME_HEADER_BYTES, RECORD_HEADER_BYTES, frame_len};
pub use log::Log;
pub use open::NewLog;
pub use prepare::{PrepareJob, Prepared};
pub use segment::SEGMENT_HEADER_BYTES;
pub use verify::{LogReport, SegmentReport, log_id, verify};

/// The number of a frame: 1, 2, 3… over the life of the log.
pub type FrameIndex = u64;

/// The longest frame, header included. Bounds the memory of a reader and the time of one write; the
/// groups that the engine forms are far smaller.
pub const MAX_FRAME_BYTES: u64 = 32 * 1024 * 1024;

/// Segments that stand ready behind the current one. Two, so that one is still there while the
/// next is written: at a full disk this is also the room for the commands that free space.
pub const PREPARED_SEGMENTS: usize = 2;

/// Purged segments kept for reuse; more are removed. Two cover what a checkpoint frees between two
/// preparations; a burst that needed more gives its space back.
pub const MAX_SPARE_SEGMENTS: usize = 2;

/// The smallest segment that is accepted: room for the header and a frame of some use.
pub const MIN_SEGMENT_BYTES: u64 = 512;

/// What can be chosen about a log.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The length of new segments in bytes. Segments that exist keep theirs.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 64 * 1024 * 1024 }
    }
}

impl Options {
    /// The longest frame that fits every segment made with these options.
    pub fn max_frame_bytes(&self) -> u64 {
        MAX_FRAME_BYTES.min(self.segment_bytes.saturating_sub(SEGMENT_HEADER_BYTES))
    }
}
