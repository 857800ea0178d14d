//! Commits: one write and one sync for everything that the shards have applied meanwhile.
//!
//! Shards add to their open group while the log syncs the previous one. After the sync, the answers are sent and the
//! open groups are taken, so groups grow automatically under load.

use codeq_core::id::ShardId;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use codeq_disk::Shortage;
use codeq_log::{FrameIndex, Log, LogError, Prepared};
use tokio::sync::oneshot;

use super::Pipeline;
use crate::background::Background;
use crate::error::EngineError;
use crate::group::Group;
use crate::observer::SharedObserver;
use crate::options::{Durability, FULL_DISK_RETRY, Options};

/// Up to this many clients count as few: waiting briefly for all of them costs less than waking up for each.
const FEW_CLIENTS: usize = 64;

/// The log, and the state of the commit thread.
pub struct Committer {
    pub log: Log,
    durability: Durability,
    group_bytes_max: usize,
    observer: SharedObserver,
    /// `None` after the end: the background threads run as long as this handle exists.
    background: Option<Background>,
    /// The groups being committed, by shard; emptied, then swapped for the open ones.
    groups: Vec<Group>,
    /// Number of clients answered with the last groups, and when: they are likely to come back at once.
    expected: usize,
    released: Instant,
    /// Moving average of the duration of a sync.
    sync_time: Duration,
    /// When to request a segment again after a shortage.
    pub retry_at: Option<Instant>,
}

/// Outcome of [`Committer::round`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// There may be more to do.
    Next,
    /// That was the last round.
    Stop,
}

/// Work taken from the shared state.
enum Taken {
    Groups,
    Barriers(Vec<oneshot::Sender<FrameIndex>>),
    Prepared(Result<Prepared, LogError>),
    Nothing,
    Stop,
}

impl Committer {
    pub fn new(log: Log, shards: usize, options: &Options, background: Background) -> Committer {
        Committer {
            log,
            durability: options.durability,
            group_bytes_max: options.group_bytes_max(),
            observer: options.observer.clone(),
            background: Some(background),
            groups: (0..shards).map(|_| Group::default()).collect(),
            expected: 0,
            released: Instant::now(),
            sync_time: Duration::from_micros(200),
            retry_at: None,
        }
    }

    /// Whether the last group answered one client at most.
    pub fn last_was_single(&self) -> bool {
        self.expected <= 1
    }

    /// Takes the next piece of work, if there is any, and does it.
    pub fn round(&mut self, pipeline: &Pipeline) -> Round {
        self.linger(pipeline);
        let done = match self.take(pipeline) {
            Taken::Groups => self.commit(pipeline),
            Taken::Prepared(prepared) => self.provide(pipeline, prepared),
            Taken::Barriers(barriers) => self.answer_barriers(barriers),
            Taken::Nothing => Ok(()),
            Taken::Stop => return Round::Stop,
        };
        match done {
            Ok(()) => {
                self.want_segment();
                Round::Next
            }
            Err(error) => {
                self.fail(pipeline, &error);
                Round::Stop
            }
        }
    }

    /// Ends the commits: syncs what only the operating system has so far.
    pub fn close(&mut self, pipeline: &Pipeline) {
        self.background = None;
        if !pipeline.status.has_failed()
            && let Err(error) = self.log.sync()
        {
            self.fail(pipeline, &error);
        }
    }

    fn take(&mut self, pipeline: &Pipeline) -> Taken {
        let mut state = pipeline.state.lock();
        if state.error.is_some() {
            return Taken::Stop;
        }
        if let Some(prepared) = state.prepared.take() {
            return Taken::Prepared(prepared);
        }
        if std::mem::take(&mut state.purge) {
            if let Some(oldest) = state.positions.iter().map(|[_, previous]| *previous).min() {
                self.log.purge(oldest);
            }
            return Taken::Nothing;
        }
        if state.open.iter().any(|group| !group.is_empty()) {
            for (mine, open) in self.groups.iter_mut().zip(&mut state.open) {
                std::mem::swap(mine, open);
            }
            drop(state);
            pipeline.notify_taken();
            return Taken::Groups;
        }
        if !state.barriers.is_empty() {
            return Taken::Barriers(std::mem::take(&mut state.barriers));
        }
        if state.stop { Taken::Stop } else { Taken::Nothing }
    }

