//! A server without threads: the engine's parts, driven by the simulator.
//!
//! The order is the engine's: apply, append, sync, answer. The next commands may be applied while a group waits for its
//! sync, and checkpoints and segments are made in parallel. The simulator chooses when each part moves.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_core::id::ShardId;
use codeq_core::moment::Moment;
use codeq_engine::clock::{Clock, EngineClock};
use codeq_engine::clock_file::ClockFile;
use codeq_engine::group::Group;
use codeq_engine::recover::OpenedDir;
use codeq_engine::request::Request;
use codeq_engine::{Durability, EngineError, OpenError, Options};
use codeq_log::FrameIndex;
use codeq_store::StoreJob;
use parking_lot::Mutex;

use crate::disk::SimDisk;
use crate::model::Model;
use crate::rng::Rng;
use crate::sabotage::Saboteur;

/// The server's data directory.
pub const DIR: &str = "/data";

/// Virtual time: the true time, and the clocks of a machine that can be set and rebooted.
#[derive(Debug, Default)]
pub struct SimClock(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    /// The real date.
    real: Millis,
    /// How far the wall clock is off.
    ahead: i64,
    /// Time since the machine booted.
    up: Millis,
    boots: u64,
}

impl SimClock {
    /// A correct clock at this date.
    pub fn new(real: Millis) -> Arc<SimClock> {
        Arc::new(SimClock(Mutex::new(Times { real, ..Times::default() })))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Millis) {
        let mut now = self.0.lock();
        now.real += by;
        now.up += by;
    }

    /// Sets the wall clock so that it is off by this many milliseconds.
    pub fn set(&self, ahead: i64) {
        self.0.lock().ahead = ahead;
    }

    /// Turns the machine off for a while and boots it again.
    pub fn reboot(&self, off: Millis) {
        let mut now = self.0.lock();
        now.real += off;
        now.up = 0;
        now.boots += 1;
    }

    /// The real date.
    pub fn real(&self) -> Millis {
        self.0.lock().real
    }
}

impl Clock for SimClock {
    fn wall(&self) -> Millis {
        let now = self.0.lock();
        now.real.saturating_add_signed(now.ahead)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.lock().up)
    }

    fn boot(&self) -> Option<u64> {
        Some(self.0.lock().boots)
    }
}

/// The server has stopped and must be restarted.
#[derive(Debug, thiserror::Error)]
#[error("stopped: {0}")]
pub struct Stopped(pub String);

/// For `map_err`: the server stops with the error's text.
pub fn stop(error: impl std::fmt::Display) -> Stopped {
    Stopped(error.to_string())
}

/// A server with its directory open.
pub struct Server {
    /// The engine's parts.
    pub node: OpenedDir,
    options: Options,
    clock: EngineClock,
    clock_file: ClockFile,
    inbox: Vec<Vec<Request>>,
    /// Requests that give back the leases of clients that have gone.
    unheard: Vec<Vec<Request>>,
    /// Applied, but not given to the log yet.
    open: Vec<Group>,
    /// Given to the log, but not answered yet.
    written: Vec<Group>,
    is_written: bool,
    /// Checkpoint positions: the latest and the previous one.
    positions: Vec<[FrameIndex; 2]>,
    jobs: Vec<Option<StoreJob>>,
    /// A checkpoint found the disk full and has to be retried.
    retry: Vec<bool>,
    rng: Rng,
}

