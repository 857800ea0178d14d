//! openraft's network over a [`Transport`](crate::transport::Transport).

use std::sync::Arc;

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
    /// Sends a message as a leader, unless this node is mute. Errors are never `Unreachable`: openraft would wait in an
    /// unbiased `select!`, and a simulation would not repeat. The transport takes its time to fail instead.
    async fn send(&self, request: Request, option: &RPCOption) -> Result<Response, NetworkError> {
        let limit = option.hard_ttl();
        let mute = !self.node.gates.may_lead() && !self.node.core.has(Fault::NeverMute);
        if mute && !matches!(request, Request::Vote(_)) {
            runtime::sleep(limit).await;
            return Err(network("a leader without a majority is mute"));
        }
        let sent = self.node.transport.send(self.target, request, limit).await;
        sent.map_err(|error| NetworkError::new(&error))
    }
}

fn network(text: &str) -> NetworkError {
    NetworkError::new(&AnyError::error(text))
}

/// The other node answered something else, or could not do it.
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
