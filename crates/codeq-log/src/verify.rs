//! Read-only inspection of a log, for `fsck`.

use std::path::{Path, PathBuf};

use codeq_disk::Disk;

use crate::recover::{self, Role};
use crate::{FrameIndex, LogError, watermark};

/// What [`verify`] found in an intact log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogReport {
    /// The random number that identifies the log.
    pub log_id: u64,
    /// The oldest frame; one past `last_index` if the log is empty.
    pub first_index: FrameIndex,
    /// The newest frame.
    pub last_index: FrameIndex,
    /// The last frame known to be synced, according to the watermark.
    pub watermark: FrameIndex,
    /// Bytes of unsynced, torn frames, which opening the log would cut.
    pub torn_bytes: u64,
    /// The segments, oldest first.
    pub segments: Vec<SegmentReport>,
}

/// One segment of a [`LogReport`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentReport {
    /// The file.
    pub file: PathBuf,
    /// Grows with every use of a segment file.
    pub epoch: u64,
    /// The length of the file in bytes.
    pub len: u64,
    /// The bytes in use, header included.
    pub used: u64,
    /// Index of its first frame; `None` if it is prepared or left over.
    pub first_index: Option<FrameIndex>,
}

/// The id of the log in a directory, without checking the rest; `None` if there is no watermark file.
pub fn log_id(disk: &dyn Disk, dir: &Path) -> Result<Option<u64>, LogError> {
    Ok(watermark::read(disk, dir)?.map(|mark| mark.log_id))
}

/// Checks a log as [`crate::Log::open`] does, without changing anything. Returns the errors that opening would.
///
/// If the log is being written at the same time, this may report a torn tail where there is none.
pub fn verify(disk: &dyn Disk, dir: &Path) -> Result<LogReport, LogError> {
    let found = recover::recover(disk, dir)?;
    let last_index = found.link.next.previous();
    let torn_bytes = found.torn().map(|torn| torn.torn_end - torn.end).sum();
    let segments: Vec<_> = found
        .segments
        .into_iter()
        .map(|found| SegmentReport {
            file: found.segment.path,
            epoch: found.segment.epoch,
            len: found.segment.len,
            used: found.end,
            first_index: match found.role {
                Role::Used { first } => Some(first),
                Role::Unused | Role::Broken => None,
            },
        })
        .collect();
    Ok(LogReport {
        log_id: found.mark.log_id,
        first_index: segments.iter().find_map(|s| s.first_index).unwrap_or(found.link.next),
        last_index,
        watermark: found.mark.index,
        torn_bytes,
        segments,
    })
}
