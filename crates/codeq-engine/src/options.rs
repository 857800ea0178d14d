//! Settings of an engine, and its limits by name.

use std::time::Duration;

use codeq_core::settings::Settings;

use crate::observer::SharedObserver;

/// Maximum number of commands waiting in a shard's inbox; any more are answered *overloaded*.
pub const INBOX_MAX: usize = 16_384;
/// Maximum number of enqueues among them. The rest is for claims, heartbeats and results, which producers that send too
/// much must not crowd out.
pub const ENQUEUES_MAX: usize = INBOX_MAX / 4 * 3;
/// This many requests wake a shard even while the log is busy.
pub const WAKE_DURING_SYNC_AT: usize = 64;
/// The same for requests that arrive together. They justify a wake-up sooner, because no more follow until some of them
/// are answered.
pub const WAKE_DURING_SYNC_POSTED_AT: usize = 16;
/// A shard's inbox accepts no more once the commands waiting in it have more bytes than this.
pub const INBOX_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of the waiting enqueues together with those that arrive, so that large enqueues do not take the room of
/// workers' requests. ([`INBOX_BYTES_MAX`] looks only at what already waits.) Enqueues that exceed this by themselves are
/// accepted only while no enqueue waits.
pub const ENQUEUES_BYTES_MAX: usize = INBOX_BYTES_MAX / 4 * 3;
/// Maximum bytes of commands applied under one lock, except for a single larger command.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum number of commands applied under one lock, so that readers wait for less than a millisecond.
pub const BATCH_MAX: usize = 256;
/// A group grows up to this many bytes, unless a single batch is larger. What comes next waits until the log has taken
/// the group.
pub const GROUP_BYTES_MAX: usize = 1 << 20;
/// Once a group has this many requests, nothing more is added to it.
pub const GROUP_MAX: usize = 4_096;
/// Maximum number of claims that wait in a shard for a task, and of clients that wait there for a result.
pub const WAITERS_MAX: usize = 100_000;
/// Maximum for one tenant: half of them.
pub const WAITERS_PER_TENANT_MAX: usize = WAITERS_MAX / 2;
/// Maximum number of shards.
pub const SHARDS_MAX: u16 = 64;
/// How long the engine waits before it retries after a lack of disk space or file descriptors.
pub const FULL_DISK_RETRY: Duration = Duration::from_secs(1);

/// A shard that waits for a deadline reads the clocks again after this: the wall clock may have been set, or the
/// machine may have slept, which the wait does not notice.
pub const CLOCK_REREAD_AFTER: Duration = Duration::from_secs(1);

/// Stores are verified completely at startup if together they have at most this many bytes. Damage is then found while
/// it may still be repairable, rather than by a later read. 100 MiB took 0.9 s on two busy cores. Larger stores are
/// checked block by block as they are read, so that startup with millions of tasks stays short, and verified
/// afterwards.
pub const VERIFY_BYTES_MAX: u64 = 64 << 20;

/// How often the stores of a running engine are verified. The first time is right after the start if the stores are
/// larger than [`VERIFY_BYTES_MAX`], or if the engine is a member of a cluster.
pub const SCRUB_EVERY: Duration = Duration::from_secs(24 * 3600);
/// Speed of that verification: it takes a sixth of a core, and eleven minutes for ten gibibytes.
pub const SCRUB_BYTES_PER_SECOND: u64 = 16 << 20;

/// When an operation is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// After `fdatasync`: survives a power cut.
    #[default]
    Fsync,
    /// After the write reached the operating system: survives only a crash of the process.
    Os,
}

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of shards of a new directory; an existing one must match. `None` means 1 for a new directory, and any number
    /// for an existing one.
    pub shards: Option<u16>,
    /// When an operation is acknowledged.
    pub durability: Durability,
    /// Defaults for the rules.
    pub settings: Settings,
    /// Length of a log segment.
    pub segment_bytes: u64,
    /// Memory of unwritten rows at which a shard is checkpointed.
    pub memtable_bytes: usize,
    /// A shard is checkpointed once the log has grown by this many bytes since the shard's last checkpoint.
    pub checkpoint_log_bytes: u64,
    /// Stores with at most this many bytes in total are verified at the start; see [`VERIFY_BYTES_MAX`].
    pub verify_bytes_max: u64,
    /// How often the stores of a running engine are verified; see [`SCRUB_EVERY`].
    pub scrub_every: Duration,
    /// Settings of the stores.
    pub store: codeq_store::Options,
    /// Receives notifications.
    pub observer: SharedObserver,
}

impl Options {
    /// Settings of the log.
    pub fn log(&self) -> codeq_log::Options {
        codeq_log::Options { segment_bytes: self.segment_bytes }
    }

    /// The largest command in bytes: half of the largest frame, or the whole frame except for 8 MiB, whichever is more.
    /// So an applied command always fits into the log, along with the rest of its group, which has at most
    /// [`GROUP_BYTES_MAX`].
    pub fn command_bytes_max(&self) -> usize {
        let frame = self.log().max_frame_bytes();
        (frame / 2).max(frame.saturating_sub(8 << 20)) as usize
    }

    /// The size up to which groups grow: with short segments less than [`GROUP_BYTES_MAX`], because a frame has to
    /// fit into a segment.
    pub fn group_bytes_max(&self) -> usize {
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
