//! Errors of a log, worded for the person who has to act on them.

use std::io;
use std::path::{Path, PathBuf};

use codeq_disk::Shortage;

use crate::FrameIndex;

/// Why a log operation failed.
///
/// If a log is refused because of what its files contain, nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A system call failed. After a failed write or sync the log is poisoned.
    #[error("cannot {action} {}: {source}", file.display())]
    Io {
        /// The attempted operation.
        action: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A directory could not be synced, so it is unknown which of its entries survive a power cut.
    #[error("cannot sync {}: {source}", dir.display())]
    SyncDir {
        /// The directory that was synced.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An earlier write or sync failed, so the state of the disk is unknown until the log is reopened.
    #[error("the log is stopped: {reason}; restart to recover what is durable")]
    Poisoned {
        /// The first failure.
        reason: String,
    },
    /// No segment has room. Nothing was written; the log works again once a segment is provided.
    #[error("no prepared segment has room for {needed} bytes; the disk may be full")]
    NoSegment {
        /// Length of the frame that did not fit.
        needed: u64,
    },
    /// The frame is longer than a segment can hold.
    #[error("a frame of {len} bytes is over the limit of {max} bytes")]
    FrameTooLarge {
        /// Length of the frame.
        len: u64,
        /// The longest allowed.
        max: u64,
    },
    /// The configured segments are too small.
    #[error("segments of {found} bytes are too small; use at least {least} bytes")]
    SegmentTooSmall {
        /// The configured length.
        found: u64,
        /// The smallest allowed length.
        least: u64,
    },
    /// The directory contains no log.
    #[error("no log in {}", dir.display())]
    NotFound {
        /// Where the log was expected.
        dir: PathBuf,
    },
    /// The directory already contains a log.
    #[error("{} already contains a log; open it, or create the new one elsewhere", dir.display())]
    AlreadyExists {
        /// Where the log was to be created.
        dir: PathBuf,
    },
    /// Frames that were known to be durable cannot be read.
    #[error(
        "{} is corrupt at byte {offset}: {what}; nothing was changed: restore this directory from a \
         backup or a replica",
        file.display()
    )]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What was found there.
        what: String,
    },
    /// The log ends before a frame that was acknowledged.
    #[error(
        "the log ends at frame {last} in {}, but frame {acknowledged} was acknowledged as durable; \
         nothing was changed: restore this directory from a backup or a replica",
        file.display()
    )]
    ShorterThanAcknowledged {
        /// The segment in which the log ends.
        file: PathBuf,
        /// The last frame found.
        last: FrameIndex,
        /// The last synced frame, according to the watermark.
        acknowledged: FrameIndex,
    },
    /// The watermark, which says how far the log must reach, is missing or unreadable.
    #[error(
        "{} is {what}, so it is unknown whether the log is complete; nothing was changed: \
         restore this directory from a backup or a replica",
        file.display()
    )]
    NoWatermark {
        /// The watermark file.
        file: PathBuf,
        /// Missing or damaged.
        what: &'static str,
    },
    /// A newer version of codeQ wrote the file.
    #[error(
        "{} has format version {found}, this program reads up to {supported}; run the version that \
         wrote it, or a later one",
        file.display()
    )]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that this one can read.
        supported: u32,
    },
    /// The file belongs to another log or directory.
    #[error("{} does not belong here: {what}; move it out, or restore the directory", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// Why it does not belong here.
        what: String,
    },
    /// The requested frames were purged.
    #[error("frame {from} is no longer in the log, which starts at frame {first}")]
    Purged {
        /// The first frame requested.
        from: FrameIndex,
        /// The oldest frame in the log.
        first: FrameIndex,
    },
    /// The segment of a frame that was read by its position is no longer part of the log.
    #[error("frame {index} was purged from the log")]
    Gone {
        /// The frame requested.
        index: FrameIndex,
    },
    /// The requested frames are beyond the next one: the caller has seen more frames than the log holds.
    #[error("frame {from} was requested, but the log ends at frame {last}")]
    BeyondEnd {
        /// The first frame requested.
        from: FrameIndex,
        /// The newest frame in the log.
        last: FrameIndex,
    },
}

impl LogError {
    /// The shortage that caused the error, if one did. A [`PrepareJob`](crate::PrepareJob) can then be repeated later
    /// without loss; a failed append or sync has poisoned the log all the same.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            LogError::Io { source, .. } => Shortage::of(source),
            _ => None,
        }
    }

    /// For `map_err`: adds the attempted operation and the path.
    pub(crate) fn io(action: &'static str, file: &Path) -> impl FnOnce(io::Error) -> LogError {
        move |source| LogError::Io { action, file: file.to_owned(), source }
    }
}
