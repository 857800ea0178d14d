//! What can go wrong with a log, in words for the person who has to act.

use std::io;
use std::path::{Path, PathBuf};

use codeq_disk::Shortage;

use crate::FrameIndex;

/// Why the log did not do what it was asked.
///
/// A log that is refused for what its files hold has not been touched.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system refused. After a failed write or sync the log is poisoned.
    #[error("cannot {action} {}: {source}", file.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A directory could not be synced: which of its entries survive a power cut is unknown.
    #[error("cannot sync {}: {source}", dir.display())]
    SyncDir {
        /// The directory.
        dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// An earlier write or sync failed, so what is on the disk is unknown until the log is reopened.
    #[error("the log is stopped: {reason}; restart to recover what is durable")]
    Poisoned {
        /// What failed first.
        reason: String,
    },
    /// No segment has room. Nothing was written; the log can be used again once one is provided.
    #[error("no prepared segment has room for {needed} bytes; the disk may be full")]
    NoSegment {
        /// The length of the frame that found no room.
        needed: u64,
    },
    /// The frame is longer than any segment takes.
    #[error("a frame of {len} bytes is over the limit of {max} bytes")]
    FrameTooLarge {
        /// The length of the frame.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// The options cannot work.
    #[error("segments of {found} bytes are too small, the least is {least} bytes")]
    SegmentTooSmall {
        /// The length asked for.
        found: u64,
        /// The smallest length possible.
        least: u64,
    },
    /// There is no log in the directory.
    #[error("no log in {}", dir.display())]
    NotFound {
        /// The directory.
        dir: PathBuf,
    },
    /// A log was to be created where there is one.
    #[error("there is a log in {} already; open it, or create the new one elsewhere", dir.display())]
    AlreadyExists {
        /// The directory.
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
    /// The log ends before frames that were acknowledged.
    #[error(
        "the log ends at frame {last} in {}, but frame {acknowledged} was acknowledged as durable; \
         nothing was changed: restore this directory from a backup or a replica",
        file.display()
    )]
    ShorterThanAcknowledged {
        /// The segment in which the log ends.
        file: PathBuf,
        /// The last frame that is there.
        last: FrameIndex,
        /// The last frame that was synced, by the watermark.
        acknowledged: FrameIndex,
    },
    /// The file that says how far the log must reach is missing or unreadable.
    #[error(
        "{} is {what}, so that nobody can say whether the log is complete; nothing was changed: \
         restore this directory from a backup or a replica",
        file.display()
    )]
    NoWatermark {
        /// The watermark file.
        file: PathBuf,
        /// Missing or damaged.
        what: &'static str,
    },
    /// A later version of codeQ wrote the file.
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
        /// The newest version known here.
        supported: u32,
    },
    /// The file belongs to another log or another place.
    #[error("{} does not belong here: {what}; move it out, or restore the directory", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// How that was seen.
        what: String,
    },
    /// Frames were asked for that are no longer in the log.
    #[error("frame {from} is no longer in the log, which starts at frame {first}")]
    Purged {
        /// The first frame asked for.
        from: FrameIndex,
        /// The first frame there is.
        first: FrameIndex,
    },
    /// Frames were asked for beyond the one that would come next: the asker has seen more than the
    /// log holds.
    #[error("frame {from} was asked for, but the log ends at frame {last}")]
    BeyondEnd {
        /// The first frame asked for.
        from: FrameIndex,
        /// The last frame there is.
        last: FrameIndex,
    },
}

impl LogError {
    /// What the system lacked, if the same can succeed later with nothing lost in between.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            LogError::Io { source, .. } => Shortage::of(source),
            _ => None,
        }
    }

    /// For `map_err`: an operating system error with what was tried and where.
    pub(crate) fn io(action: &'static str, file: &Path) -> impl FnOnce(io::Error) -> LogError {
        move |source| LogError::Io { action, file: file.to_owned(), source }
    }
}
