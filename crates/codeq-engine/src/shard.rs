//! A shard: the rules applied to its store, and the claims that wait for tasks.
//!
//! Nothing here starts a thread, reads a clock or touches the log: commands arrive with their moment and go into a
//! [`Group`]. The threads around it are in `shard_thread` and `pipeline/sync_and_answer`; the simulator drives a shard
//! directly.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use codeq_core::codec::open_record;
use codeq_core::command::{Command, Millis, Sweep};
use codeq_core::digest::WriteDigest;
use codeq_core::effect::Effect;
use codeq_core::id::{ShardId, split_mix64};
use codeq_core::keys::QueueId;
use codeq_core::kv::KvError;
use codeq_core::limits::SWEEP_MAX;
use codeq_core::moment::Moment;
use codeq_core::reply::Reply;
use codeq_core::state::{Applied, State};
use codeq_log::FrameIndex;
use codeq_store::{FinishedJob, Store, StoreError, StoreJob};
use parking_lot::RwLock;

use crate::error::{EngineError, OpenError};
use crate::group::{Batch, Group};
use crate::options::{WAITERS_MAX, WAITERS_PER_TENANT_MAX};
use crate::request::{ClientNumber, ReplyTo, Request, WaitingClaim};
use crate::waiting_claims::WaitingClaims;

mod replicated;

/// What readers share with the shard's thread.
pub struct ShardData {
    /// The state of the rules.
    pub state: State,
    /// Its rows.
    pub store: Store,
    /// Number of the last batch that changed something. What a reader sees is durable once this batch is.
    pub batch: Batch,
}

/// One shard.
pub struct Shard {
    /// Its number.
    pub number: ShardId,
    data: Arc<RwLock<ShardData>>,
    waiting_claims: WaitingClaims,
    /// Bytes of the log that may still be spent on waiting claims, until set again.
    claim_log_budget: usize,
    /// Queues that have both tasks and waiting claims, which were not served because `claim_log_budget` was used up or
    /// another shard was just trying to serve one of these claims.
    /// In a cluster: queues that may have both.
    unserved_queues: BTreeSet<QueueId>,
    /// The commands applied since the last group was taken.
    pub group: Group,
    effects: Vec<Effect>,
    /// Effects of the record replayed last.
    replayed: Vec<Effect>,
    /// The digest of all rows written so far, if one is kept.
    digest: Option<WriteDigest>,
    draining: bool,
    waiting_count: Arc<AtomicUsize>,
}

impl Shard {
    /// Starts from a recovered state.
    pub fn new(number: ShardId, state: State, store: Store) -> Shard {
        let data = Arc::new(RwLock::new(ShardData { state, store, batch: Batch(0) }));
        Shard {
            number,
            data,
            waiting_claims: WaitingClaims::default(),
            claim_log_budget: usize::MAX,
            unserved_queues: BTreeSet::new(),
            group: Group::default(),
            effects: Vec::new(),
            replayed: Vec::new(),
            digest: None,
            draining: false,
            waiting_count: Arc::default(),
        }
    }

    /// What readers share with the shard's thread.
    pub fn data(&self) -> &Arc<RwLock<ShardData>> {
        &self.data
    }

    /// Keeps a digest of the rows that the rules write from now on, to be compared with other copies of the shard. It
    /// continues from the last checkpoint, so nothing may have been applied since.
    pub fn keep_digest(&mut self) {
        self.digest = Some(WriteDigest(self.data.read().store.digest()));
    }

    /// The digest, if one is kept.
    pub fn digest(&self) -> Option<WriteDigest> {
        self.digest
    }

    /// Applies a record of the log that is already committed, without answers and without waiting claims. Returns the
    /// effects. A record that the last checkpoint includes does nothing.
    ///
    /// After an error the shard must not be used any more.
    pub fn replay(&mut self, index: FrameIndex, record: &[u8]) -> Result<&[Effect], OpenError> {
        self.replayed.clear();
        let mut data = self.data.write();
        let ShardData { state, store, .. } = &mut *data;
        if index.0 <= store.position() {
            return Ok(&[]);
        }
        let malformed = |source| OpenError::Record { index, shard: self.number, source };
        let (at, commands) = open_record(record).map_err(malformed)?;
        for command in commands {
            let command = command.map_err(malformed)?;
            let effects = &mut self.replayed;
            match &mut self.digest {
                Some(digest) => {
                    state.apply_quietly(&mut digest.over(store), at, &command, effects)?
                }
                None => state.apply_quietly(store, at, &command, effects)?,
            };
        }
        Ok(&self.replayed)
    }

    /// Sets how many bytes of the log may be spent on waiting claims. The size of a request is known before it is
    /// applied, but not how many claims it wakes: some name a thousand queues, and hundreds of those in one group
    /// would exceed what the log accepts at once. The next [`Shard::sweep`] serves those that did not fit.
    pub fn set_claim_log_budget(&mut self, bytes: usize) {
        self.claim_log_budget = bytes;
    }

