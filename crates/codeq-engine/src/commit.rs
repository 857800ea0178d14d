//! The commit thread: one write and one sync for whatever the shards have applied meanwhile.
//!
//! Shards add to their open group while the log syncs the group before. When the sync is done, the commit
//! thread sends the answers and takes what has gathered: groups grow by themselves under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use codeq_core::command::{Abandon, Command};
use codeq_core::reply::Reply;
use codeq_log::{Log, LogError, Prepared};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{oneshot, watch};

use crate::background::Background;
use crate::error::EngineError;
use crate::group::Group;
use crate::inbox::Inbox;
use crate::options::{Durability, FULL_DISK_RETRY, GROUP_MAX};
use crate::request::Request;
use crate::result_waiters::ResultWaiters;

/// What the commit thread and the shards share.
pub struct Pipeline {
    state: Mutex<State>,
    /// Wakes the commit thread.
    work: Condvar,
    /// Wakes shards that wait for the log.
    taken: Condvar,
    /// Bytes up to which groups are put together.
    group_bytes: usize,
    /// Bytes that the log can still take.
    pub room: AtomicU64,
    /// Bytes set aside for commands that are not in the log yet.
    reserved: AtomicU64,
    /// The last attempt to make room failed.
    full: AtomicBool,
    /// Bytes appended to the log since it was opened.
    pub appended: AtomicU64,
    /// Syncs since the log was opened.
    pub syncs: AtomicU64,
    failed: AtomicBool,
    pub lanes: Vec<Lane>,
}

/// The commit side of one shard.
pub struct Lane {
    pub inbox: Arc<Inbox>,
    /// The last batch that is durable.
    pub durable: watch::Sender<u64>,
    pub waiters: ResultWaiters,
}

struct State {
    /// By shard: applied and not yet taken.
    open: Vec<Group>,
    /// By shard: checkpoint positions, the latest and the one before.
    positions: Vec<[u64; 2]>,
    barriers: Vec<oneshot::Sender<u64>>,
    prepared: Option<std::io::Result<Prepared>>,
    purge: bool,
    idle: bool,
    stop: bool,
    error: Option<EngineError>,
}

impl Pipeline {
    pub fn new(
        lanes: Vec<Lane>,
        positions: Vec<[u64; 2]>,
        room: u64,
        group_bytes: usize,
    ) -> Arc<Pipeline> {
        let state = State {
            open: lanes.iter().map(|_| Group::default()).collect(),
            positions,
            barriers: Vec::new(),
            prepared: None,
            purge: false,
            idle: false,
            stop: false,
            error: None,
        };
        Arc::new(Pipeline {
            state: Mutex::new(state),
            work: Condvar::new(),
            taken: Condvar::new(),
            group_bytes,
            room: AtomicU64::new(room),
            reserved: AtomicU64::new(0),
            full: AtomicBool::new(false),
            appended: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            lanes,
        })
    }

    /// Hands a shard's group over and leaves an empty one. It joins what the log has not taken yet; if that
    /// is full already, the shard waits here.
    pub fn offer(&self, shard: u16, group: &mut Group) -> Result<(), EngineError> {
        let mut state = self.state.lock();
        loop {
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            let Some(open) = state.open.get_mut(usize::from(shard)) else {
                return Err(EngineError::Closed);
            };
            let fits = open.len() + group.len() <= self.group_bytes && open.answers() < GROUP_MAX;
            if fits || open.is_empty() {
                if open.is_empty() {
                    std::mem::swap(open, group);
                } else {
                    open.absorb(group);
                }
                if state.idle {
                    state.idle = false;
                    drop(state);
                    self.work.notify_one();
                }
                return Ok(());
            }
            self.taken.wait(&mut state);
        }
    }

    /// Sets bytes of the log aside for commands that are about to be applied, so that what is applied can
    /// be logged. Waits for a segment that is being prepared; false if the disk is full.
    pub fn reserve(&self, bytes: u64) -> bool {
        loop {
            let reserved = self.reserved.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
            if self.room.load(Ordering::Acquire) >= reserved {
                return true;
            }
            self.reserved.fetch_sub(bytes, Ordering::AcqRel);
            if self.is_full() || self.has_failed() {
                return false;
            }
            let mut state = self.state.lock();
            self.taken.wait_for(&mut state, Duration::from_millis(10));
        }
    }

