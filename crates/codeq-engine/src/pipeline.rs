//! What the shards and the commit thread share: the open groups, and the state of the log.

use codeq_core::id::ShardId;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codeq_disk::Shortage;
use codeq_log::{FrameIndex, LogError, Prepared};
use tokio::sync::oneshot;

use crate::error::EngineError;
use crate::group::Group;
use crate::locks::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::locks::{Condvar, Mutex};
use crate::options::{GROUP_MAX, Options};
use crate::status::Status;

mod sync_and_answer;

pub use sync_and_answer::Committer;
use sync_and_answer::Round;

/// Indexed by [`Pipeline::short`].
const SHORTAGES: [Option<Shortage>; 3] = [None, Some(Shortage::Space), Some(Shortage::Descriptors)];

/// Connects the shards to the log.
pub struct Pipeline {
    pub(crate) state: Mutex<State>,
    /// The log and the commit state, used by the commit thread or by a shard that commits its own group.
    committer: Mutex<Committer>,
    /// Wakes the commit thread.
    work: Condvar,
    /// Wakes shards that wait for the log.
    taken: Condvar,
    /// Bytes reserved for commands that are not in the log yet.
    reserved: AtomicU64,
    /// Why the last attempt to make room failed, if it did: an index into [`SHORTAGES`].
    short: AtomicU8,
    /// What callers see.
    pub status: Arc<Status>,
    group_bytes_max: usize,
}

/// Work for the commit thread.
pub struct State {
    /// Groups that were applied but not taken yet, by shard.
    pub open: Vec<Group>,
    /// The latest and the previous checkpoint position, by shard.
    pub positions: Vec<[FrameIndex; 2]>,
    pub barriers: Vec<oneshot::Sender<FrameIndex>>,
    pub prepared: Option<Result<Prepared, LogError>>,
    pub purge: bool,
    pub stop: bool,
    pub error: Option<EngineError>,
    /// The commit thread waits for work.
    idle: bool,
}

impl State {
    fn has_work(&self) -> bool {
        self.open.iter().any(|group| !group.is_empty())
            || !self.barriers.is_empty()
            || self.prepared.is_some()
            || self.purge
            || self.stop
            || self.error.is_some()
    }
}

impl Pipeline {
    pub fn new(
        status: Arc<Status>,
        positions: Vec<[FrameIndex; 2]>,
        committer: Committer,
        options: &Options,
    ) -> Pipeline {
        status.room.store(committer.log.room(), Ordering::Release);
        let state = State {
            open: status.shards.iter().map(|_| Group::default()).collect(),
            positions,
            barriers: Vec::new(),
            prepared: None,
            purge: false,
            stop: false,
            error: None,
            idle: false,
        };
        Pipeline {
            state: Mutex::new(state),
            committer: Mutex::new(committer),
            work: Condvar::new(),
            taken: Condvar::new(),
            reserved: AtomicU64::new(0),
            short: AtomicU8::new(0),
            status,
            group_bytes_max: options.group_bytes_max(),
        }
    }

    /// The loop of the commit thread.
    pub fn run(&self) {
        self.committer.lock().want_segment();
        let mut retry_at = None;
        loop {
            self.wait_for_work(retry_at);
            let mut committer = self.committer.lock();
            if committer.round(self) == Round::Stop {
                committer.close(self);
                self.status.shards.iter().for_each(|shard| shard.waiters.close());
                return;
            }
            retry_at = committer.retry_at;
        }
    }

    fn wait_for_work(&self, until: Option<Instant>) {
        let mut state = self.state.lock();
        while !state.has_work() {
            state.idle = true;
            let timed_out = match until {
                Some(until) => self.work.wait_until(&mut state, until).timed_out(),
                None => {
                    self.work.wait(&mut state);
                    false
                }
            };
            state.idle = false;
            if timed_out {
                return;
            }
        }
    }

