//! The messages between nodes. A [`Transport`] carries them; so far only the simulator has one.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use codeq_core::command::Millis;
use codeq_core::id::ShardId;
use openraft::SnapshotMeta;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};

use crate::types::{Member, NodeId, Types, Vote};

/// A message that expects a [`Response`].
#[derive(Debug, Clone)]
pub enum Request {
    /// Entries, or a heartbeat, from a leader.
    Append {
        /// openraft's part.
        rpc: AppendEntriesRequest<Types>,
        /// The leader's engine time, if it is ready; see `time`.
        moment: Option<Millis>,
    },
    /// A candidate asks for a vote.
    Vote(VoteRequest<NodeId>),
    /// Asks whether the node is up, and when it last heard from a leader.
    Ping,
    /// Asks what the node has noted of the time; sent by a new leader.
    Time,
    /// Asks up to which entry everything is committed. Only a leader that a majority confirms may answer.
    ReadIndex,
    /// A leader wants to send the rows of all shards.
    SnapshotBegin {
        /// The leader.
        vote: Vote,
        /// Which entries and members the rows include.
        meta: SnapshotMeta<NodeId, Member>,
    },
    /// Some of the rows.
    SnapshotChunk {
        /// The transfer, as in the response to [`Request::SnapshotBegin`].
        transfer: u64,
        /// Their shard.
        shard: ShardId,
        /// A chunk of the store's stream.
        chunk: Bytes,
    },
    /// All rows were sent: install them.
    SnapshotEnd {
        /// The transfer.
        transfer: u64,
    },
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub enum Response {
    /// To [`Request::Append`].
    Append(AppendEntriesResponse<NodeId>),
    /// To [`Request::Vote`].
    Vote(VoteResponse<NodeId>),
    /// To [`Request::Ping`].
    Pong {
        /// How long ago the node last heard from a leader; zero while it leads with a majority; `None` if never.
        leader_heard: Option<Duration>,
    },
    /// To [`Request::Time`].
    Time {
        /// What the node noted of a leader's time.
        noted: Option<TimeNote>,
        /// Its wall clock.
        wall: Millis,
    },
    /// To [`Request::ReadIndex`]: the index of that entry, or of a later one.
    ReadIndex(u64),
    /// To [`Request::SnapshotBegin`]: the number of the transfer.
    Transfer(u64),
    /// To [`Request::SnapshotChunk`].
    Received,
    /// To [`Request::SnapshotEnd`].
    Installed(SnapshotResponse<NodeId>),
    /// The node could not do it.
    Failed(String),
}

/// A leader, as votes name it; of two leaders, the greater one was elected later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leader {
    /// Its term.
    pub term: u64,
    /// The node.
    pub node: NodeId,
}

/// A leader's engine time that a node has noted, and how long ago by the node's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeNote {
    /// Whose time it is.
    pub leader: Leader,
    /// The engine time of the leader when it sent the message.
    pub moment: Millis,
    /// Milliseconds since then, by the clock of the node that noted it.
    pub elapsed: Millis,
}

/// A message or its answer was lost, or the other node is down. It may have received the message all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the node cannot be reached")]
pub struct Unreachable;

/// The future answer to a message.
pub type Sending = Pin<Box<dyn Future<Output = Result<Response, Unreachable>> + Send>>;

/// Carries messages between nodes.
pub trait Transport: Send + Sync + 'static {
    /// Sends a message and waits for its answer, for at most `limit`.
    fn send(&self, to: NodeId, request: Request, limit: Duration) -> Sending;
}
