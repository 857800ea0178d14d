//! The durable log: the only thing codeQ syncs before it answers.
//!
//! A log is a directory of fixed-size *segments*. The unit of writing is the *frame*: one commit group with records
//! of any number of shards, written with one write and made durable by one sync. Frames are numbered 1, 2, 3… across
//! the whole log, and each carries the checksum of its predecessor. They form a chain in which no frame can be
//! missing, duplicated or moved unnoticed.
//!
//! The log guarantees:
//!
//! - A frame is durable once [`Log::sync`] has returned, and not before.
//! - [`Log::open`] recovers every durable frame, in order, or returns an error. It repairs only the damage that a
//!   crash leaves: a bad frame that was never known to be synced.
//! - After a failed write or sync nothing more is written ([`LogError::Poisoned`]). A sync is never repeated, because
//!   the second one may succeed without the data.
//!
//! The caller decides what records mean, when to sync, and which frames to purge, and makes sure that only one
//! process uses the directory. The log reads no clock, starts no threads, and only touches files through
//! [`codeq_disk::Disk`].
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let tmp = tempfile::tempdir()?;
//! # let dir = tmp.path().join("log");
//! # let log_id = 4;
//! use codeq_log::{FrameIndex, Log, LogError, NewLog, Options};
//!
//! let disk = std::sync::Arc::new(codeq_disk::RealDisk);
//! let options = Options { segment_bytes: 1024 * 1024 };
//! let mut log = match Log::open(disk.clone(), &dir, options) {
//!     Err(LogError::NotFound { .. }) => {
//!         Log::create(disk, &dir, options, NewLog { first_index: FrameIndex(1), log_id })?
//!     }
//!     other => other?,
//! };
//! // Usually on another thread.
//! while let Some(job) = log.next_job() {
//!     log.provide(job.run()?);
//! }
//! let position = log.append(&[(0, b"one"), (3, b"two")])?;
//! log.sync()?;
//! // Only now may clients be answered.
//!
//! log.replay(position.index, |_, shard, record| {
//!     println!("shard {shard}: {} bytes", record.len());
//!     Ok::<_, LogError>(())
//! })?;
//!
//! // A single frame, on any thread.
//! let mut reader = log.reader();
//! assert_eq!(reader.read(position)?.records().count(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! `FORMAT.md`, next to this crate's sources, describes the bytes.

mod bytes;
mod chain;
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

use std::fmt;

pub use error::LogError;
pub use frame::{FRAME_HEADER_BYTES, RECORD_HEADER_BYTES, frame_len};
pub use log::Log;
pub use open::NewLog;
pub use prepare::{PrepareJob, Prepared};
pub use reader::{Frame, LogReader, Position};
pub use segment::SEGMENT_HEADER_BYTES;
pub use verify::{LogReport, SegmentReport, log_id, verify};

/// Index of a frame: 1, 2, 3… over the life of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameIndex(pub u64);

impl FrameIndex {
    /// The index of the following frame.
    #[must_use]
    pub fn next(self) -> FrameIndex {
        FrameIndex(self.0.saturating_add(1))
    }

    /// The index of the frame before; 0 if this is the first one.
    #[must_use]
    pub fn previous(self) -> FrameIndex {
        FrameIndex(self.0.saturating_sub(1))
    }
}

impl fmt::Display for FrameIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The longest frame, including its header. Bounds a reader's memory and the time of one write; the engine's groups are
/// far smaller.
pub const MAX_FRAME_BYTES: u64 = 32 * 1024 * 1024;

/// Segments kept ready after the current one. Two, so that one is left while another is being prepared; on a full disk
/// they are also the room for commands that free space.
pub const PREPARED_SEGMENTS: usize = 2;

/// Purged segments kept for reuse; any more are removed. Two cover what a checkpoint frees between two preparations;
/// after a burst that needed more, the space is returned.
pub const MAX_SPARE_SEGMENTS: usize = 2;

/// The smallest allowed segment: the header and one useful frame.
pub const MIN_SEGMENT_BYTES: u64 = 512;

/// Settings of a log.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Length of new segments in bytes. Existing segments keep theirs.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 64 * 1024 * 1024 }
    }
}

impl Options {
    /// The longest frame that fits into every segment made with these options.
    pub fn max_frame_bytes(&self) -> u64 {
        MAX_FRAME_BYTES.min(self.segment_bytes.saturating_sub(SEGMENT_HEADER_BYTES))
    }
}
