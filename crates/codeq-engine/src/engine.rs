//! The engine: a handle that any number of threads and tasks can share.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{Builder, JoinHandle};

use codeq_core::command::{Command, Millis};
use codeq_core::id::split_mix64;
use codeq_core::moment::Moment;
use codeq_disk::{RealDisk, SharedDisk};
use codeq_log::FrameIndex;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use crate::background::Background;
use crate::clock::{Clock, EngineClock, SystemClock};
use crate::clock_file::ClockFile;
use crate::error::{EngineError, OpenError};
use crate::group::Batch;
use crate::layout;
use crate::options::Options;
use crate::pipeline::{Committer, Pipeline, ShardOutput};
use crate::recover::Node;
use crate::request::{Inbox, Inboxes, Notice};
use crate::result_waiters::ResultWaiters;
use crate::scrub::Scrub;
use crate::shard::ShardData;
use crate::shard_thread::{Checkpoint, ShardThread};

/// A running engine.
pub struct Engine {
    pub(crate) shards: Vec<ShardHandle>,
    pub(crate) inboxes: Inboxes,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) disk: SharedDisk,
    pub(crate) options: Options,
    pub(crate) clock: Arc<EngineClock>,
    clock_file: ClockFile,
    /// The shard at which the next claim over several shards starts.
    pub(crate) next_claim_shard: AtomicU64,
    threads: Mutex<Vec<JoinHandle<()>>>,
    scrub: Mutex<Option<Scrub>>,
    rebuilt: Vec<String>,
    /// Held until the engine is dropped, so that no other process opens the directory.
    _lock: DirLock,
}

/// The parts of a shard that callers use.
pub(crate) struct ShardHandle {
    pub inbox: Arc<Inbox>,
    pub data: Arc<RwLock<ShardData>>,
    pub durable: watch::Receiver<Batch>,
    pub waiting_claims: Arc<AtomicUsize>,
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
    /// Opens or creates a data directory, and starts the engine.
    pub fn open(dir: &Path, options: Options) -> Result<Engine, OpenError> {
        let seed = entropy();
        Engine::open_with(Arc::new(RealDisk), dir, options, SystemClock::new(), seed)
    }

