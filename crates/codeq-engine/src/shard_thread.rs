//! A shard's thread: takes requests, applies them, passes the group to the log, and keeps time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use codeq_core::id::split_mix64;
use codeq_core::kv::KvError;
use codeq_disk::Shortage;
use codeq_log::FrameIndex;
use codeq_store::FinishedJob;
use tokio::sync::oneshot;

use crate::background::Background;
use crate::clock::EngineClock;
use crate::error::EngineError;
use crate::options::{BATCH_BYTES_MAX, BATCH_MAX, CLOCK_REREAD_AFTER, FULL_DISK_RETRY, Options};
use crate::pipeline::Pipeline;
use crate::request::{Inbox, Notice, Request, after};
use crate::shard::Shard;

/// A batch may bring tasks to waiting claims, which are logged with it. For them it reserves as many bytes as its requests
/// take but at most this many, plus [`RESERVE_WAITING_MIN`]. If a sweep is due, it reserves this many instead.
const RESERVE_WAITING: usize = 65_536;
const RESERVE_WAITING_MIN: usize = 2_048;
/// Reserved instead while claims wait that did not fit before. Every single claim fits into it.
const RESERVE_UNSERVED: usize = 262_144;
/// Bytes of the log reserved with every batch for what the shard adds on its own.
const RESERVE_SLACK: usize = 2_048;

/// A shard's thread.
pub struct ShardThread {
    pub shard: Shard,
    pub inbox: Arc<Inbox>,
    pub pipeline: Arc<Pipeline>,
    pub background: Background,
    pub clock: Arc<EngineClock>,
    pub options: Options,
    pub checkpoint: CheckpointState,
    pub seed: u64,
    pub stopping: bool,
    /// Writes are refused, and the readiness check says so.
    pub refusing: bool,
}

/// State of the shard's checkpoints.
#[derive(Default)]
pub struct CheckpointState {
    /// A checkpoint or a step of maintenance is in progress.
    pub running: bool,
    /// Bytes that had been appended to the log when the last checkpoint began.
    pub log_bytes: u64,
    /// When to retry after a full disk or a lack of file descriptors.
    pub retry_at: Option<Instant>,
    /// Which of these two resources was short.
    pub short: Option<Shortage>,
    /// Callers that wait for a checkpoint that has not started yet.
    pub wanted: Vec<oneshot::Sender<Result<(), EngineError>>>,
    /// Callers that wait for the running checkpoint.
    pub awaited: Vec<oneshot::Sender<Result<(), EngineError>>>,
}

/// Why the thread stops.
enum Stop {
    Failed(EngineError),
    Closed,
}

impl From<KvError> for Stop {
    fn from(error: KvError) -> Stop {
        Stop::Failed(EngineError::Failed(error.to_string().into()))
    }
}

impl From<EngineError> for Stop {
    fn from(error: EngineError) -> Stop {
        Stop::Failed(error)
    }
}

impl ShardThread {
    /// Runs until it is stopped or something fails.
    pub fn run(mut self) {
        let mut requests = Vec::with_capacity(BATCH_MAX);
        let mut notices = Vec::new();
        // Add the checksums to a store of an older release now, rather than after the first checkpoint.
        self.maintain();
        loop {
            match self.round(&mut requests, &mut notices) {
                Ok(()) => {}
                Err(Stop::Closed) => {
                    self.shard.fail(&EngineError::Closed);
                    return;
                }
                Err(Stop::Failed(error)) => {
                    self.pipeline.fail(&error);
                    self.shard.fail(&error);
                    self.answer_waits(Err(error));
                    return;
                }
            }
        }
    }

    fn round(
        &mut self,
        requests: &mut Vec<Request>,
        notices: &mut Vec<Notice>,
    ) -> Result<(), Stop> {
        let wake_at = self.wake_at();
        let max_bytes = BATCH_BYTES_MAX.min(self.options.command_bytes_max() / 4);
        self.inbox.take(BATCH_MAX, max_bytes, wake_at, requests, notices);
        for notice in notices.drain(..) {
            self.notice(notice)?;
        }
        if self.pipeline.status.has_failed() {
            return Err(self.pipeline.status.error().into());
        }
        if self.refusing && !self.is_full() {
            self.refusing = false;
            self.pipeline.status.set_refusing(self.shard.number, None);
        }
        self.apply(requests)?;
        if self.shard.group.is_empty() {
            let reserved = std::mem::take(&mut self.shard.group.reserved);
            self.pipeline.unreserve(reserved);
        } else {
            let alone = self.inbox.len() == 0;
            self.pipeline.offer(self.shard.number, &mut self.shard.group, alone)?;
        }
        self.checkpoint_if_due()?;
        if self.stopping && self.inbox.len() == 0 {
            return self.finish();
        }
        Ok(())
    }