    /// Takes a shard's group and leaves an empty one. The group joins what the log has not taken yet; if that is
    /// already full, the shard waits here. `alone` means that nothing else waits to be applied: then, if the log is
    /// idle and there is only one client, the calling thread commits the group itself, which saves that client a
    /// switch to another thread.
    pub fn offer(&self, shard: ShardId, group: &mut Group, alone: bool) -> Result<(), EngineError> {
        let single = alone && group.answers() <= 1;
        let mut state = self.state.lock();
        loop {
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            let Some(open) = state.open.get_mut(usize::from(shard)) else {
                return Err(EngineError::Closed);
            };
            let fits =
                open.len() + group.len() <= self.group_bytes_max && open.answers() < GROUP_MAX;
            if fits || open.is_empty() {
                if open.is_empty() {
                    std::mem::swap(open, group);
                } else {
                    open.absorb(group);
                }
                break;
            }
            self.taken.wait(&mut state);
        }
        let idle = state.idle;
        drop(state);
        if single
            && let Some(mut committer) = self.committer.try_lock()
            && committer.last_was_single()
        {
            committer.round(self);
            drop(committer);
            // A round does one thing; if it was not this group, the commit thread does the rest.
            if !self.state.lock().has_work() {
                return Ok(());
            }
        }
        if idle {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Wakes shards that wait for the log.
    pub fn notify_taken(&self) {
        self.taken.notify_all();
    }

    /// Reserves bytes of the log for commands that are about to be applied, so that whatever is applied can be
    /// logged. Waits for a segment that is being prepared; false if none can be made.
    pub fn reserve(&self, bytes: u64) -> bool {
        loop {
            let reserved = self.reserved.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
            if self.room() >= reserved {
                return true;
            }
            self.reserved.fetch_sub(bytes, Ordering::AcqRel);
            if self.shortage().is_some() || self.status.has_failed() {
                return false;
            }
            let mut state = self.state.lock();
            self.taken.wait_for(&mut state, Duration::from_millis(10));
        }
    }

    /// Releases reserved bytes that are in the log now, or turned out not to be needed.
    pub fn unreserve(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Sets the free bytes in the log.
    pub fn set_room(&self, room: u64) {
        self.status.room.store(room, Ordering::Release);
    }

    /// Sets why the log could not get more room; `None` once it could.
    pub fn set_shortage(&self, shortage: Option<Shortage>) {
        let index = SHORTAGES.iter().position(|known| *known == shortage).unwrap_or_default();
        self.short.store(index as u8, Ordering::Release);
    }

    /// Free bytes in the log.
    pub fn room(&self) -> u64 {
        self.status.room.load(Ordering::Acquire)
    }

    /// Why the log could not get the room it needs.
    pub fn shortage(&self) -> Option<Shortage> {
        SHORTAGES.get(usize::from(self.short.load(Ordering::Acquire))).copied().flatten()
    }

    /// Waits until everything offered so far is on disk; returns the index of the last frame.
    pub fn barrier(&self) -> Result<FrameIndex, EngineError> {
        let (done, wait) = oneshot::channel();
        self.tell(|state| state.barriers.push(done))?;
        wait.blocking_recv().map_err(|_| self.status.error())
    }

    /// Notes that a shard's store is complete up to a frame. Frames that every shard's previous checkpoint includes are
    /// purged; newer ones stay.
    pub fn checkpointed(&self, shard: ShardId, position: FrameIndex) {
        // After a failure nothing is purged.
        let _ = self.tell(|state| {
            if let Some(positions) = state.positions.get_mut(usize::from(shard))
                && positions[0] != position
            {
                *positions = [position, positions[0]];
            }
            state.purge = true;
        });
    }

    /// Passes the outcome of a preparation to the log.
    pub fn prepared(&self, prepared: Result<Prepared, LogError>) {
        // After a failure no segment is needed.
        let _ = self.tell(|state| state.prepared = Some(prepared));
    }

    /// Ends the commit thread once everything offered is durable.
    pub fn stop(&self) {
        // After a failure the thread has already ended.
        let _ = self.tell(|state| state.stop = true);
    }

    fn tell(&self, change: impl FnOnce(&mut State)) -> Result<(), EngineError> {
        let mut state = self.state.lock();
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        change(&mut state);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Stops the engine: nothing is acknowledged from now on.
    pub fn fail(&self, error: &EngineError) {
        let mut state = self.state.lock();
        state.error.get_or_insert_with(|| error.clone());
        self.status.set_failed(error);
        for group in &mut state.open {
            group.fail(error);
            group.clear();
        }
        state.barriers.clear();
        drop(state);
        self.status.close(error);
        self.work.notify_all();
        self.taken.notify_all();
    }
}
