//! The engine of a single node: one thread per shard, one that commits, and background threads.

use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{Builder, JoinHandle};

use codeq_core::command::Command;
use codeq_core::id::split_mix64;
use codeq_core::moment::Moment;
use codeq_disk::{RealDisk, SharedDisk};
use codeq_log::FrameIndex;
use parking_lot::Mutex;

use crate::background::Background;
use crate::clock::{Clock, EngineClock, SystemClock};
use crate::clock_file::ClockFile;
use crate::dir_lock::{DirLock, lock};
use crate::driver::{CatchingUp, Driver};
use crate::engine::{Engine, ShardHandle, entropy};
use crate::error::{EngineError, OpenError};
use crate::options::Options;
use crate::pipeline::{Committer, Pipeline};
use crate::recover::OpenedDir;
use crate::request::Notice;
use crate::scrub::Scrub;
use crate::shard::Shard;
use crate::shard_thread::{CheckpointState, ShardThread};
use crate::status::Status;

/// The threads of an engine.
struct Threads {
    pipeline: Arc<Pipeline>,
    clock: Arc<EngineClock>,
    clock_file: ClockFile,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Held until the engine is dropped, so that no other process opens the directory.
    _lock: DirLock,
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
        let opened = OpenedDir::open(&disk, dir, &options, split_mix64(seed))?;
        let last = opened.shards.iter().map(|shard| shard.data().read().state.now()).max();
        let clock_file = ClockFile::new(&disk, dir, &opened.manifest);
        let clock = Arc::new(clock_file.start(clock, last.unwrap_or(0)));
        let engine = start(opened, disk, options, (clock, clock_file), seed, lock)
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
}

impl Driver for Threads {
    fn now(&self) -> Moment {
        self.clock.moment()
    }

    fn catch_up(&self) -> Option<CatchingUp<'_>> {
        None
    }

    fn shutdown(&self) {
        let mut threads = self.threads.lock();
        if threads.is_empty() {
            return;
        }
        let shards = &self.pipeline.status.shards;
        shards.iter().for_each(|shard| shard.inbox.notify(Notice::Stop));
        // The shards' threads are first in the list and end first; the commit thread serves them until then.
        let shard_threads = threads.len().saturating_sub(3);
        for thread in threads.drain(..shard_threads) {
            let _ = thread.join();
        }
        self.pipeline.stop();
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
        self.clock_file.note(&self.clock);
    }
}

fn start(
    opened: OpenedDir,
    disk: SharedDisk,
    options: Options,
    (clock, clock_file): (Arc<EngineClock>, ClockFile),
    seed: u64,
    lock: DirLock,
) -> std::io::Result<Engine> {
    let OpenedDir { log, shards, rebuilt, verified, .. } = opened;
    let status = Status::new(shards.len(), options.observer.clone());
    let handles: Vec<ShardHandle> =
        shards.iter().zip(&status.shards).map(|(shard, to)| ShardHandle::new(shard, to)).collect();
    // The log is purged up to the last but one checkpoint of every shard. Where those were is not stored, so nothing is
    // purged before the next checkpoints.
    let position = |shard: &Shard| FrameIndex(shard.data().read().store.position());
    let positions = shards.iter().map(|shard| [position(shard), FrameIndex(0)]).collect();
    // The background threads and the pipeline refer to each other: the threads pass segments to the pipeline, and the
    // pipeline passes jobs to the threads.
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
    let committer = Committer::new(log, shards.len(), &options, background.clone());
    let pipeline = Arc::new(Pipeline::new(Arc::clone(&status), positions, committer, &options));
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
            checkpoint: CheckpointState::default(),
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
    let damaged = {
        let pipeline = Arc::clone(&pipeline);
        move |error: &EngineError| pipeline.fail(error)
    };
    let scrub = Scrub::start(stores, Arc::clone(&status), &options, verified, damaged)?;
    let threads = Threads { pipeline, clock, clock_file, threads: threads.into(), _lock: lock };
    let mut engine = Engine::new(handles, status, Box::new(threads), (disk, options, seed), scrub);
    engine.rebuilt = rebuilt;
    Ok(engine)
}
