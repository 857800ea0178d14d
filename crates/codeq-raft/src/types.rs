//! The types that openraft is instantiated with.

use std::fmt;

use bytes::Bytes;
use codeq_core::id::ShardId;

use crate::runtime::Runtime;
use crate::snapshot::SnapshotRows;

/// Identifies a node; drawn at random with its directory.
pub type NodeId = u64;

/// What the members of a cluster know of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Member {
    /// Where the other nodes reach it.
    pub address: String,
}

openraft::declare_raft_types!(
    /// openraft's type parameters.
    pub Types:
        D = Proposal,
        R = (),
        NodeId = NodeId,
        Node = Member,
        Entry = openraft::Entry<Types>,
        SnapshotData = SnapshotRows,
        AsyncRuntime = Runtime,
);

/// Names a log entry: the leader that wrote it, and its index.
pub type LogId = openraft::LogId<NodeId>;
/// A vote, or the leader that a majority has voted for.
pub type Vote = openraft::Vote<NodeId>;
/// An entry of the replicated log.
pub type Entry = openraft::Entry<Types>;
/// The members of the cluster as of some entry.
pub type StoredMembership = openraft::StoredMembership<NodeId, Member>;
/// An error of the log or the stores, in openraft's type.
pub type StorageError = openraft::StorageError<NodeId>;

/// What a leader proposes in one entry: the commands that all shards have gathered since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Who proposed it.
    pub origin: Origin,
    /// Records of commands with their moment, as in the log of a single node; at most one per shard.
    pub records: Vec<(ShardId, Bytes)>,
    /// The proposer's digests of an earlier entry, for the other replicas to compare.
    pub digests: Option<Digests>,
}

/// Identifies a proposal. One term can have several leaders, so the term alone is not enough. A node that restarts
/// counts its proposals from 1 again: the incarnation tells them apart from those before the restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The term in which it was proposed.
    pub term: u64,
    /// The node that proposed it.
    pub node: NodeId,
    /// A number drawn at each start of that node.
    pub incarnation: u64,
    /// The number of the proposal, counted by that node.
    pub number: u64,
}

/// The write digests of all shards after an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// The index of the entry.
    pub index: u64,
    /// The digests, by shard.
    pub by_shard: Vec<u64>,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin { term, node, number, .. } = self.origin;
        write!(f, "proposal {number} of node {node} in term {term}")
    }
}