    fn apply(&mut self, requests: &mut Vec<Request>) -> Result<(), Stop> {
        let at = self.clock.moment();
        let due = !self.holds_back() && self.shard.time_until_due(at) == Some(0);
        if requests.is_empty() && !due {
            return Ok(());
        }
        // Reserve more than the requests take: they may bring tasks to waiting claims, and those claims are logged too.
        let asked: usize = requests.iter().map(Request::bytes).sum();
        let claim_log_budget = if self.shard.has_unserved_queues() {
            RESERVE_UNSERVED
        } else if due {
            RESERVE_WAITING
        } else {
            asked.min(RESERVE_WAITING) + RESERVE_WAITING_MIN
        };
        // The log never has more free than this: waiting for more would never end.
        let most = self.options.command_bytes_max().saturating_sub(asked);
        let claim_log_budget = claim_log_budget.min(most);
        let bytes = (asked + claim_log_budget + RESERVE_SLACK) as u64;
        if self.memory_is_full() || !self.pipeline.reserve(bytes) {
            let error = self.refusal();
            for request in requests.drain(..) {
                // A client that is gone does not need to know.
                let _ = request.reply.send(Err(error.clone()));
            }
            return Ok(());
        }
        self.shard.group.reserved += bytes;
        self.shard.set_claim_log_budget(claim_log_budget);
        if !requests.is_empty() {
            self.shard.apply(at, requests.drain(..))?;
        }
        if due {
            self.seed = split_mix64(self.seed);
            self.shard.sweep(at, self.seed)?;
        }
        Ok(())
    }

    /// Why requests are refused. Remembers that they are, until there is room again.
    fn refusal(&mut self) -> EngineError {
        if self.pipeline.status.has_failed() {
            return self.pipeline.status.error();
        }
        let memory = self.checkpoint.short.filter(|_| self.memory_is_full());
        let short = memory.or_else(|| self.pipeline.shortage()).unwrap_or(Shortage::Space);
        let error = EngineError::from(short);
        if !self.refusing {
            self.refusing = true;
            self.pipeline.status.set_refusing(self.shard.number, Some(error.clone()));
        }
        error
    }

    /// Whether sweeps wait for a checkpoint. Otherwise a million tasks that come due together would fill the memory
    /// that the clients' commands need, and stall them.
    fn holds_back(&self) -> bool {
        self.checkpoint.running && self.memory() >= self.options.memtable_bytes
    }

    fn notice(&mut self, notice: Notice) -> Result<(), Stop> {
        match notice {
            Notice::JobFinished(finished) => self.job_finished(finished)?,
            Notice::Checkpoint(done) => self.checkpoint.wanted.push(done),
            Notice::Gone(client) => self.shard.forget(client),
            Notice::Drain => self.shard.drain(),
            Notice::Stop => {
                self.shard.drain();
                self.stopping = true;
            }
        }
        Ok(())
    }

    /// When there is something to do without a request.
    fn wake_at(&mut self) -> Option<Instant> {
        if self.stopping {
            return Some(Instant::now());
        }
        let retry = self.checkpoint.retry_at;
        // The end of a checkpoint is a notice, which wakes the shard anyway.
        let waits = self.is_full() || self.holds_back();
        let wait = self.shard.time_until_due(self.clock.moment()).filter(|_| !waits);
        let due = after(wait.map(|wait| Duration::from_millis(wait).min(CLOCK_REREAD_AFTER)));
        let full = after((self.refusing || self.is_full()).then_some(FULL_DISK_RETRY));
        due.into_iter().chain(retry).chain(full).min()
    }

    /// Whether rows that no checkpoint can write have reached their memory limit.
    fn memory_is_full(&self) -> bool {
        let waiting = self.checkpoint.retry_at.is_some();
        waiting && self.memory() > self.options.memtable_bytes.saturating_mul(2)
    }

    fn is_full(&self) -> bool {
        self.memory_is_full() || self.pipeline.shortage().is_some()
    }

    fn memory(&self) -> usize {
        self.shard.data().read().store.active_bytes()
    }

