//! All shards of one node of a cluster, between the requests that arrive and the entries that the cluster commits.
//!
//! ```text
//! requests ─> gather ─> one entry for all shards ─> the cluster commits it ─> apply ─> answers, effects
//! ```
//!
//! Starts no thread and reads no clock. It knows nothing of elections: whoever drives it says which entries are
//! committed, which of them are its own, and when it no longer leads.

use std::collections::VecDeque;

use bytes::Bytes;
use codeq_core::codec;
use codeq_core::command::{Command, Millis, Sweep};
use codeq_core::effect::Effect;
use codeq_core::id::{ShardId, split_mix64};
use codeq_core::limits::SWEEP_MAX;
use codeq_core::moment::Moment;
use codeq_core::reply::Reply;
use codeq_log::FrameIndex;

use crate::boundary::Answer;
use crate::error::{EngineError, OpenError};
use crate::options::{GROUP_BYTES_MAX, GROUP_MAX, INBOX_MAX};
use crate::request::{ReplyTo, Request};
use crate::shard::Shard;

/// Number of entries whose digests are kept, to be compared with those of a leader. A leader's are at most as old as
/// the entries that it has in flight.
const DIGESTS_KEPT: usize = 1_024;

/// The shards of a node.
pub struct Replica {
    shards: Vec<ReplicaShard>,
    /// Proposed and neither applied nor given up yet, oldest first.
    proposed: VecDeque<Proposed>,
    /// The number of the next proposal.
    next: u64,
    /// Index of the last entry applied.
    applied: u64,
    /// The latest engine time of an entry. Shards do not note the time of a command that changed nothing, but its client
    /// was told what was true then.
    latest: Millis,
    /// The digests of all shards after each of the last entries, oldest first.
    digests: VecDeque<(u64, Vec<u64>)>,
    /// Answers from committed rows that are right only if this node still leads; see [`Replica::take_unconfirmed`].
    unconfirmed: Vec<(ReplyTo, Answer)>,
}

struct ReplicaShard {
    shard: Shard,
    arrived: VecDeque<Request>,
    /// A sweep is proposed and not applied yet.
    sweeping: bool,
}

struct Proposed {
    number: u64,
    at: Moment,
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
    /// Starts from recovered shards. `applied` is the index of the last entry that all of them include.
    pub fn new(shards: Vec<Shard>, applied: u64) -> Replica {
        let shards = shards.into_iter().map(|mut shard| {
            shard.keep_digest();
            ReplicaShard { shard, arrived: VecDeque::new(), sweeping: false }
        });
        Replica {
            shards: shards.collect(),
            proposed: VecDeque::new(),
            next: 1,
            applied,
            latest: 0,
            digests: VecDeque::new(),
            unconfirmed: Vec::new(),
        }
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

    /// Replaces the shards by others, whose rows have arrived from another node.
    pub fn replace(&mut self, shards: Vec<Shard>, applied: u64) {
        self.step_down();
        let (next, latest) = (self.next, self.latest);
        *self = Replica { next, latest, ..Replica::new(shards, applied) };
    }

    /// Adds a request to be gathered.
    pub fn push(&mut self, shard: ShardId, request: Request) {
        match self.shards.get_mut(usize::from(shard)) {
            Some(it) if it.arrived.len() >= INBOX_MAX => request.refuse(EngineError::Overloaded),
            Some(it) => it.arrived.push_back(request),
            None => request.refuse(EngineError::Closed),
        }
    }

    /// The number of the oldest proposal in flight.
    pub fn first_in_flight(&self) -> Option<u64> {
        self.proposed.front().map(|first| first.number)
    }

    /// Number of proposals in flight.
    pub fn in_flight(&self) -> usize {
        self.proposed.len()
    }

    /// Time until there is something to propose, unless the wall clock is set meanwhile.
    pub fn wait(&self, at: Moment) -> Option<Millis> {
        let wait = |it: &ReplicaShard| {
            if !it.arrived.is_empty() || it.shard.has_unserved() {
                return Some(0);
            }
            // The sweep in flight does what is due.
            it.shard.wait(at).filter(|wait| !(it.sweeping && *wait == 0))
        };
        self.shards.iter().filter_map(wait).min()
    }

    /// Gathers what has arrived, claims that can be served, and what is due, as one entry. `None` if there is nothing
    /// to propose. The work is bounded: repeat it as long as there is something.
    pub fn gather(&mut self, at: Moment, seed: u64) -> Option<Gathered> {
        let (mut records, mut requests) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        for it in &mut self.shards {
            let expired = it.shard.take_expired(at).into_iter();
            self.unconfirmed.extend(expired.map(|reply| (reply, Ok(Reply::Claimed(Vec::new())))));
            let mut taken = it.shard.take_servable(at);
            bytes += taken.iter().map(Request::bytes).sum::<usize>();
            while taken.len() < GROUP_MAX
                && let Some(first) = it.arrived.front()
                && (bytes == 0 || bytes + first.bytes() <= GROUP_BYTES_MAX)
                && let Some(request) = it.arrived.pop_front()
            {
                match &request.command {
                    Command::Claim(claim) if !it.shard.might_find(at, claim) => {
                        if request.wait > 0 {
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
                codec::begin_group(at, &mut record);
                taken.iter().for_each(|request| codec::push_command(&request.command, &mut record));
                records.push((it.shard.number, Bytes::from(record)));
                requests.push((it.shard.number, taken));
            }
            // Claims that were refused or let wait have left answers.
            self.unconfirmed.extend(it.shard.group.take_answers());
        }
        if records.is_empty() {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.proposed.push_back(Proposed { number, at, requests });
        Some(Gathered { number, records })
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
                let reason = format!("entry {index} names shard {number}, which it does not have");
                return Err(OpenError::Foreign { dir: Default::default(), reason });
            };
            if let Ok((at, _)) = codec::open_group(record) {
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
            let unheard = it.shard.group.release();
            it.arrived.extend(unheard);
            observe(*number, &it.shard.group.effects);
            it.shard.group.clear();
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

    /// The proposal with this number, unless it was given up. Older ones can no longer be committed.
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

    /// The cluster did not take a proposal: nothing of it was done, nor will be.
    pub fn not_taken(&mut self, number: u64) {
        self.end_proposal(number, &EngineError::NoLeader);
    }

    /// A proposal was handed over, but it is not known whether it will be committed.
    pub fn lost(&mut self, number: u64) {
        self.end_proposal(number, &EngineError::Unknown);
    }

    fn end_proposal(&mut self, number: u64, error: &EngineError) {
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
        for proposed in std::mem::take(&mut self.proposed) {
            self.give_up(proposed, &EngineError::Unknown);
        }
        self.refuse(error);
    }

    /// Answers everything that waits and was not proposed.
    pub fn refuse(&mut self, error: &EngineError) {
        for it in &mut self.shards {
            it.arrived.drain(..).for_each(|request| request.refuse(error.clone()));
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
