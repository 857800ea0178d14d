//! All shards of one node of a cluster: gathers requests into entries, and applies the entries that the cluster commits.
//!
//! ```text
//! requests ─> gather ─> one entry for all shards ─> the cluster commits it ─> apply ─> answers, effects
//! ```
//!
//! Starts no thread and reads no clock. It knows nothing of elections: whoever drives it says which entries are
//! committed, which of them are its own, and when it no longer leads.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::claim::check;
use codeq_core::codec;
use codeq_core::command::{Command, Millis, Sweep};
use codeq_core::effect::Effect;
use codeq_core::id::{ShardId, split_mix64};
use codeq_core::limits::SWEEP_MAX;
use codeq_core::moment::Moment;
use codeq_core::reply::Reply;
use codeq_disk::SharedDisk;
use codeq_log::FrameIndex;
use tokio::sync::{Notify, oneshot};

use crate::boundary::Answer;
use crate::driver::Driver;
use crate::engine::{Engine, ShardHandle};
use crate::error::{EngineError, OpenError};
use crate::options::{GROUP_MAX, Options};
use crate::request::{Inbox, Notice, ReplyTo, Request};
use crate::scrub::Scrub;
use crate::shard::Shard;
use crate::status::{ShardChannels, Status};

/// Number of entries whose digests are kept, to be compared with the leader's. Each entry carries the leader's digests as
/// of the last entry that it had applied, so a node has to look back only as far as the leader had entries in flight.
const DIGESTS_KEPT: usize = 1_024;

/// Reports a finished checkpoint to the caller that waits for it.
pub type CheckpointWait = oneshot::Sender<Result<(), EngineError>>;

/// The shards of a node.
pub struct Replica {
    shards: Vec<ReplicaShard>,
    status: Arc<Status>,
    group_bytes_max: usize,
    /// Proposals that are neither applied nor given up yet, oldest first.
    proposed: VecDeque<Proposed>,
    /// The number of the next proposal.
    next: u64,
    /// Index of the last entry applied.
    applied: u64,
    /// The latest engine time of any entry. Shards do not note the time of a command that changed nothing, but its answer
    /// told a client what was true at that time, so time must not go back before it.
    latest: Millis,
    /// The digests of all shards after each of the last entries, oldest first.
    digests: VecDeque<(u64, Vec<u64>)>,
    /// Answers from committed rows that are right only if this node still leads; see [`Replica::take_unconfirmed`].
    unconfirmed: Vec<(ReplyTo, Answer)>,
    checkpoint_waits: Vec<CheckpointWait>,
}

struct ReplicaShard {
    shard: Shard,
    inbox: Arc<Inbox>,
    /// A sweep is proposed and not applied yet.
    sweeping: bool,
}

struct Proposed {
    number: u64,
    at: Moment,
    bytes: usize,
    /// By shard.
    requests: Vec<(ShardId, Vec<Request>)>,
}

/// Requests that were gathered, to be proposed as one entry.
#[derive(Debug)]
pub struct Gathered {
    /// The number of the proposal.
    pub number: u64,
    /// One record for each shard that has commands.
    pub records: Vec<(ShardId, Bytes)>,
}

/// Two replicas differ although they applied the same entries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rows of shard {shard} differ from the leader's as of entry {index}: this node must not go on; remove its data \
     and let it join again"
)]
pub struct Diverged {
    /// The shard.
    pub shard: ShardId,
    /// The entry after which they differ.
    pub index: u64,
}

impl Replica {
    /// Starts from recovered shards. `applied` is the index of the last entry that all of them include; `arrived` is
    /// notified when there may be something to gather.
    pub fn new(
        shards: Vec<Shard>,
        applied: u64,
        options: &Options,
        arrived: &Arc<Notify>,
    ) -> Replica {
        let status = Status::notifying(shards.len(), options.observer.clone(), arrived);
        let shard = |(mut shard, channels): (Shard, &ShardChannels)| {
            shard.keep_digest();
            ReplicaShard { shard, inbox: Arc::clone(&channels.inbox), sweeping: false }
        };
        Replica {
            shards: shards.into_iter().zip(&status.shards).map(shard).collect(),
            status,
            group_bytes_max: options.group_bytes_max(),
            proposed: VecDeque::new(),
            next: 1,
            applied,
            latest: 0,
            digests: VecDeque::new(),
            unconfirmed: Vec::new(),
            checkpoint_waits: Vec::new(),
        }
    }