    /// Whether waiting claims could not be served yet, although there may be tasks for them.
    pub fn has_unserved_queues(&self) -> bool {
        !self.unserved_queues.is_empty()
    }

    /// Applies requests at one moment, serves waiting claims that can be served now, and adds everything that changed
    /// to the group. An error means that the shard must stop.
    pub fn apply(
        &mut self,
        at: Moment,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<(), KvError> {
        self.batch(at, |shard, data| {
            requests.into_iter().try_for_each(|request| shard.apply_one(data, at, request))
        })
    }

    /// Changes rows at one moment, under one lock, as one batch.
    fn batch(
        &mut self,
        at: Moment,
        work: impl FnOnce(&mut Shard, &mut ShardData) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let data = Arc::clone(&self.data);
        let mut data = data.write();
        let before = self.group.commands;
        self.group.begin(at);
        work(self, &mut data)?;
        self.group.end();
        // A batch that changed nothing, such as a claim that now waits, does not count: readers must not wait for it,
        // because nothing would make it durable.
        if self.group.commands > before {
            data.batch.0 += 1;
            self.group.batch = data.batch;
        }
        self.count_waiting();
        Ok(())
    }

    fn count_waiting(&self) {
        self.waiting_count.store(self.waiting_claims.len(), Ordering::Release);
    }

    /// Does what is due. The work is bounded: repeat it as long as something is due.
    pub fn sweep(&mut self, at: Moment, seed: u64) -> Result<(), KvError> {
        while let Some(waiting) = self.waiting_claims.take_due(at.now) {
            self.group.answer(waiting.reply, Ok(Reply::Claimed(Vec::new())));
        }
        self.count_waiting();
        if self.has_unserved_queues() {
            self.batch(at, |shard, data| shard.serve_unserved(data, at))?;
        }
        if self.data.read().state.is_due(at) {
            let sweep = Sweep { limit: SWEEP_MAX, seed: split_mix64(seed) };
            self.apply(at, [Request::detached(Command::Sweep(sweep))])?;
        }
        Ok(())
    }

    /// Time until [`Shard::sweep`] has something to do, unless the wall clock is set meanwhile.
    pub fn time_until_due(&self, at: Moment) -> Option<Millis> {
        let data = self.data.read();
        if self.has_unserved_queues() || data.state.is_due(at) {
            return Some(0);
        }
        let deadlines =
            data.state.next_deadline().into_iter().chain(self.waiting_claims.next_deadline());
        let left = deadlines.map(|deadline| deadline.saturating_sub(at.now));
        let date = data.state.next_run_at().map(|date| date.saturating_sub(at.wall));
        left.chain(date).min()
    }

    /// Number of waiting claims.
    pub fn waiting(&self) -> &Arc<AtomicUsize> {
        &self.waiting_count
    }

    /// Answers the waiting claims. From now on, claims that would otherwise wait are answered at once too.
    pub fn drain(&mut self) {
        self.draining = true;
        for waiting in self.waiting_claims.take_all() {
            self.group.answer(waiting.reply, Ok(Reply::Claimed(Vec::new())));
        }
        self.count_waiting();
    }

    /// Answers the group and all waiting claims with an error, because the engine has stopped.
    pub fn fail(&mut self, error: &EngineError) {
        self.group.fail(error);
        for waiting in self.waiting_claims.take_all() {
            // A client that is gone does not need to know.
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    /// Starts a checkpoint, or repeats one that failed. `position` is the log frame up to which the
    /// rows are complete. Everything applied must be durable.
    pub fn freeze(&mut self, position: FrameIndex) -> Option<StoreJob> {
        let mut data = self.data.write();
        let ShardData { state, store, .. } = &mut *data;
        if store.frozen_bytes() > 0 {
            return store.retry_checkpoint();
        }
        state.write_back(store);
        store.freeze_with(position.0, self.digest.unwrap_or_default().0)
    }

    /// Takes back a finished checkpoint job.
    pub fn take_back(&mut self, finished: &mut FinishedJob) -> Result<(), StoreError> {
        self.data.write().store.take_back(finished)
    }

    fn apply_one(
        &mut self,
        data: &mut ShardData,
        at: Moment,
        request: Request,
    ) -> Result<(), KvError> {
        let bytes = request.bytes();
        let Request { command, reply, wait, .. } = request;
        let mut effects = std::mem::take(&mut self.effects);
        let applied = self.run(data, at, &command, &mut effects)?;
        if applied.changed {
            self.group.push(&command);
        }
        match (applied.reply, command) {
            (Reply::Claimed(tasks), Command::Claim(claim)) if tasks.is_empty() && wait > 0 => {
                let deadline = at.now.saturating_add(wait);
                self.let_wait(WaitingClaim { claim, reply, deadline, bytes });
            }
            (reply_value, _) => self.group.answer(reply, Ok(reply_value)),
        }
        self.serve_waiting(data, at, &mut effects)?;
        self.group.effects.append(&mut effects);
        self.effects = effects;
        Ok(())
    }

    /// Applies a command to the rows.
    fn run(
        &mut self,
        data: &mut ShardData,
        at: Moment,
        command: &Command,
        effects: &mut Vec<Effect>,
    ) -> Result<Applied, KvError> {
        match &mut self.digest {
            Some(digest) => {
                data.state.apply(&mut digest.over(&mut data.store), at, command, effects)
            }
            None => data.state.apply(&mut data.store, at, command, effects),
        }
    }

    fn let_wait(&mut self, claim: WaitingClaim) {
        if claim.reply.is_closed() {
            // The client left before its claim arrived. Its notice may have come earlier, and none follows.
            return;
        }
        if self.draining {
            self.group.answer(claim.reply, Ok(Reply::Claimed(Vec::new())));
        } else if self.has_no_room(&claim.claim.tenant) {
            self.group.answer(claim.reply, Err(EngineError::TooManyWaiting));
        } else {
            self.waiting_claims.add(claim);
        }
    }

    /// Drops the claims of a client that is gone.
    pub fn forget(&mut self, client: ClientNumber) {
        self.waiting_claims.forget(client);
        self.count_waiting();
    }

    fn has_no_room(&self, tenant: &str) -> bool {
        self.waiting_claims.len() >= WAITERS_MAX
            || self.waiting_claims.of(tenant) >= WAITERS_PER_TENANT_MAX
    }

    /// Serves waiting claims from queues that became claimable, in the same group: the worker receives the task once
    /// the task and its lease are durable, after one sync.
    fn serve_waiting(
        &mut self,
        data: &mut ShardData,
        moment: Moment,
        effects: &mut Vec<Effect>,
    ) -> Result<(), KvError> {
        if self.waiting_claims.is_empty() {
            return Ok(());
        }
        let mut at = 0;
        while let Some(effect) = effects.get(at) {
            at += 1;
            if let Effect::Ready { queue } = *effect {
                self.serve_queue(data, moment, queue, effects)?;
            }
        }
        Ok(())
    }

    /// Serves claims that did not fit into an earlier `claim_log_budget`.
    fn serve_unserved(&mut self, data: &mut ShardData, at: Moment) -> Result<(), KvError> {
        let mut effects = std::mem::take(&mut self.effects);
        for queue in std::mem::take(&mut self.unserved_queues) {
            self.serve_queue(data, at, queue, &mut effects)?;
        }
        self.serve_waiting(data, at, &mut effects)?;
        self.group.effects.append(&mut effects);
        self.effects = effects;
        Ok(())
    }

    fn serve_queue(
        &mut self,
        data: &mut ShardData,
        moment: Moment,
        queue: QueueId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), KvError> {
        while data.state.is_claimable(queue) {
            let Some(row) = data.state.queue_row(queue) else {
                break;
            };
            let (tenant, name) = (Arc::clone(&row.tenant), Arc::clone(&row.name));
            let Some((id, waiting)) = self.waiting_claims.take(&tenant, &name) else {
                break;
            };
            if waiting.bytes > self.claim_log_budget {
                self.waiting_claims.put(id, waiting);
                self.unserved_queues.insert(queue);
                break;
            }
            let WaitingClaim { claim, reply, deadline, bytes } = waiting;
            let shared = reply.shared();
            let reply = match reply.take() {
                Ok(reply) => reply,
                Err(reply) if reply.is_closed() => continue,
                Err(reply) => {
                    // Another shard tries to serve it, and may put it back.
                    let waiting = WaitingClaim { claim, reply, deadline, bytes };
                    self.waiting_claims.put(id, waiting);
                    self.unserved_queues.insert(queue);
                    break;
                }
            };
            let command = Command::Claim(claim);
            let applied = self.run(data, moment, &command, effects)?;
            if applied.changed {
                self.claim_log_budget = self.claim_log_budget.saturating_sub(bytes);
                self.group.push(&command);
            }
            match (applied.reply, command) {
                (Reply::Claimed(tasks), Command::Claim(claim)) if tasks.is_empty() => {
                    let reply = match shared {
                        Some(first) => first.put_back(reply),
                        None => reply,
                    };
                    self.waiting_claims.put(id, WaitingClaim { claim, reply, deadline, bytes });
                    break;
                }
                (answer, _) => {
                    self.group.answer(reply, Ok(answer));
                    if let Some(first) = shared {
                        first.answered();
                    }
                }
            }
        }
        Ok(())
    }
}
