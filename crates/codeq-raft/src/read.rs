//! Reads that are never older than what was acknowledged before they began.
//!
//! A leader that a majority has just confirmed says up to which entry everything is committed: the read index. Once the
//! rows of a node include that entry, they include everything that anybody was told before. A lease in place of the
//! majority would be quicker, but right only as long as no clock is wrong.

use std::time::Duration;

use codeq_engine::EngineError;
use openraft::Raft;
use tokio::sync::oneshot;

use crate::node::Node;
use crate::runtime;
use crate::shared::Shared;
use crate::transport::{Request, Response};
use crate::types::Types;

/// How long a read waits for a leader. An election takes one or two seconds.
const READ_WITHIN: Duration = Duration::from_secs(5);

impl Node {
    /// Waits until the rows of this node include everything that was acknowledged, by any node, before this call.
    /// Returns the index that they include. Without a leader it fails after a few seconds.
    pub async fn read_index(&self) -> Result<u64, EngineError> {
        let reading = async {
            loop {
                if let Some(index) = self.confirmed_index().await {
                    self.shared.storage.applied.reached(index).await;
                    return Ok(index);
                }
                if self.raft.metrics().borrow().running_state.is_err() {
                    return Err(self.shared.storage.status.error());
                }
                runtime::sleep(self.shared.timing.heartbeat).await;
            }
        };
        runtime::timeout(READ_WITHIN, reading).await.unwrap_or(Err(EngineError::NoLeader))
    }

    /// The answer to another node that needs a read index. A leader that is not ready may not know yet what its
    /// predecessors have committed.
    pub(crate) async fn answer_read_index(&self) -> Response {
        let index = match self.is_ready() {
            true => self.confirmed_index().await,
            false => None,
        };
        index.map_or_else(|| Response::Failed("not a leader".to_owned()), Response::ReadIndex)
    }

    /// A read index of a round that begins after this call.
    async fn confirmed_index(&self) -> Option<u64> {
        let (sender, index) = oneshot::channel();
        {
            let mut rounds = self.shared.reads.0.lock();
            rounds.waiting.push(sender);
            if !std::mem::replace(&mut rounds.running, true) {
                runtime::spawn(run(self.clone()));
            }
        }
        index.await.ok().flatten()
    }
}

/// Runs rounds until nobody waits for one.
async fn run(node: Node) {
    loop {
        let waiting = {
            let mut rounds = node.shared.reads.0.lock();
            rounds.running = !rounds.waiting.is_empty();
            std::mem::take(&mut rounds.waiting)
        };
        if waiting.is_empty() {
            return;
        }
        let index = node.shared.ask_leader(&node).await;
        for read in waiting {
            // The read may have timed out.
            let _ = read.send(index);
        }
    }
}

impl Shared {
    /// One round: the leader asks a majority, and any other node asks the leader.
    async fn ask_leader(&self, node: &Node) -> Option<u64> {
        let leader = node.raft.metrics().borrow().current_leader?;
        let limit = self.timing.lease();
        if leader != self.storage.id {
            let sent = self.transport.send(leader, Request::ReadIndex, limit).await;
            return match sent {
                Ok(Response::ReadIndex(index)) => Some(index),
                _ => None,
            };
        }
        match node.is_ready() {
            true => runtime::timeout(limit, committed_index(&node.raft)).await.ok().flatten(),
            false => None,
        }
    }
}

/// Up to where everything is committed, if a majority confirms that this node leads.
async fn committed_index(raft: &Raft<Types>) -> Option<u64> {
    let (index, _) = raft.get_read_log_id().await.ok()?;
    index.map(|id| id.index)
}
