//! The engine: a handle that any number of threads and tasks can share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use codeq_core::command::Millis;
use codeq_core::moment::Moment;
use codeq_disk::SharedDisk;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use crate::driver::Driver;
use crate::error::EngineError;
use crate::group::Batch;
use crate::options::Options;
use crate::request::{Inbox, Inboxes, Notice};
use crate::scrub::Scrub;
use crate::shard::{Shard, ShardData};
use crate::status::{ShardChannels, Status};

/// A running engine.
pub struct Engine {
    pub(crate) shards: Vec<ShardHandle>,
    pub(crate) inboxes: Inboxes,
    pub(crate) status: Arc<Status>,
    pub(crate) driver: Box<dyn Driver>,
    pub(crate) disk: SharedDisk,
    pub(crate) options: Options,
    /// The shard at which the next claim over several shards starts.
    pub(crate) next_claim_shard: AtomicU64,
    scrub: Mutex<Option<Scrub>>,
    pub(crate) rebuilt: Vec<String>,
}

/// The parts of a shard that callers use.
pub(crate) struct ShardHandle {
    pub inbox: Arc<Inbox>,
    pub data: Arc<RwLock<ShardData>>,
    pub durable: watch::Receiver<Batch>,
    pub waiting_claims: Arc<AtomicUsize>,
}

impl ShardHandle {
    pub fn new(shard: &Shard, channels: &ShardChannels) -> ShardHandle {
        ShardHandle {
            inbox: Arc::clone(&channels.inbox),
            data: Arc::clone(shard.data()),
            durable: channels.durable.subscribe(),
            waiting_claims: Arc::clone(shard.waiting()),
        }
    }
}

/// Statistics of the engine.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineStats {
    /// Syncs of the log since the start.
    pub syncs: u64,
    /// Bytes of records appended to the log since the start.
    pub log_bytes: u64,
    /// Bytes that fit into the log before it needs a new segment.
    pub log_room: u64,
    /// Requests waiting in all inboxes.
    pub queued: usize,
    /// Memory of rows that no checkpoint has written yet.
    pub memtable_bytes: usize,
    /// Bytes of all rows as of the last checkpoints.
    pub live_bytes: u64,
    /// Disk space used by the stores.
    pub store_bytes: u64,
    /// Bytes of rows verified since the start.
    pub scrubbed_bytes: u64,
}

impl Engine {
    pub(crate) fn new(
        shards: Vec<ShardHandle>,
        status: Arc<Status>,
        driver: Box<dyn Driver>,
        (disk, options, seed): (SharedDisk, Options, u64),
        scrub: Scrub,
    ) -> Engine {
        Engine {
            inboxes: status.inboxes(),
            shards,
            status,
            driver,
            disk,
            options,
            next_claim_shard: AtomicU64::new(seed),
            scrub: Mutex::new(Some(scrub)),
            rebuilt: Vec::new(),
        }
    }

    /// Number of shards.
    pub fn shards(&self) -> u16 {
        self.shards.len() as u16
    }

    /// The current wall-clock time.
    pub fn wall(&self) -> Millis {
        self.now().wall
    }

    /// The current moment on both clocks.
    pub fn now(&self) -> Moment {
        self.driver.now()
    }

    /// Why the engine has stopped by itself, if it has.
    pub fn failure(&self) -> Option<EngineError> {
        self.status.has_failed().then(|| self.status.error())
    }

    /// Damaged stores that were rebuilt from the log at startup, one sentence each, to show to the operator.
    pub fn rebuilt(&self) -> &[String] {
        &self.rebuilt
    }

    /// Why writes are currently refused, if they are: the engine has stopped, the disk is full, or no file can be
    /// opened.
    pub fn refusing(&self) -> Option<EngineError> {
        self.failure().or_else(|| self.status.refusing())
    }

    /// Statistics of the engine.
    pub fn stats(&self) -> EngineStats {
        let mut stats = EngineStats {
            syncs: self.status.syncs.load(Ordering::Relaxed),
            log_bytes: self.status.appended.load(Ordering::Relaxed),
            log_room: self.status.room.load(Ordering::Relaxed),
            scrubbed_bytes: self.status.scrubbed.load(Ordering::Relaxed),
            ..EngineStats::default()
        };
        for shard in &self.shards {
            stats.queued += shard.inbox.len();
            let data = shard.data.read();
            stats.memtable_bytes += data.store.active_bytes() + data.store.frozen_bytes();
            stats.live_bytes += data.store.live_bytes();
            stats.store_bytes += data.store.disk_bytes();
        }
        stats
    }

    /// Number of waiting claims in all shards; a claim that waits in three shards counts three times.
    pub fn waiting_claims(&self) -> usize {
        self.shards.iter().map(|shard| shard.waiting_claims.load(Ordering::Acquire)).sum()
    }

    /// Number of clients that wait for a task to finish.
    pub fn result_waiters(&self) -> usize {
        self.status.shards.iter().map(|shard| shard.waiters.len()).sum()
    }

    /// Checkpoints every store, so that it contains everything acknowledged so far.
    pub fn checkpoint(&self) -> Result<(), EngineError> {
        let mut waits = Vec::new();
        for shard in &self.shards {
            let (done, wait) = oneshot::channel();
            shard.inbox.notify(Notice::Checkpoint(done));
            waits.push(wait);
        }
        for wait in waits {
            wait.blocking_recv().map_err(|_| self.status.error())??;
        }
        Ok(())
    }

    /// Answers waiting claims and lets no new ones wait: the first step of a shutdown.
    pub fn drain(&self) {
        self.shards.iter().for_each(|shard| shard.inbox.notify(Notice::Drain));
    }

    /// Finishes what was proposed, writes a checkpoint and ends the threads. Later proposals are refused.
    pub fn shutdown(&self) {
        if let Some(scrub) = self.scrub.lock().take() {
            scrub.stop();
        }
        self.driver.shutdown();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A number that differs at every start, from the hasher's keys, which the operating system provides.
pub(crate) fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