    fn checkpoint_if_due(&mut self) -> Result<(), Stop> {
        if self.checkpoint.running {
            // A checkpoint that cannot keep up must slow the writers down, not fill the memory.
            let limit = self.options.memtable_bytes.saturating_mul(2);
            while self.checkpoint.running && self.memory() > limit {
                self.await_notices()?;
            }
            return Ok(());
        }
        if self.checkpoint.retry_at.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        let appended = self.pipeline.status.appended.load(Ordering::Relaxed);
        let grown = appended.saturating_sub(self.checkpoint.log_bytes);
        let due = self.memory() >= self.options.memtable_bytes
            || grown >= self.options.checkpoint_log_bytes
            || self.checkpoint.retry_at.is_some()
            || !self.checkpoint.wanted.is_empty();
        if !due {
            return Ok(());
        }
        self.begin_checkpoint()
    }

    /// Waits briefly for notices, and for nothing else.
    fn await_notices(&mut self) -> Result<(), Stop> {
        if self.pipeline.status.has_failed() {
            return Err(self.pipeline.status.error().into());
        }
        let mut notices = Vec::new();
        self.inbox.await_notices(after(Some(Duration::from_millis(10))), &mut notices);
        notices.into_iter().try_for_each(|notice| self.notice(notice))
    }

    fn begin_checkpoint(&mut self) -> Result<(), Stop> {
        let position = self.pipeline.barrier()?;
        let frozen = self.shard.data().read().store.frozen_bytes() > 0;
        let Some(job) = self.shard.freeze(position) else {
            return Ok(());
        };
        if !frozen {
            // A retry writes what was frozen before; callers that wait now need the next checkpoint.
            self.checkpoint.awaited.append(&mut self.checkpoint.wanted);
        }
        self.checkpoint.running = true;
        self.checkpoint.retry_at = None;
        self.checkpoint.log_bytes = self.pipeline.status.appended.load(Ordering::Relaxed);
        self.background.run(job, Arc::clone(&self.inbox));
        Ok(())
    }

    fn job_finished(&mut self, mut finished: Box<FinishedJob>) -> Result<(), Stop> {
        let was_checkpoint = finished.is_checkpoint();
        let outcome = self.shard.take_back(&mut finished);
        self.background.free(finished);
        self.checkpoint.running = false;
        match outcome {
            Ok(()) => {
                self.set_short(None, None);
                let position = FrameIndex(self.shard.data().read().store.position());
                self.pipeline.checkpointed(self.shard.number, position);
                self.answer_waits(Ok(()));
                // Checkpoints and steps of maintenance take turns. Otherwise, copying a large store would keep
                // checkpoints, and soon writers, waiting until the last step.
                if !was_checkpoint {
                    self.checkpoint_if_due()?;
                }
                if !self.checkpoint.running {
                    self.maintain();
                }
                Ok(())
            }
            Err(error) => {
                let Some(short) = error.shortage() else {
                    return Err(Stop::Failed(EngineError::Failed(error.to_string().into())));
                };
                self.checkpoint.retry_at = after(Some(FULL_DISK_RETRY));
                self.set_short(Some(short), Some(&error.to_string()));
                self.answer_waits(Err(short.into()));
                Ok(())
            }
        }
    }

    /// Remembers what a checkpoint lacked, and reports each change once.
    fn set_short(&mut self, short: Option<Shortage>, why: Option<&str>) {
        let before = std::mem::replace(&mut self.checkpoint.short, short);
        if before != short
            && let Some(observer) = &self.options.observer.0
        {
            observer.shortage(why);
        }
    }

    fn maintain(&mut self) {
        if self.stopping {
            return;
        }
        if let Some(job) = self.shard.data().write().store.maintain() {
            self.checkpoint.running = true;
            self.background.run(job, Arc::clone(&self.inbox));
        }
    }

    fn answer_waits(&mut self, outcome: Result<(), EngineError>) {
        for done in self.checkpoint.awaited.drain(..) {
            // A client that is gone does not need to know.
            let _ = done.send(outcome.clone());
        }
        if outcome.is_err() {
            for done in self.checkpoint.wanted.drain(..) {
                let _ = done.send(outcome.clone());
            }
        }
    }

    /// The last round: waits until everything is durable, and writes a checkpoint so that the next start is quick.
    fn finish(&mut self) -> Result<(), Stop> {
        // A job in progress has the store's file, and callers may wait for its outcome.
        while self.checkpoint.running {
            self.await_notices()?;
        }
        let position = self.pipeline.barrier()?;
        if let Some(job) = self.shard.freeze(position) {
            // The log has everything: if this checkpoint fails, the next start only takes longer.
            let _ = self.shard.take_back(&mut job.run());
        }
        self.answer_waits(Err(EngineError::Closed));
        self.inbox.close(&EngineError::Closed);
        Err(Stop::Closed)
    }
}