    /// Same as [`Engine::open`], with another disk or clock. `dir` must exist on the real disk too, for the lock.
    pub fn open_with(
        disk: SharedDisk,
        dir: &Path,
        options: Options,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Result<Engine, OpenError> {
        let lock = lock(dir)?;
        let node = Node::open(&disk, dir, &options, split_mix64(seed))?;
        let last = node.shards.iter().map(|shard| shard.data().read().state.now()).max();
        let clock_file = ClockFile::new(&disk, dir, &node.manifest);
        let clock = Arc::new(clock_file.start(clock, last.unwrap_or(0)));
        let engine = start(node, disk, options, (clock, clock_file), seed, lock)
            .map_err(OpenError::io("start threads for", dir))?;
        let settings = engine.options.settings.clone();
        let differs = |shard: &ShardHandle| *shard.data.read().state.settings() != settings;
        if engine.shards.iter().any(differs) {
            // On a separate thread: the caller may be a thread of an async runtime, which must not block on an answer.
            let configured = std::thread::scope(|scope| {
                let configure = || engine.propose_blocking(Command::Configure(settings));
                scope.spawn(configure).join()
            });
            configured.unwrap_or(Err(EngineError::Closed))?;
        }
        Ok(engine)
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
        self.clock.moment()
    }

    /// Why the engine has stopped by itself, if it has.
    pub fn failure(&self) -> Option<EngineError> {
        self.pipeline.has_failed().then(|| self.pipeline.error())
    }

    /// Damaged stores that were rebuilt from the log at startup, one sentence each, to show to the operator.
    pub fn rebuilt(&self) -> &[String] {
        &self.rebuilt
    }

    /// Why writes are currently refused, if they are: the engine has stopped, the disk is full, or no file can be
    /// opened.
    pub fn refusing(&self) -> Option<EngineError> {
        self.failure().or_else(|| self.pipeline.refusing())
    }

    /// Statistics of the engine.
    pub fn stats(&self) -> EngineStats {
        let mut stats = EngineStats {
            syncs: self.pipeline.syncs.load(Ordering::Relaxed),
            log_bytes: self.pipeline.appended.load(Ordering::Relaxed),
            log_room: self.pipeline.room(),
            scrubbed_bytes: self.pipeline.scrubbed.load(Ordering::Relaxed),
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
        self.pipeline.outputs.iter().map(|output| output.waiters.len()).sum()
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
            wait.blocking_recv().map_err(|_| self.pipeline.error())??;
        }
        Ok(())
    }

    /// Answers waiting claims and lets no new ones wait: the first step of a shutdown.
    pub fn drain(&self) {
        self.shards.iter().for_each(|shard| shard.inbox.notify(Notice::Drain));
    }

    /// Finishes what was proposed, writes a checkpoint and ends the threads. Later proposals are refused.
    pub fn shutdown(&self) {
        let mut threads = self.threads.lock();
        if threads.is_empty() {
            return;
        }
        if let Some(scrub) = self.scrub.lock().take() {
            scrub.stop();
        }
        self.shards.iter().for_each(|shard| shard.inbox.notify(Notice::Stop));
        // The shards' threads are first in the list and end first; the commit thread serves them until then.
        let last = threads.len().saturating_sub(3);
        for thread in threads.drain(..last) {
            let _ = thread.join();
        }
        self.pipeline.stop();
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
        self.clock_file.note(&self.clock);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A directory that this process has locked.
pub(crate) struct DirLock(File);

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that another thread is just starting has a copy of it until
        // it execs, and the directory would seem to be in use.
        let _ = self.0.unlock();
    }
}

/// Locks the directory for this process.
pub(crate) fn lock(dir: &Path) -> Result<DirLock, OpenError> {
    codeq_disk::private_dir(dir).map_err(OpenError::io("create", dir))?;
    let path = layout::lock_path(dir);
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(OpenError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(DirLock(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(OpenError::io("lock", &path)(source)),
    }
}

fn start(
    node: Node,
    disk: SharedDisk,
    options: Options,
    (clock, clock_file): (Arc<EngineClock>, ClockFile),
    seed: u64,
    lock: DirLock,
) -> std::io::Result<Engine> {
    let Node { log, shards, rebuilt, verified, .. } = node;
    let (mut outputs, mut handles, mut positions) = (Vec::new(), Vec::new(), Vec::new());
    for shard in &shards {
        let (durable, watched) = watch::channel(Batch(0));
        let inbox = Arc::new(Inbox::default());
        let output_inbox = Arc::clone(&inbox);
        outputs.push(ShardOutput {
            inbox: output_inbox,
            durable,
            waiters: ResultWaiters::default(),
        });
        let data = Arc::clone(shard.data());
        // After a restart the previous checkpoint is unknown, so nothing is purged because of it.
        positions.push([FrameIndex(data.read().store.position()), FrameIndex(0)]);
        let waiting_claims = Arc::clone(shard.waiting());
        handles.push(ShardHandle { inbox, data, durable: watched, waiting_claims });
    }
    // The background threads and the pipeline refer to each other: one passes segments to the pipeline, the other
    // passes jobs to the threads.
    let weak_pipeline = Arc::new(OnceLock::<Weak<Pipeline>>::new());
    let prepared = {
        let weak_pipeline = Arc::clone(&weak_pipeline);
        move |prepared| {
            if let Some(pipeline) = weak_pipeline.get().and_then(Weak::upgrade) {
                pipeline.prepared(prepared);
            }
        }
    };
    let note_time = {
        let (file, clock) = (clock_file.clone(), Arc::clone(&clock));
        move || file.note(&clock)
    };
    let (background, background_threads) =
        Background::start(prepared, options.observer.clone(), note_time)?;
    let committer = Committer::new(log, outputs.len(), &options, background.clone());
    let pipeline = Arc::new(Pipeline::new(outputs, positions, committer, &options));
    weak_pipeline.get_or_init(|| Arc::downgrade(&pipeline));
    let mut threads = Vec::new();
    for (shard, handle) in shards.into_iter().zip(&handles) {
        let number = shard.number;
        let thread = ShardThread {
            shard,
            inbox: Arc::clone(&handle.inbox),
            pipeline: Arc::clone(&pipeline),
            background: background.clone(),
            clock: Arc::clone(&clock),
            options: options.clone(),
            checkpoint: Checkpoint::default(),
            seed: split_mix64(seed ^ u64::from(number.0)),
            stopping: false,
            refusing: false,
        };
        let name = format!("codeq-shard-{number}");
        threads.push(Builder::new().name(name).spawn(move || thread.run())?);
    }
    let commit = Arc::clone(&pipeline);
    threads.push(Builder::new().name("codeq-commit".into()).spawn(move || commit.run())?);
    threads.extend(background_threads);
    let stores = handles.iter().map(|handle| Arc::clone(&handle.data)).collect();
    let scrub = Scrub::start(stores, Arc::clone(&pipeline), &options, verified)?;
    Ok(Engine {
        inboxes: handles.iter().map(|handle| Arc::clone(&handle.inbox)).collect(),
        shards: handles,
        pipeline,
        disk,
        options,
        clock,
        clock_file,
        next_claim_shard: AtomicU64::new(seed),
        threads: Mutex::new(threads),
        scrub: Mutex::new(Some(scrub)),
        rebuilt,
        _lock: lock,
    })
}

/// A number that differs at every start, from the hasher's keys, which the operating system provides.
pub(crate) fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_free_at_once_though_somebody_else_holds_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        // The copy that a child process has until it execs.
        let _copy = held.0.try_clone().unwrap();
        assert!(matches!(lock(dir.path()), Err(OpenError::InUse(_))));
        drop(held);
        assert!(lock(dir.path()).is_ok());
    }
}
