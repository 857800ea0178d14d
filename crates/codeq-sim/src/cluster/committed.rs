//! What the cluster has committed, read from the nodes' logs, and the reference that applies it.
//!
//! An entry counts as committed once some node has applied it. From then on every node must have the same entry at that
//! index, and its rows after that entry must have the reference's digest.

use std::collections::{BTreeMap, BTreeSet};

use codeq_core::State;
use codeq_core::codec::{push_command, read_record};
use codeq_core::command::{Claim, Command, Millis, Selector};
use codeq_core::digest::WriteDigest;
use codeq_core::id::{ShardId, fnv1a64};
use codeq_core::kv::KvError;
use codeq_core::moment::Moment;
use codeq_core::names::queue_name;
use codeq_core::reply::Reply;
use codeq_engine::shard::Shard;
use codeq_raft::types::{Entry, LogId, NodeId, Proposal};
use codeq_store::MemStore;
use openraft::EntryPayload;

use super::rules::Leader;
use super::transitions;
use crate::invariants::{Violation, replicas_equal};
use crate::rng::mix;

/// The voters; while they are being changed, both the old and the new ones.
pub type Members = Vec<BTreeSet<NodeId>>;

/// A command that was committed, and what the reference answered.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its shard.
    pub shard: ShardId,
    /// When it was applied.
    pub at: Moment,
    /// The answer.
    pub reply: Reply,
}

/// Identifies a process: its node, and the incarnation that it drew at its start.
pub type ProcessId = (NodeId, u64);

/// Identifies a command that a process was asked to propose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandKey {
    /// The process.
    pub process: ProcessId,
    /// The shard.
    pub shard: ShardId,
    /// A hash of the command's bytes; see [`hash`].
    pub command: u64,
}

/// The reference.
pub struct Committed {
    shards: Vec<(State, MemStore, WriteDigest)>,
    applied: u64,
    ids: BTreeMap<u64, (LogId, u64)>,
    digests: BTreeMap<u64, Vec<u64>>,
    /// By index, proposer and command. Several commands of an entry can be the same.
    outcomes: BTreeMap<(u64, ProcessId, u64), Vec<Outcome>>,
    /// The commands of the last entry that clients must have asked for.
    executed: Vec<CommandKey>,
    /// The last change of the members.
    members: Option<(LogId, Members)>,
    /// The transitions of tasks, by shard and number: the entry of each, and a hash of its content.
    transitions: BTreeMap<(ShardId, u64), (u64, u64)>,
    /// The latest moment of an entry.
    pub latest: Moment,
    /// Commands so far.
    pub commands: u64,
    proposal: Option<Proposal>,
    stamp: Option<(Leader, Millis)>,
    proposer: Option<(ProcessId, u64)>,
}

/// Identifies a command by its bytes.
pub fn hash(command: &Command) -> u64 {
    let mut bytes = Vec::new();
    push_command(command, &mut bytes);
    fnv1a64(&bytes)
}

impl Committed {
    /// Empty shards, as of an index.
    pub fn new(shards: u16, applied: u64) -> Result<Committed, KvError> {
        let empty = |shard| -> Result<_, KvError> {
            let store = MemStore::new();
            Ok((State::load(&store, shard, shards)?, store, WriteDigest::default()))
        };
        Ok(Committed {
            shards: ShardId::all(shards).map(empty).collect::<Result<_, _>>()?,
            applied,
            ids: BTreeMap::new(),
            digests: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            executed: Vec::new(),
            members: None,
            transitions: BTreeMap::new(),
            latest: Moment::default(),
            commands: 0,
            proposal: None,
            stamp: None,
            proposer: None,
        })
    }

    /// Index of the last entry that the reference has applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The identity of an entry.
    pub fn log_id(&self, index: u64) -> Option<LogId> {
        self.ids.get(&index).map(|(id, _)| *id)
    }

    /// Who stamped the last entry with commands, and with what engine time.
    pub fn last_stamp(&self) -> Option<(Leader, Millis)> {
        self.stamp
    }

    /// The process that proposed the last entry with commands, and its index.
    pub fn last_proposer(&self) -> Option<(ProcessId, u64)> {
        self.proposer
    }

    /// The digests of all shards after an entry.
    pub fn digests(&self, index: u64) -> Option<&[u64]> {
        self.digests.get(&index).map(Vec::as_slice)
    }

    /// Notes an entry that a node has applied.
    pub fn note(&mut self, node: NodeId, entry: &Entry) -> Result<Option<Violation>, KvError> {
        let index = entry.log_id.index;
        let content = content(entry);
        if let Some((id, known)) = self.ids.get(&index) {
            if (*id, *known) == (entry.log_id, content) {
                return Ok(None);
            }
            let text = format!(
                "node {node} applied {} at index {index}, another node {id}: the entries differ",
                entry.log_id
            );
            return Ok(Some(Violation::new(14, text)));
        }
        if index != self.applied + 1 {
            // Another node has the entries in between, and they are read from it first.
            return Ok(None);
        }
        self.ids.insert(index, (entry.log_id, content));
        self.applied = index;
        let found = self.apply(entry)?;
        let digests = self.shards.iter().map(|(_, _, digest)| digest.0).collect();
        self.digests.insert(index, digests);
        Ok(found)
    }

