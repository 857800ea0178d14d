//! What the cluster has committed, read from the nodes' logs, and the reference that applies it.
//!
//! An entry counts as committed once some node has applied it. From then on every node must have the same entry at that
//! index, and its rows after that entry must have the reference's digest.

use std::collections::BTreeMap;

use codeq_core::State;
use codeq_core::codec::{push_command, read_group};
use codeq_core::command::{Claim, Command, Selector};
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

use crate::invariants::{Violation, replicas_equal};
use crate::rng::mix;

/// A command that was committed, and what the reference answered.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The index of its entry.
    pub index: u64,
    /// Its shard.
    pub shard: ShardId,
    /// When it was applied.
    pub at: Moment,
    /// The answer.
    pub reply: Reply,
}

/// Names a process of a node: its number, and what it drew at its start.
pub type ProcessId = (NodeId, u64);

/// The reference.
pub struct Committed {
    shards: Vec<(State, MemStore, WriteDigest)>,
    applied: u64,
    ids: BTreeMap<u64, (LogId, u64)>,
    digests: BTreeMap<u64, Vec<u64>>,
    /// By proposer and command. Several commands can be the same.
    outcomes: BTreeMap<(ProcessId, u64), Vec<Outcome>>,
    /// The latest moment of an entry.
    pub latest: Moment,
    /// Commands so far.
    pub commands: u64,
    proposal: Option<Proposal>,
}

/// Identifies a command by its bytes.
fn hash(command: &Command) -> u64 {
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
            latest: Moment::default(),
            commands: 0,
            proposal: None,
        })
    }

    /// The last entry.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The identity of an entry.
    pub fn log_id(&self, index: u64) -> Option<LogId> {
        self.ids.get(&index).map(|(id, _)| *id)
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
            // Some node has the entries between; it will be asked for them first.
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
        let EntryPayload::Normal(proposal) = &entry.payload else { return Ok(None) };
        let (origin, leader) = (proposal.origin, entry.log_id.leader_id);
        if (leader.term, leader.node_id) != (origin.term, origin.node) {
            // Proposed in an earlier term: nobody applies it.
            return Ok(None);
        }
        self.proposal = Some(proposal.clone());
        let mut found = None;
        for (shard, record) in &proposal.records {
            let Some((state, store, digest)) = self.shards.get_mut(usize::from(*shard)) else {
                continue;
            };
            let decoded = read_group(record);
            let (at, commands) = decoded.map_err(|error| KvError::Read(error.to_string()))?;
            if at.now < self.latest.now {
                let text = format!(
                    "entry {} has engine time {}, an earlier one {}",
                    entry.log_id, at.now, self.latest.now
                );
                found = Some(Violation::new(8, text));
            }
            self.latest = at;
            for command in &commands {
                let mut tables = digest.over(store);
                let applied = state.apply(&mut tables, at, command, &mut Vec::new())?;
                self.commands += 1;
                let (index, shard) = (entry.log_id.index, *shard);
                let outcome = Outcome { index, shard, at, reply: applied.reply };
                let key = ((origin.node, origin.incarnation), hash(command));
                self.outcomes.entry(key).or_default().push(outcome);
            }
        }
        Ok(found)
    }

    /// Takes the outcome of a command that some process was asked for and answered like this. If there is none with
    /// this answer, returns those that there are.
    pub fn take(
        &mut self,
        process: ProcessId,
        command: &Command,
        reply: &Reply,
    ) -> Result<Outcome, Vec<Outcome>> {
        let Some(outcomes) = self.outcomes.get_mut(&(process, hash(command))) else {
            return Err(Vec::new());
        };
        match outcomes.iter().position(|outcome| outcome.reply == *reply) {
            Some(at) => Ok(outcomes.remove(at)),
            None => Err(outcomes.clone()),
        }
    }

    /// A proposal that was committed in its term, as if it had been proposed again in the same term.
    pub fn a_proposal(&self) -> Option<Proposal> {
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
        let mut found = Vec::new();
        for (shard, (state, store, _)) in shards.zip(&self.shards) {
            let data = shard.data().read();
            let what = format!("{what}, shard {}", shard.number);
            found.extend(replicas_equal::check(&what, (&data.state, &data.store), (state, store))?);
        }
        Ok(found)
    }
}

/// A hash of what an entry says.
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