    /// An engine whose calls these shards serve. `damaged` is called if a row turns out to be damaged.
    pub fn engine(
        &self,
        driver: Box<dyn Driver>,
        (disk, options, seed): (SharedDisk, Options, u64),
        damaged: impl FnOnce(&EngineError) + Send + 'static,
    ) -> std::io::Result<Engine> {
        let shards = self.shards.iter().zip(&self.status.shards);
        let handles: Vec<ShardHandle> =
            shards.map(|(it, channels)| ShardHandle::new(&it.shard, channels)).collect();
        let stores = handles.iter().map(|handle| Arc::clone(&handle.data)).collect();
        let status = Arc::clone(&self.status);
        let scrub = Scrub::start(stores, Arc::clone(&status), &options, false, damaged)?;
        Ok(Engine::new(handles, status, driver, (disk, options, seed), scrub))
    }

    /// What callers of the engine see.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Number of shards.
    pub fn shards(&self) -> u16 {
        self.shards.len() as u16
    }

    /// Index of the last entry applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// A shard.
    pub fn shard(&self, number: ShardId) -> Option<&Shard> {
        self.shards.get(usize::from(number)).map(|it| &it.shard)
    }

    /// A shard, to make a checkpoint.
    pub fn shard_mut(&mut self, number: ShardId) -> Option<&mut Shard> {
        self.shards.get_mut(usize::from(number)).map(|it| &mut it.shard)
    }

    /// All shards.
    pub fn each(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().map(|it| &it.shard)
    }

    /// The latest engine time of any entry.
    pub fn now(&self) -> Millis {
        let latest = self.each().map(|shard| shard.data().read().state.now()).max();
        latest.unwrap_or(0).max(self.latest)
    }

    /// Replaces the rows of all shards by others, which have arrived from another node.
    pub fn replace(&mut self, shards: Vec<Shard>, applied: u64) {
        self.step_down();
        for (it, new) in self.shards.iter_mut().zip(shards) {
            it.shard.replace_rows(new);
            it.sweeping = false;
        }
        // A task that a client waits for may be finished in the new rows.
        self.status.shards.iter().for_each(|shard| shard.waiters.wake_all());
        self.applied = applied;
        self.digests.clear();
    }

    /// The number of the oldest proposal in flight.
    pub fn first_in_flight(&self) -> Option<u64> {
        self.proposed.front().map(|first| first.number)
    }

    /// Bytes of the proposals in flight.
    pub fn bytes_in_flight(&self) -> usize {
        self.proposed.iter().map(|proposed| proposed.bytes).sum()
    }

    /// Number of proposals in flight.
    pub fn in_flight(&self) -> usize {
        self.proposed.len()
    }

    /// Time until there is something to propose, unless the wall clock is set meanwhile.
    pub fn time_until_due(&self, at: Moment) -> Option<Millis> {
        let wait = |it: &ReplicaShard| {
            if it.inbox.len() > 0 || it.shard.has_unserved_queues() {
                return Some(0);
            }
            // The sweep in flight does what is due.
            it.shard.time_until_due(at).filter(|wait| !(it.sweeping && *wait == 0))
        };
        self.shards.iter().filter_map(wait).min()
    }

