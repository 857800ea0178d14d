//! Errors of the engine.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use codeq_core::codec::DecodeError;
use codeq_core::id::ShardId;
use codeq_core::kv::KvError;
use codeq_disk::Shortage;
use codeq_log::{FrameIndex, LogError};
use codeq_store::StoreError;
use serde::{Deserialize, Serialize};

/// Why a call or a read got no answer. Rejections by the rules are answers, not errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum EngineError {
    /// More work is queued than the engine accepts. Nothing was done; try again later.
    #[error("overloaded: the engine's queue is full")]
    Overloaded,
    /// The limit of waiting clients is reached, in total or for this tenant. Nothing was done.
    #[error("too many clients are waiting: retry later, or without waiting")]
    TooManyWaiting,
    /// The command is larger than the log accepts at once. Nothing was done.
    #[error("the command has {bytes} bytes, but at most {max} are possible: send smaller requests")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The largest size in bytes.
        max: usize,
    },
    /// The disk is full. Nothing was done. Reads continue; writes resume once there is space.
    #[error("the disk is full: writes are refused until there is space")]
    DiskFull,
    /// Too many files are open. Nothing was done. Reads continue; writes resume once some are closed.
    #[error("no file descriptors are left: writes are refused until some are free")]
    NoDescriptors,
    /// The engine stopped after a failed write or read. Whether the operation happened is unknown.
    #[error("the engine has stopped: {0}")]
    Failed(Arc<str>),
    /// The engine is shut down.
    #[error("the engine is shut down")]
    Closed,
    /// The idempotency keys of an atomic batch belong to different shards.
    #[error("the idempotency keys of an atomic batch belong to different shards")]
    AtomicSpansShards,
    /// A command that goes through the shards in parts was proposed as a whole. Nothing was done.
    #[error("the command concerns every shard: propose it as a bulk operation, one part per shard")]
    ConcernsEveryShard,
    /// `maxConsumers` cannot be divided among the shards.
    #[error("maxConsumers must be 0 or at least the number of shards ({shards})")]
    TooFewConsumers {
        /// The number of shards.
        shards: u16,
    },
    /// This node of the cluster does not lead, or does not know a leader. Nothing was done.
    #[error("the cluster has no leader at the moment: retry later")]
    NoLeader,
    /// Whether the operation happened is unknown, or only a part of it did: the node lost its leadership while the
    /// operation was on its way, or one of several shards refused its part.
    #[error("it is unknown whether the operation happened, and whether all of it did")]
    Unknown,
}

impl EngineError {
    /// Whether nothing was done, so that the call can be repeated.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            EngineError::Overloaded
            | EngineError::TooManyWaiting
            | EngineError::TooLarge { .. }
            | EngineError::DiskFull
            | EngineError::NoDescriptors
            | EngineError::AtomicSpansShards
            | EngineError::ConcernsEveryShard
            | EngineError::TooFewConsumers { .. }
            | EngineError::NoLeader => true,
            EngineError::Failed(_) | EngineError::Closed | EngineError::Unknown => false,
        }
    }
}

impl From<Shortage> for EngineError {
    fn from(shortage: Shortage) -> EngineError {
        match shortage {
            Shortage::Space => EngineError::DiskFull,
            Shortage::Descriptors => EngineError::NoDescriptors,
        }
    }
}

/// Why a data directory was not opened, backed up or restored. A failed open loses nothing.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("{} is in use by another process: stop it first, or use another directory", .0.display())]
    InUse(PathBuf),
    /// It is not a codeQ data directory, or not one that can be used here.
    #[error("{} is not a codeQ data directory that can be used here: {reason}", dir.display())]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// Files are missing, or belong to another directory.
    #[error("the files in {} do not belong together: {reason}", dir.display())]
    Mixed {
        /// The directory.
        dir: PathBuf,
        /// What does not match.
        reason: String,
    },
    /// The log has commands for a shard that the directory does not have.
    #[error(
        "frame {index} of the log names shard {shard}, which the data directory does not have: restore a backup"
    )]
    UnknownShard {
        /// The frame or entry of the log.
        index: u64,
        /// The shard that it names.
        shard: ShardId,
    },
    /// A backup or a restore was interrupted here.
    #[error(
        "{} holds an unfinished {operation}, which was interrupted before it was complete; nothing was changed: \
         remove the directory and run the {operation} again",
        dir.display()
    )]
    Unfinished {
        /// The directory.
        dir: PathBuf,
        /// The interrupted operation.
        operation: DirectoryOperation,
    },
    /// The target of a backup or restore is not empty.
    #[error("{} is not empty: it holds '{name}'; choose an empty directory", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// Something the directory contains.
        name: String,
    },
    /// A newer version wrote it.
    #[error(
        "{} has format version {found}, this version of codeq reads up to {supported}: run the \
         version that wrote it, or a later one",
        dir.display()
    )]
    TooNew {
        /// The directory.
        dir: PathBuf,
        /// The directory's version.
        found: u32,
        /// The newest version that this one can read.
        supported: u32,
    },
    /// The directory has a different number of shards. It cannot change, because task ids depend on it.
    #[error(
        "{} has {found} shard(s) but {wanted} were asked for: the number of shards is fixed when a \
         directory is made; leave it out, or use another directory",
        dir.display()
    )]
    Shards {
        /// The directory.
        dir: PathBuf,
        /// The number it was created with.
        found: u16,
        /// The requested number.
        wanted: u16,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The log could not be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The rows are inconsistent.
    #[error(transparent)]
    Rows(#[from] KvError),
    /// A record of the log does not decode.
    #[error("log frame {index}, shard {shard}: {source}")]
    Record {
        /// Index of the frame.
        index: FrameIndex,
        /// The shard.
        shard: ShardId,
        /// Why it does not decode.
        source: DecodeError,
    },
    /// The operation needs a running engine, and the engine returned this error.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl OpenError {
    /// For `map_err`: a system call failed.
    pub fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> OpenError {
        let path = path.to_owned();
        move |source| OpenError::Io { action, path, source }
    }
}

/// An operation that creates a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryOperation {
    /// The first start in an empty directory.
    Creation,
    /// `codeq backup`.
    Backup,
    /// `codeq restore`.
    Restore,
}

impl DirectoryOperation {
    pub(crate) const ALL: [DirectoryOperation; 3] =
        [DirectoryOperation::Creation, DirectoryOperation::Backup, DirectoryOperation::Restore];
}

impl fmt::Display for DirectoryOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DirectoryOperation::Creation => "creation",
            DirectoryOperation::Backup => "backup",
            DirectoryOperation::Restore => "restore",
        })
    }
}