    /// Gives back what was set aside and turned out not to be needed.
    pub fn unreserve(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Whether the log could not get the room that it needs.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Waits until everything offered so far is on disk; gives the last frame's number.
    pub fn barrier(&self) -> Result<u64, EngineError> {
        let (done, wait) = oneshot::channel();
        let mut state = self.state.lock();
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        state.barriers.push(done);
        state.idle = false;
        drop(state);
        self.work.notify_one();
        wait.blocking_recv().map_err(|_| self.error())
    }

    /// Says that a shard's store is complete up to a frame. Older frames go, but for those of one
    /// checkpoint more.
    pub fn checkpointed(&self, shard: u16, position: u64) {
        let mut state = self.state.lock();
        if let Some(positions) = state.positions.get_mut(usize::from(shard))
            && positions[0] != position
        {
            *positions = [position, positions[0]];
        }
        state.purge = true;
        state.idle = false;
        drop(state);
        self.work.notify_one();
    }

    /// Gives the log the outcome of a preparation.
    pub fn prepared(&self, prepared: std::io::Result<Prepared>) {
        let mut state = self.state.lock();
        state.prepared = Some(prepared);
        state.idle = false;
        drop(state);
        self.work.notify_one();
    }

    /// Ends the commit thread once everything offered is durable.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_one();
    }

    /// Stops the engine: nothing is acknowledged any more.
    pub fn fail(&self, error: &EngineError) {
        let mut state = self.state.lock();
        state.error.get_or_insert_with(|| error.clone());
        self.failed.store(true, Ordering::Release);
        for group in &mut state.open {
            group.fail(error);
            group.clear();
        }
        state.barriers.clear();
        drop(state);
        for lane in &self.lanes {
            lane.inbox.close(error);
            // Readers that wait for a batch that will never be durable look again, and see the failure.
            lane.durable.send_replace(u64::MAX);
            lane.waiters.fail(error);
        }
        self.work.notify_all();
        self.taken.notify_all();
    }

    /// Whether the engine has stopped after a failure.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Why the engine stopped.
    pub fn error(&self) -> EngineError {
        self.state.lock().error.clone().unwrap_or(EngineError::Closed)
    }
}

/// The commit thread's own part.
pub struct Committer {
    pub log: Log,
    pub pipeline: Arc<Pipeline>,
    pub durability: Durability,
    pub background: Background,
    /// By shard: the groups being committed, then emptied and swapped back.
    pub groups: Vec<Group>,
    /// Answers sent with the last group, and when: those clients are likely to come back at once.
    pub expected: usize,
    pub released: Instant,
    /// A moving average of what a sync takes.
    pub sync_time: Duration,
    pub retry_at: Option<Instant>,
}

impl Committer {
    /// Runs until it is stopped or the log fails.
    pub fn run(mut self) {
        loop {
            self.want_segment();
            match self.gather() {
                Gathered::Groups => {}
                Gathered::Nothing => continue,
                Gathered::Stop => break,
            }
            if let Err(error) = self.commit() {
                self.fail(&error);
                break;
            }
        }
        // A clean end leaves nothing that only the operating system has.
        if !self.pipeline.has_failed()
            && let Err(error) = self.log.sync()
        {
            self.fail(&error);
        }
    }

    /// Waits for work and takes the open groups of all shards.
    fn gather(&mut self) -> Gathered {
        let pipeline = Arc::clone(&self.pipeline);
        self.linger(&pipeline);
        let mut state = pipeline.state.lock();
        loop {
            if state.error.is_some() {
                return Gathered::Stop;
            }
            if let Some(prepared) = state.prepared.take() {
                self.provide(prepared);
                return Gathered::Nothing;
            }
            if std::mem::take(&mut state.purge) {
                self.purge(&state.positions);
                return Gathered::Nothing;
            }
            if state.open.iter().any(|group| !group.is_empty()) {
                for (mine, open) in self.groups.iter_mut().zip(&mut state.open) {
                    std::mem::swap(mine, open);
                }
                drop(state);
                pipeline.taken.notify_all();
                return Gathered::Groups;
            }
            if !state.barriers.is_empty() {
                let barriers = std::mem::take(&mut state.barriers);
                drop(state);
                return self.pass(barriers);
            }
            if state.stop {
                return Gathered::Stop;
            }
            state.idle = true;
            match self.retry_at {
                Some(at) => {
                    if pipeline.work.wait_until(&mut state, at).timed_out() {
                        state.idle = false;
                        return Gathered::Nothing;
                    }
                }
                None => pipeline.work.wait(&mut state),
            }
            state.idle = false;
        }
    }