    /// Gathers what has arrived, claims that can be served, and what is due, as one entry. `None` if there is nothing
    /// to propose. The work is bounded: repeat it as long as there is something. An entry of several commands is no longer
    /// than a group, so that it fits into the log.
    pub fn gather(&mut self, at: Moment, seed: u64) -> Option<Gathered> {
        let (mut records, mut requests) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        // Each shard is first in turn, so that none is left out when the others fill the entry.
        let first = self.next.checked_rem(self.shards.len() as u64).unwrap_or(0) as usize;
        let (later, earlier) = self.shards.split_at_mut(first);
        for it in earlier.iter_mut().chain(later) {
            let expired = it.shard.take_expired(at).into_iter();
            self.unconfirmed.extend(expired.map(|reply| (reply, Ok(Reply::Claimed(Vec::new())))));
            let room = self.group_bytes_max.saturating_sub(bytes);
            let mut taken = it.shard.take_servable(at, GROUP_MAX, room, bytes == 0);
            bytes += taken.iter().map(Request::bytes).sum::<usize>();
            let room = self.group_bytes_max.saturating_sub(bytes);
            let max = GROUP_MAX.saturating_sub(taken.len());
            for request in it.inbox.take_now(max, room, bytes == 0) {
                match &request.command {
                    Command::Claim(claim) if !it.shard.might_find(at, claim) => {
                        if let Err(rejection) = check(claim) {
                            // Any node refuses an invalid claim, so this needs no confirmation. A client that is gone
                            // need not know.
                            let _ = request.reply.send(Ok(Reply::Rejected(rejection)));
                        } else if request.wait > 0 {
                            it.shard.wait_for_task(at, request);
                        } else {
                            let empty = Ok(Reply::Claimed(Vec::new()));
                            self.unconfirmed.push((request.reply, empty));
                        }
                    }
                    _ => {
                        bytes += request.bytes();
                        taken.push(request);
                    }
                }
            }
            if !it.sweeping && it.shard.is_due(at) {
                it.sweeping = true;
                let seed = split_mix64(seed ^ u64::from(it.shard.number.0));
                let sweep = Sweep { limit: SWEEP_MAX, seed };
                taken.push(Request::detached(Command::Sweep(sweep)));
            }
            if !taken.is_empty() {
                let mut record = Vec::new();
                codec::begin_record(at, &mut record);
                taken.iter().for_each(|request| codec::push_command(&request.command, &mut record));
                records.push((it.shard.number, Bytes::from(record)));
                requests.push((it.shard.number, taken));
            }
            // Claims that may not wait were answered: the engine is stopping, or too many wait.
            self.unconfirmed.extend(it.shard.group.take_answers());
        }
        if records.is_empty() {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let bytes = records.iter().map(|(_, record)| record.len()).sum();
        self.proposed.push_back(Proposed { number, at, bytes, requests });
        Some(Gathered { number, records })
    }

    /// Handles notices: forgets clients that are gone, and answers waiting claims before the engine stops.
    pub fn take_notices(&mut self) {
        for it in &mut self.shards {
            for notice in it.inbox.take_notices() {
                match notice {
                    Notice::Gone(client) => it.shard.forget(client),
                    Notice::Drain | Notice::Stop => it.shard.drain(),
                    Notice::Checkpoint(done) => self.checkpoint_waits.push(done),
                    // Only the checkpoint thread of a single node sends this.
                    Notice::JobFinished(_) => {}
                }
            }
            self.unconfirmed.extend(it.shard.group.take_answers());
        }
    }

    /// Answers waiting claims and lets no new ones wait, because the node is about to stop.
    pub fn drain(&mut self) {
        for it in &mut self.shards {
            it.shard.drain();
            self.unconfirmed.extend(it.shard.group.take_answers());
        }
    }

    /// Whether every request is answered, apart from claims that wait for a task.
    pub fn is_idle(&self) -> bool {
        let idle = |it: &ReplicaShard| it.inbox.len() == 0 && !it.shard.has_unserved_queues();
        self.proposed.is_empty() && self.unconfirmed.is_empty() && self.shards.iter().all(idle)
    }

    /// Takes the callers that wait for a checkpoint.
    pub fn take_checkpoint_waits(&mut self) -> Vec<CheckpointWait> {
        std::mem::take(&mut self.checkpoint_waits)
    }

    /// Takes the answers that were found in committed rows and not logged, such as that there is nothing to claim. They
    /// may be sent once a read index that was asked for after this call confirms that this node leads.
    pub fn take_unconfirmed(&mut self) -> Vec<(ReplyTo, Answer)> {
        std::mem::take(&mut self.unconfirmed)
    }

    /// Applies a committed entry. With `own`, the entry is the proposal of this number, and its requests are answered.
    /// `observe` receives the effects of each shard. After an error the replica must not be used any more.
    pub fn apply(
        &mut self,
        index: u64,
        own: Option<u64>,
        records: &[(ShardId, Bytes)],
        mut observe: impl FnMut(ShardId, &[Effect]),
    ) -> Result<(), OpenError> {
        let mut mine = own.and_then(|number| self.take_proposed(number));
        for (number, record) in records {
            let Some(it) = self.shards.get_mut(usize::from(*number)) else {
                return Err(OpenError::UnknownShard { index, shard: *number });
            };
            if let Ok((at, _)) = codec::open_record(record) {
                self.latest = self.latest.max(at.now);
            }
            let requests = mine.as_mut().and_then(|mine| mine.take(*number));
            let index = FrameIndex(index);
            match (requests, &mine) {
                (Some(requests), Some(Proposed { at, .. })) => {
                    it.sweeping = false;
                    it.shard.apply_committed(index, *at, requests)?;
                }
                _ => it.shard.replay_committed(index, record)?,
            }
            let give_back = it.shard.group.release();
            if let Some(channels) = self.status.shards.get(usize::from(*number)) {
                channels.waiters.committed(&it.shard.group.effects);
            }
            observe(*number, &it.shard.group.effects);
            it.shard.group.clear();
            if !give_back.is_empty() {
                it.inbox.push_unbounded(give_back.into_iter());
            }
        }
        self.applied = index;
        self.note_digests();
        Ok(())
    }

    /// Notes that an entry without commands was applied, such as a change of the members.
    pub fn skip(&mut self, index: u64) {
        self.applied = index;
        self.note_digests();
    }

    fn note_digests(&mut self) {
        if self.digests.len() >= DIGESTS_KEPT {
            self.digests.pop_front();
        }
        let digests = self.current_digests();
        self.digests.push_back((self.applied, digests));
    }

    /// The write digests of all shards as of the last entry applied. 0 for a shard whose checkpoint includes later
    /// entries, which is possible for a while after a crash.
    pub fn current_digests(&self) -> Vec<u64> {
        let digest = |shard: &Shard| {
            let ahead = shard.data().read().store.position() > self.applied;
            shard.digest().filter(|_| !ahead).unwrap_or_default().0
        };
        self.each().map(digest).collect()
    }

    /// Compares the digests of an earlier entry with those of a leader. What is no longer known is not compared.
    pub fn compare(&self, index: u64, leader: &[u64]) -> Result<(), Diverged> {
        let Ok(at) = self.digests.binary_search_by_key(&index, |(index, _)| *index) else {
            return Ok(());
        };
        let own = self.digests.get(at).map_or(&[][..], |(_, digests)| digests);
        let differ = |(own, leader): (&u64, &u64)| *own != 0 && *leader != 0 && own != leader;
        match own.iter().zip(leader).position(differ) {
            None => Ok(()),
            Some(shard) => Err(Diverged { shard: ShardId(shard as u16), index }),
        }
    }

    /// Takes the proposal with this number, unless it was given up. Gives up older ones: they can no longer be committed, but
    /// `Unknown` is the cautious answer.
    fn take_proposed(&mut self, number: u64) -> Option<Proposed> {
        while self.proposed.front().is_some_and(|first| first.number < number) {
            if let Some(overtaken) = self.proposed.pop_front() {
                self.give_up(overtaken, &EngineError::Unknown);
            }
        }
        let is_first = self.proposed.front().is_some_and(|first| first.number == number);
        if is_first { self.proposed.pop_front() } else { None }
    }

    fn give_up(&mut self, proposed: Proposed, error: &EngineError) {
        for (shard, requests) in proposed.requests {
            if let Some(it) = self.shards.get_mut(usize::from(shard)) {
                it.sweeping = false;
            }
            requests.into_iter().for_each(|request| request.refuse(error.clone()));
        }
    }

    /// A proposal ends with an error: `NoLeader` if none of it was or will be applied, `Unknown` if it was handed over and
    /// may still be committed, or the reason why it was not handed over.
    pub fn end_proposal(&mut self, number: u64, error: &EngineError) {
        if let Ok(at) = self.proposed.binary_search_by_key(&number, |it| it.number)
            && let Some(proposed) = self.proposed.remove(at)
        {
            self.give_up(proposed, error);
        }
    }

    /// A3: this node no longer leads. Whether its proposals will be committed is unknown, and everything else has to be
    /// asked elsewhere.
    pub fn step_down(&mut self) {
        for proposed in std::mem::take(&mut self.proposed) {
            self.give_up(proposed, &EngineError::Unknown);
        }
        self.refuse(&EngineError::NoLeader);
    }

    /// This node stops: nothing will be applied any more.
    pub fn stop(&mut self, error: &EngineError) {
        // After a failure the outcome is unknown as well, but the error says more than `Unknown`.
        let lost = match error {
            EngineError::Failed(_) => error,
            _ => &EngineError::Unknown,
        };
        for proposed in std::mem::take(&mut self.proposed) {
            self.give_up(proposed, lost);
        }
        self.refuse(error);
        self.status.close(error);
        for wait in self.take_checkpoint_waits() {
            // A caller that is gone does not need to know.
            let _ = wait.send(Err(error.clone()));
        }
    }

    /// Sends an error to everything that waits and was not proposed.
    pub fn refuse(&mut self, error: &EngineError) {
        for it in &mut self.shards {
            let arrived = it.inbox.take_now(usize::MAX, usize::MAX, true);
            arrived.into_iter().for_each(|request| request.refuse(error.clone()));
            it.shard.refuse_waiting(error);
            it.shard.group.fail(error);
        }
        for (reply, _) in self.unconfirmed.drain(..) {
            // A client that is gone does not need to know.
            let _ = reply.send(Err(error.clone()));
        }
    }
}

impl Proposed {
    fn take(&mut self, shard: ShardId) -> Option<Vec<Request>> {
        let at = self.requests.iter().position(|(number, _)| *number == shard)?;
        Some(self.requests.swap_remove(at).1)
    }
}