    fn apply(&mut self, entry: &Entry) -> Result<Option<Violation>, KvError> {
        self.executed.clear();
        let proposal = match &entry.payload {
            EntryPayload::Blank => return Ok(None),
            EntryPayload::Membership(members) => {
                self.members = Some((entry.log_id, members.get_joint_config().clone()));
                return Ok(None);
            }
            EntryPayload::Normal(proposal) => proposal,
        };
        let (origin, leader) = (proposal.origin, entry.log_id.leader_id);
        if (leader.term, leader.node_id) != (origin.term, origin.node) {
            // Proposed in an earlier term: nobody applies it.
            return Ok(None);
        }
        self.proposal = Some(proposal.clone());
        self.proposer = Some(((origin.node, origin.incarnation), entry.log_id.index));
        let mut found = None;
        for (shard, record) in &proposal.records {
            let Some((state, store, digest)) = self.shards.get_mut(usize::from(*shard)) else {
                continue;
            };
            let decoded = read_record(record);
            let (at, commands) = decoded.map_err(|error| KvError::Read(error.to_string()))?;
            if at.now < self.latest.now {
                let text = format!(
                    "entry {} has engine time {}, an earlier one {}",
                    entry.log_id, at.now, self.latest.now
                );
                found = Some(Violation::new(8, text));
            }
            self.latest = at;
            self.stamp = Some(((origin.term, origin.node), at.now));
            for command in &commands {
                let mut tables = digest.over(store);
                let mut effects = Vec::new();
                let applied = state.apply(&mut tables, at, command, &mut effects)?;
                self.commands += 1;
                let (index, shard) = (entry.log_id.index, *shard);
                let moved = transitions::of(&effects)
                    .map(|(number, hash)| ((shard, number), (index, hash)));
                self.transitions.extend(moved);
                let (process, bytes) = ((origin.node, origin.incarnation), hash(command));
                if !is_own_work(command) {
                    self.executed.push(CommandKey { process, shard, command: bytes });
                }
                let outcome = Outcome { shard, at, reply: applied.reply };
                self.outcomes.entry((index, process, bytes)).or_default().push(outcome);
            }
        }
        Ok(found)
    }

    /// The commands of the last entry, except for those that a leader proposes by itself.
    pub fn executed(&self) -> &[CommandKey] {
        &self.executed
    }

    /// The last change of the members, unless there was none yet.
    pub fn members(&self) -> Option<&(LogId, Members)> {
        self.members.as_ref()
    }

    /// The entry of a transition, and a hash of its content.
    pub fn transition(&self, shard: ShardId, number: u64) -> Option<(u64, u64)> {
        self.transitions.get(&(shard, number)).copied()
    }

    /// Takes the outcome of a command that a process answered with `reply` while it applied the entry at `index`. If the
    /// reference gave no such answer in that entry, returns the answers that it gave.
    pub fn take(
        &mut self,
        index: u64,
        process: ProcessId,
        command: &Command,
        reply: &Reply,
    ) -> Result<Outcome, Vec<Reply>> {
        let Some(outcomes) = self.outcomes.get_mut(&(index, process, hash(command))) else {
            return Err(Vec::new());
        };
        match outcomes.iter().position(|outcome| outcome.reply == *reply) {
            Some(at) => Ok(outcomes.remove(at)),
            None => Err(outcomes.iter().map(|outcome| outcome.reply.clone()).collect()),
        }
    }

    /// A copy of the last proposal that took effect. It still names the term of its proposer, so after an election it is a
    /// proposal from an earlier term, which nobody may apply.
    pub fn stale_proposal(&self) -> Option<Proposal> {
        let mut again = self.proposal.clone()?;
        // No node has this incarnation, so nobody answers it.
        again.origin.incarnation = 0;
        again.digests = None;
        Some(again)
    }

    /// Whether a claim would find something in a shard.
    pub fn has_claimable(&self, shard: ShardId, claim: &Claim) -> bool {
        let Some((state, ..)) = self.shards.get(usize::from(shard)) else { return false };
        let claimable = |name: &str| {
            let queue = state.queue_id(&claim.tenant, &queue_name(name));
            queue.is_some_and(|queue| state.is_claimable(queue))
        };
        match &claim.from {
            Selector::Any => state.has_claimable(&claim.tenant),
            Selector::Commands(names) => names.iter().any(|name| claimable(name)),
        }
    }

    /// Compares the rows of a node with the reference. It must have applied exactly as much.
    pub fn compare<'a>(
        &self,
        what: &str,
        shards: impl Iterator<Item = &'a Shard>,
    ) -> Result<Vec<Violation>, KvError> {
        let references = self.shards.iter().map(|(state, store, _)| (state, store));
        replicas_equal::check_shards(what, shards, references)
    }
}

/// Whether leaders propose this command by themselves: a sweep, or the return of a task whose client is gone.
fn is_own_work(command: &Command) -> bool {
    match command {
        Command::Sweep(_) => true,
        Command::Abandon(abandon) => !abandon.penalty && abandon.fence.is_some(),
        _ => false,
    }
}

/// A hash of an entry's content.
fn content(entry: &Entry) -> u64 {
    match &entry.payload {
        EntryPayload::Blank => 1,
        EntryPayload::Membership(members) => fnv1a64(format!("{members:?}").as_bytes()),
        EntryPayload::Normal(proposal) => {
            let origin = proposal.origin;
            let records = proposal.records.iter();
            let parts = records.flat_map(|(shard, record)| [u64::from(shard.0), fnv1a64(record)]);
            let head = [origin.term, origin.node, origin.incarnation, origin.number];
            mix(&head.into_iter().chain(parts).collect::<Vec<_>>())
        }
    }
}
