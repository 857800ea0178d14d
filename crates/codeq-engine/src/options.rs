//! What can be chosen about an engine, and its bounds by name.

use std::time::Duration;

use codeq_core::settings::Settings;

use crate::observer::SharedObserver;

/// Most commands that wait in a shard's inbox; one more is answered *overloaded*.
pub const INBOX_MAX: usize = 16_384;
/// Most enqueues among them: the rest is for claims, heartbeats and results, which producers that send far more than can
/// be taken must not keep out.
pub const ENQUEUES_MAX: usize = INBOX_MAX / 4 * 3;
/// So many requests wake a shard even while the log is at work.
pub const PATIENCE_MAX: usize = 64;
/// The same for requests that come together: they are worth a wake-up sooner, because no more will follow
/// until some of them are answered.
pub const PATIENCE_POSTED_MAX: usize = 16;
/// Most bytes of commands that wait in a shard's inbox.
pub const INBOX_BYTES_MAX: usize = 64 << 20;
/// Most bytes of enqueues among them.
pub const ENQUEUES_BYTES_MAX: usize = INBOX_BYTES_MAX / 4 * 3;
/// Bytes of commands applied under one lock, unless a single command has more.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Most commands applied under one lock: keeps readers waiting for less than a millisecond.
pub const BATCH_MAX: usize = 256;
/// A group that has grown to this is not added to before the log has taken it.
pub const GROUP_BYTES_MAX: usize = 1 << 20;
/// Most commands in a group.
pub const GROUP_MAX: usize = 4_096;
/// Most claims that wait in a shard for a task, and most clients that wait there for a result.
pub const PARKED_MAX: usize = 100_000;
/// Most of one tenant among them: no tenant has more than half.
pub const PARKED_PER_TENANT_MAX: usize = PARKED_MAX / 2;
/// Most shards.
pub const SHARDS_MAX: u16 = 64;
/// How long the engine waits before it tries again to get space on a full disk.
pub const FULL_DISK_RETRY: Duration = Duration::from_secs(1);

/// A shard that waits for a deadline looks at the clocks again after this: somebody may have set the wall clock,
/// or the machine may have slept, which the wait does not notice.
pub const CLOCK_LOOK: Duration = Duration::from_secs(1);

/// The stores of a directory are verified from end to end before anything is read from them if they have at
/// most this many bytes together: then damage is found by the start, which may be able to repair it, rather
/// than by whoever needs the row. 100 MiB took 0.9 s on two busy cores. Larger stores are checked block by
/// block as they are read, so that a start with millions of tasks stays short, and verified once it is over.
pub const VERIFY_BYTES_MAX: u64 = 64 << 20;

/// The stores of a running engine are verified as often as this. Larger ones than [`VERIFY_BYTES_MAX`] are so for the
/// first time when the engine has started.
pub const SCRUB_EVERY: Duration = Duration::from_secs(24 * 3600);
/// How fast that is done: a sixth of a core, and ten gibibytes in eleven minutes.
pub const SCRUB_BYTES_PER_SECOND: u64 = 16 << 20;

/// When an operation is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// After `fdatasync`: survives a power cut.
    #[default]
    Fsync,
    /// After the write reached the operating system: survives a crash of the process only.
    Os,
}

/// What can be chosen about an engine.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of shards of a new directory; an existing one must agree. None takes what is there, or 1.
    pub shards: Option<u16>,
    /// When an operation is acknowledged.
    pub durability: Durability,
    /// The rules' defaults.
    pub settings: Settings,
    /// Length of a log segment.
    pub segment_bytes: u64,
    /// A shard is checkpointed when its unwritten rows take this much memory…
    pub memtable_bytes: usize,
    /// …or when the log has grown by this much since its last checkpoint.
    pub checkpoint_log_bytes: u64,
    /// Stores that have at most so many bytes together are verified by the start, see [`VERIFY_BYTES_MAX`].
    pub verify_bytes_max: u64,
    /// How often the stores of a running engine are verified, see [`SCRUB_EVERY`].
    pub scrub_every: Duration,
    /// The store's bounds.
    pub store: codeq_store::Options,
    /// Who is told what happened.
    pub observer: SharedObserver,
}

impl Options {
    pub(crate) fn log(&self) -> codeq_log::Options {
        codeq_log::Options { segment_bytes: self.segment_bytes }
    }

    /// The largest command, in bytes: half of the largest frame, or all of it but 8 MiB, so that it never has to be
    /// refused by the log once it is applied, whatever stands in the same group, which has at most
    /// [`GROUP_BYTES_MAX`] besides.
    pub fn command_bytes_max(&self) -> usize {
        let frame = self.log().max_frame_bytes();
        (frame / 2).max(frame.saturating_sub(8 << 20)) as usize
    }

    /// The bytes up to which groups are put together: with short segments less than [`GROUP_BYTES_MAX`],
    /// because a frame has to fit into one.
    pub(crate) fn group_bytes_max(&self) -> usize {
        GROUP_BYTES_MAX.min(self.command_bytes_max())
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            shards: None,
            durability: Durability::Fsync,
            settings: Settings::default(),
            segment_bytes: 64 << 20,
            memtable_bytes: 32 << 20,
            checkpoint_log_bytes: 128 << 20,
            verify_bytes_max: VERIFY_BYTES_MAX,
            scrub_every: SCRUB_EVERY,
            store: codeq_store::Options::default(),
            observer: SharedObserver::default(),
        }
    }
}