impl Server {
    /// Starts from what the disk holds.
    pub fn open(
        disk: &SimDisk,
        clock: &Arc<SimClock>,
        options: &Options,
        rng: Rng,
        saboteur: &Saboteur,
    ) -> Result<Server, OpenError> {
        let (disk, dir) = (disk.shared(), Path::new(DIR));
        let node = OpenedDir::open(&disk, dir, options, 0x51_6d)?;
        let count = node.shards.len();
        let last = node.shards.iter().map(|shard| shard.data().read().state.now()).max();
        let clock_file = ClockFile::new(&disk, dir, &node.manifest);
        let clock = saboteur.clock(clock, &clock_file, last.unwrap_or(0));
        let positions = node.shards.iter().map(|shard| {
            let position = FrameIndex(shard.data().read().store.position());
            [position, position]
        });
        Ok(Server {
            clock,
            clock_file,
            positions: positions.collect(),
            node,
            options: options.clone(),
            inbox: (0..count).map(|_| Vec::new()).collect(),
            unheard: (0..count).map(|_| Vec::new()).collect(),
            open: (0..count).map(|_| Group::default()).collect(),
            written: (0..count).map(|_| Group::default()).collect(),
            is_written: false,
            jobs: (0..count).map(|_| None).collect(),
            retry: vec![false; count],
            rng,
        })
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.node.shards.len()
    }

    /// Adds an arriving request.
    pub fn push(&mut self, shard: ShardId, request: Request) {
        if let Some(inbox) = self.inbox.get_mut(usize::from(shard)) {
            inbox.push(request);
        }
    }

    /// The moment on the server's clocks.
    pub fn now(&self) -> Moment {
        self.clock.moment()
    }

    /// How long until some shard has something to do.
    pub fn wait(&self) -> Option<Millis> {
        let now = self.now();
        self.node.shards.iter().filter_map(|shard| shard.time_until_due(now)).min()
    }

    /// Whether nothing is in progress, so that the state is exactly what the log holds.
    pub fn is_quiet(&self) -> bool {
        !self.is_written && self.open.iter().all(|group| !group.has_records())
    }

    /// Lets a shard apply what has arrived and do what is due. Returns the moment.
    pub fn run_shard(&mut self, number: usize, saboteur: &mut Saboteur) -> Result<Moment, Stopped> {
        let now = self.now();
        if self.rng.chance(5) {
            self.clock_file.note(&self.clock);
        }
        let full = self.is_full(number);
        let (Some(inbox), Some(unheard), Some(shard), Some(open)) = (
            self.inbox.get_mut(number),
            self.unheard.get_mut(number),
            self.node.shards.get_mut(number),
            self.open.get_mut(number),
        ) else {
            return Ok(now);
        };
        let requests = std::mem::take(inbox);
        if full {
            for request in requests {
                // A client that is gone does not need to know.
                let _ = request.reply.send(Err(EngineError::DiskFull));
            }
            return Ok(now);
        }
        let back = std::mem::take(unheard);
        if !back.is_empty() {
            shard.apply(now, back).map_err(stop)?;
        }
        let requests = saboteur.before_apply(shard, now, requests).map_err(stop)?;
        if !requests.is_empty() {
            shard.apply(now, requests).map_err(stop)?;
        }
        shard.sweep(now, self.rng.draw()).map_err(stop)?;
        open.absorb(&mut shard.group);
        Ok(now)
    }

    fn is_full(&self, number: usize) -> bool {
        // More log space than any one round of requests can take.
        let reserve = self.options.segment_bytes / 4;
        let memory = self
            .node
            .shards
            .get(number)
            .map_or(0, |shard| shard.data().read().store.active_bytes());
        let waiting = self.retry.get(number).copied().unwrap_or_default();
        self.node.log.room() < reserve || (waiting && memory > self.options.memtable_bytes * 4)
    }

    /// Appends all applied groups to the log as one frame. With [`Durability::Os`], or if `early`, answers follow at once.
    pub fn append(&mut self, model: &mut Model, early: bool) -> Result<(), Stopped> {
        if self.is_written {
            self.sync(model)?;
        }
        std::mem::swap(&mut self.open, &mut self.written);
        self.is_written = true;
        let mut records: Vec<(u16, &[u8])> = Vec::new();
        for (shard, group) in (0..).zip(&self.written) {
            records.extend(group.records().map(|record| (shard, record)));
        }
        if !records.is_empty() {
            let copy = records.iter().map(|(shard, bytes)| (*shard, bytes.to_vec()));
            model.offered(self.node.log.last_index().next(), copy.collect());
            self.node.log.append(&records).map_err(stop)?;
        }
        if self.options.durability == Durability::Os || early {
            self.release(model)?;
        }
        Ok(())
    }