    /// Waits for the clients that were just answered, which tend to come back together: for at most one sync, or a
    /// third of one if there are many. Syncing the first of them alone would make the others wait for two syncs.
    fn linger(&self, pipeline: &Pipeline) {
        if self.expected < 2 || self.durability == Durability::Os {
            return;
        }
        // Many clients keep the log and the shards busy anyway; few would leave them idle.
        let few = self.expected <= FEW_CLIENTS;
        let limit = if few { self.sync_time } else { self.sync_time / 3 };
        while self.released.elapsed() < limit {
            let here: usize = pipeline.state.lock().open.iter().map(Group::callers).sum();
            if here >= self.expected {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn commit(&mut self, pipeline: &Pipeline) -> Result<(), LogError> {
        let (mut bytes, mut frame_bytes) = (0, 0);
        // The groups of all shards go into one frame, unless that would be too long.
        let mut frame: Vec<(u16, &[u8])> = Vec::new();
        for (shard, group) in (0..).zip(&self.groups) {
            if !frame.is_empty() && frame_bytes + group.len() > self.group_bytes_max {
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
            pipeline.status.appended.fetch_add(bytes as u64, Ordering::Relaxed);
            if self.durability == Durability::Fsync {
                self.sync(pipeline)?;
            }
            pipeline.set_room(self.log.room());
        }
        pipeline.unreserve(self.groups.iter().map(|group| group.reserved).sum());
        self.send_answers(pipeline);
        Ok(())
    }

    fn sync(&mut self, pipeline: &Pipeline) -> Result<(), LogError> {
        let start = Instant::now();
        for shard in &pipeline.status.shards {
            shard.inbox.set_syncing(true, false);
        }
        let synced = self.log.sync();
        for (shard, group) in pipeline.status.shards.iter().zip(&self.groups) {
            shard.inbox.set_syncing(false, (2..=FEW_CLIENTS).contains(&group.callers()));
        }
        let took = start.elapsed();
        self.sync_time = (self.sync_time * 7 + took) / 8;
        if let Some(observer) = &self.observer.0 {
            observer.synced(took, self.groups.iter().map(|group| group.commands).sum());
        }
        pipeline.status.syncs.fetch_add(1, Ordering::Relaxed);
        synced
    }

    /// Answers the clients, wakes those that wait for results, and reports the effects: the groups are durable.
    fn send_answers(&mut self, pipeline: &Pipeline) {
        self.expected = self.groups.iter().map(Group::callers).sum();
        self.released = Instant::now();
        for ((shard, channels), group) in
            (0..).map(ShardId).zip(&pipeline.status.shards).zip(&mut self.groups)
        {
            if group.is_empty() {
                continue;
            }
            // The number of the last durable batch never goes down: a group of claims that only timed out has the number
            // of an older batch, and a failure has set it to the maximum.
            channels.durable.send_if_modified(|reached| {
                let higher = group.batch > *reached;
                *reached = (*reached).max(group.batch);
                higher
            });
            let give_back = group.release();
            channels.waiters.committed(&group.effects);
            if let Some(observer) = &self.observer.0 {
                observer.committed(shard, &group.effects);
            }
            group.clear();
            if !give_back.is_empty() {
                channels.inbox.push_unbounded(give_back.into_iter());
            }
        }
    }

    /// Tells the shards that wait at a barrier that everything they offered is on disk.
    fn answer_barriers(
        &mut self,
        barriers: Vec<oneshot::Sender<FrameIndex>>,
    ) -> Result<(), LogError> {
        self.log.sync()?;
        for barrier in barriers {
            // If the receiver is gone, the shard has stopped.
            let _ = barrier.send(self.log.synced_index());
        }
        Ok(())
    }

    /// Requests the next segment, if the log needs one. Called after every round and once before the first: a shard
    /// may be waiting for room, and then nothing else would happen.
    pub fn want_segment(&mut self) {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.retry_at = None;
        if let Some(background) = &self.background
            && let Some(job) = self.log.next_job()
        {
            background.prepare(job);
        }
    }

    /// Adds a new segment to the log. A shortage is retried later; any other failure is final.
    fn provide(
        &mut self,
        pipeline: &Pipeline,
        prepared: Result<Prepared, LogError>,
    ) -> Result<(), LogError> {
        let shortage = match prepared {
            Ok(prepared) => {
                self.log.provide(prepared);
                self.report_shortage(pipeline, None, None);
                None
            }
            Err(error) => {
                let Some(shortage) = error.shortage() else { return Err(error) };
                self.retry_at = Instant::now().checked_add(FULL_DISK_RETRY);
                self.report_shortage(pipeline, Some(shortage), Some(&error.to_string()));
                Some(shortage)
            }
        };
        pipeline.set_room(self.log.room());
        pipeline.set_shortage(shortage);
        pipeline.notify_taken();
        Ok(())
    }

    /// Reports each change, not each retry.
    fn report_shortage(&self, pipeline: &Pipeline, shortage: Option<Shortage>, why: Option<&str>) {
        if pipeline.shortage() != shortage
            && let Some(observer) = &self.observer.0
        {
            observer.shortage(why);
        }
    }

    fn fail(&mut self, pipeline: &Pipeline, error: &LogError) {
        let error = EngineError::Failed(error.to_string().into());
        // Record the failure before anybody is answered.
        pipeline.fail(&error);
        for group in &mut self.groups {
            group.fail(&error);
        }
    }
}
