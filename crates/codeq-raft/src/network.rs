//! openraft's network over a [`Transport`](crate::transport::Transport).

use std::sync::Arc;
use std::time::Duration;

use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend, Snapshot};

use crate::fault::Fault;
use crate::runtime;
use crate::shared::Shared;
use crate::transport::{Request, Response};
use crate::types::{Member, NodeId, Types, Vote};

type RpcError = RPCError<NodeId, Member, RaftError<NodeId>>;

/// Makes connections to other nodes.
pub(crate) struct Network(pub Arc<Shared>);

/// The connection to one node.
pub(crate) struct Peer {
    node: Arc<Shared>,
    target: NodeId,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, _: &Member) -> Peer {
        Peer { node: Arc::clone(&self.0), target }
    }
}

impl Peer {
    /// Sends a message. A leader without a majority sends nothing but votes. Errors are never `Unreachable`, because
    /// openraft would then wait in an unbiased `select!` and a simulation would not repeat; see [`runtime`].
    async fn send(&self, request: Request, option: &RPCOption) -> Result<Response, NetworkError> {
        let limit = option.hard_ttl();
        let silent = !self.node.gates.may_lead() && !self.node.storage.has(Fault::NeverMute);
        if silent && !matches!(request, Request::Vote(_)) {
            runtime::sleep(pause(limit, self.node.timing.lease())).await;
            return Err(network("a leader without a majority is silent"));
        }
        let sent = self.node.transport.send(self.target, request, limit).await;
        sent.map_err(|error| NetworkError::new(&error))
    }
}

/// How long a silent leader waits before a message fails. Rows may take minutes to send, so their limit is long: a leader
/// that reaches a majority again must not wait that long before it retries.
fn pause(limit: Duration, lease: Duration) -> Duration {
    limit.min(lease)
}

fn network(text: &str) -> NetworkError {
    NetworkError::new(&AnyError::error(text))
}

/// The error for an answer of the wrong kind, or for a failure of the other node.
fn unexpected(response: Response) -> NetworkError {
    match response {
        Response::Failed(text) => network(&text),
        _ => network("the answer does not fit the question"),
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, RpcError> {
        let moment = self.node.time.moment().map(|moment| moment.now);
        match self.send(Request::Append { rpc, moment }, &option).await? {
            Response::Append(response) => Ok(response),
            other => Err(unexpected(other).into()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<NodeId>,
        option: RPCOption,
    ) -> Result<VoteResponse<NodeId>, RpcError> {
        match self.send(Request::Vote(rpc), &option).await? {
            Response::Vote(response) => Ok(response),
            other => Err(unexpected(other).into()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        mut snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<NodeId>, StreamingError<Types, Fatal<NodeId>>> {
        let sending = async {
            let begin = Request::SnapshotBegin { vote, meta: snapshot.meta.clone() };
            let transfer = match self.send(begin, &option).await? {
                Response::Transfer(transfer) => transfer,
                other => return Err(unexpected(other).into()),
            };
            loop {
                let chunk = snapshot.snapshot.next_chunk();
                let chunk = chunk.map_err(|error| NetworkError::new(&error))?;
                let Some((shard, chunk)) = chunk else { break };
                let request = Request::SnapshotChunk { transfer, shard, chunk };
                match self.send(request, &option).await? {
                    Response::Received => {}
                    other => return Err(unexpected(other).into()),
                }
            }
            match self.send(Request::SnapshotEnd { transfer }, &option).await? {
                Response::Installed(response) => Ok(response),
                other => Err(unexpected(other).into()),
            }
        };
        tokio::select! {
            biased;
            closed = cancel => Err(closed.into()),
            sent = sending => sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Timing;

    #[test]
    fn a_silent_leader_soon_tries_again_to_send_rows() {
        let timing = Timing::default();
        assert!(timing.snapshot > timing.lease() * 10);
        assert_eq!(pause(timing.snapshot, timing.lease()), timing.lease());
        assert_eq!(pause(timing.heartbeat, timing.lease()), timing.heartbeat);
    }
}