    /// Makes the frame durable and sends the answers.
    pub fn sync(&mut self, model: &mut Model) -> Result<(), Stopped> {
        if !self.is_written {
            return Ok(());
        }
        if self.options.durability == Durability::Fsync {
            self.node.log.sync().map_err(stop)?;
        }
        self.release(model)
    }

    fn release(&mut self, model: &mut Model) -> Result<(), Stopped> {
        self.is_written = false;
        model.certain(self.node.log.last_index()).map_err(stop)?;
        for (unheard, group) in self.unheard.iter_mut().zip(&mut self.written) {
            unheard.extend(group.release());
            group.clear();
        }
        Ok(())
    }

    /// Makes everything that was applied durable and answers it.
    pub fn commit(&mut self, model: &mut Model) -> Result<(), Stopped> {
        self.sync(model)?;
        self.append(model, false)?;
        self.sync(model)
    }

    /// Prepares log segments, if the log needs any. A full disk is not a failure.
    pub fn prepare(&mut self) {
        while let Some(job) = self.node.log.next_job() {
            match job.run() {
                Ok(prepared) => self.node.log.provide(prepared),
                Err(_) => return,
            }
        }
    }

    /// Whether a shard has to be checkpointed because of its memory.
    pub fn wants_checkpoint(&self, number: usize) -> bool {
        let due = self.node.shards.get(number).is_some_and(|shard| {
            shard.data().read().store.active_bytes() >= self.options.memtable_bytes
        });
        due || self.retry.get(number).copied().unwrap_or_default()
    }

    /// Starts a checkpoint of a shard, unless one is in progress. The saboteur may skip the wait for the log.
    pub fn begin_checkpoint(
        &mut self,
        number: usize,
        model: &mut Model,
        saboteur: &Saboteur,
    ) -> Result<(), Stopped> {
        if self.jobs.get(number).is_none_or(Option::is_some) {
            return Ok(());
        }
        let position = if saboteur.checkpoints_early() {
            self.node.log.last_index()
        } else {
            self.commit(model)?;
            self.node.log.sync().map_err(stop)?;
            self.node.log.synced_index()
        };
        if let (Some(shard), Some(job)) =
            (self.node.shards.get_mut(number), self.jobs.get_mut(number))
        {
            *job = shard.freeze(position);
        }
        Ok(())
    }

    /// Runs the job of a shard, if there is one.
    pub fn run_job(&mut self, number: usize) -> Result<(), Stopped> {
        let job = self.jobs.get_mut(number).and_then(Option::take);
        let (Some(job), Some(shard)) = (job, self.node.shards.get_mut(number)) else {
            return Ok(());
        };
        let was_checkpoint = job.is_checkpoint();
        match shard.take_back(&mut job.run()) {
            Ok(()) => {}
            Err(error) if error.is_retryable() => {
                self.retry.iter_mut().skip(number).take(1).for_each(|retry| *retry = true);
                return Ok(());
            }
            Err(error) => return Err(stop(error)),
        }
        self.retry.iter_mut().skip(number).take(1).for_each(|retry| *retry = false);
        let position = FrameIndex(shard.data().read().store.position());
        if let Some(slot) = self.positions.get_mut(number)
            && slot[0] != position
        {
            *slot = [position, slot[0]];
        }
        // As in the engine: checkpoints and steps of maintenance take turns.
        if (was_checkpoint || !self.wants_checkpoint(number))
            && let (Some(shard), Some(job)) =
                (self.node.shards.get(number), self.jobs.get_mut(number))
        {
            *job = shard.data().write().store.maintain();
        }
        if let Some(oldest) = self.positions.iter().map(|[_, before]| *before).min() {
            self.node.log.purge(oldest);
        }
        Ok(())
    }
}