    /// The clients that were just answered tend to come back together. Syncing the first of them alone
    /// would make the others wait for two syncs; so wait for them, for a fraction of a sync at most.
    fn linger(&self, pipeline: &Pipeline) {
        if self.expected < 2 || self.durability == Durability::Os {
            return;
        }
        let limit = self.sync_time / 3;
        let mut seen = 0;
        while self.released.elapsed() < limit {
            let here: usize = pipeline.state.lock().open.iter().map(Group::answers).sum();
            if here >= self.expected {
                return;
            }
            seen = seen.max(here);
            std::thread::yield_now();
        }
    }

    fn commit(&mut self) -> Result<(), LogError> {
        let (mut bytes, mut frame_bytes) = (0, 0);
        // The groups of all shards go into one frame, unless that would be too long.
        let mut frame: Vec<(u16, &[u8])> = Vec::new();
        for (shard, group) in (0..).zip(&self.groups) {
            if !frame.is_empty() && frame_bytes + group.len() > self.pipeline.group_bytes {
                self.log.append(&frame)?;
                frame.clear();
                frame_bytes = 0;
            }
            frame.extend(group.records().map(|record| (shard, record)));
            frame_bytes += group.len();
            bytes += group.len();
        }
        if !frame.is_empty() {
            self.log.append(&frame)?;
        }
        if bytes > 0 {
            self.pipeline.appended.fetch_add(bytes as u64, Ordering::Relaxed);
            if self.durability == Durability::Fsync {
                let start = Instant::now();
                self.be_patient(true);
                let synced = self.log.sync();
                self.be_patient(false);
                synced?;
                self.sync_time = (self.sync_time * 7 + start.elapsed()) / 8;
                self.pipeline.syncs.fetch_add(1, Ordering::Relaxed);
            }
            self.pipeline.room.store(self.log.room(), Ordering::Release);
        }
        let reserved = self.groups.iter().map(|group| group.reserved).sum();
        self.pipeline.unreserve(reserved);
        self.release();
        Ok(())
    }

    fn be_patient(&self, patient: bool) {
        self.pipeline.lanes.iter().for_each(|lane| lane.inbox.set_patient(patient));
    }

    fn release(&mut self) {
        self.expected = self.groups.iter().map(Group::answers).sum();
        self.released = Instant::now();
        for (lane, group) in self.pipeline.lanes.iter().zip(&mut self.groups) {
            if group.is_empty() {
                continue;
            }
            // A group of nothing but claims that waited in vain has the number of an older batch.
            lane.durable.send_if_modified(|reached| {
                let higher = group.batch > *reached;
                *reached = (*reached).max(group.batch);
                higher
            });
            let unclaimed = group.release();
            lane.waiters.committed(&group.effects);
            group.clear();
            for reply in unclaimed {
                give_back(lane, reply);
            }
        }
    }

    fn pass(&mut self, barriers: Vec<oneshot::Sender<u64>>) -> Gathered {
        if let Err(error) = self.log.sync() {
            self.fail(&error);
            return Gathered::Stop;
        }
        for barrier in barriers {
            // A shard that no longer waits has stopped.
            let _ = barrier.send(self.log.synced_index());
        }
        Gathered::Nothing
    }

    fn purge(&mut self, positions: &[[u64; 2]]) {
        if let Some(oldest) = positions.iter().map(|[_, previous]| *previous).min() {
            self.log.purge(oldest);
        }
    }

    fn want_segment(&mut self) {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.retry_at = None;
        if let Some(job) = self.log.wanted() {
            self.background.prepare(job);
        }
    }

    fn provide(&mut self, prepared: std::io::Result<Prepared>) {
        self.pipeline.full.store(prepared.is_err(), Ordering::Release);
        match prepared {
            Ok(prepared) => self.log.provide(prepared),
            Err(_) => self.retry_at = Instant::now().checked_add(FULL_DISK_RETRY),
        }
        self.pipeline.room.store(self.log.room(), Ordering::Release);
        self.pipeline.taken.notify_all();
    }

    fn fail(&mut self, error: &LogError) {
        let error = EngineError::Failed(error.to_string().into());
        // The engine has failed before anybody hears of it: who asks then is told why.
        self.pipeline.fail(&error);
        for group in &mut self.groups {
            group.fail(&error);
        }
    }
}

enum Gathered {
    Groups,
    Nothing,
    Stop,
}

/// Tasks that were leased to a client that had gone by the time the lease was durable go back at once.
fn give_back(lane: &Lane, reply: Reply) {
    let Reply::Claimed(tasks) = reply else { return };
    for task in tasks {
        let Some(worker) = task.worker else { continue };
        let abandon = Abandon { tenant: task.tenant, id: task.id, worker, penalty: false };
        let request = Request::detached(Command::Abandon(abandon));
        // If the inbox is full the lease simply runs out.
        let _ = lane.inbox.push(std::iter::once(request));
    }
}
