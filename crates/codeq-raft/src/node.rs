//! A node of a cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use codeq_core::id::ShardId;
use codeq_core::moment::Moment;
use codeq_disk::SharedDisk;
use codeq_engine::clock::Clock;
use codeq_engine::replica::Replica;
use codeq_engine::request::Request as EngineRequest;
use codeq_engine::{EngineError, Options};
use openraft::raft::AppendEntriesResponse;
use openraft::{EntryPayload, LeaderId, Raft, Snapshot};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::watch;

pub use crate::shared::Timing;
pub use crate::storage::StartError;

use crate::applied::AppliedIndex;
use crate::fault::Fault;
use crate::gates::Gates;
use crate::leader;
use crate::log_store::{LogStore, NewNode};
use crate::machine::Machine;
use crate::network::Network;
use crate::runtime;
use crate::shared::{Reads, Shared};
use crate::snapshot::{Rows, SnapshotRows};
use crate::storage::Storage;
use crate::time::Time;
use crate::transport::{Leader, Request, Response, Transport};
use crate::types::{Entry, LogId, Types};

/// Bytes of applied entries that stay in the log, for nodes that were away for a while: sending them is quicker than
/// sending all rows.
const LOG_KEEP_BYTES: u64 = 256 << 20;
/// How far the log may exceed that before a checkpoint is made to shorten it.
const LOG_EXCESS_BYTES: u64 = 64 << 20;

/// How long a node that stops waits for its proposals to be committed and answered.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// What a node starts with.
pub struct Setup {
    /// The disk that has its directory.
    pub disk: SharedDisk,
    /// Its directory.
    pub dir: PathBuf,
    /// Settings of its rows and its log.
    pub options: Options,
    /// Its clocks.
    pub clock: Arc<dyn Clock>,
    /// How it reaches the other nodes.
    pub transport: Arc<dyn Transport>,
    /// A random number, different at every start.
    pub incarnation: u64,
    /// Its timeouts.
    pub timing: Timing,
    /// A bug to plant.
    pub fault: Option<Fault>,
}

/// A node of a cluster. Dropping it does not stop it: use [`Node::shutdown`].
#[derive(Clone)]
pub struct Node {
    pub(crate) shared: Arc<Shared>,
    pub(crate) raft: Raft<Types>,
}

/// Creates the directory of a node that founds a new cluster or joins one.
pub fn create(
    disk: &SharedDisk,
    dir: &Path,
    options: &Options,
    new: NewNode,
) -> Result<(), StartError> {
    codeq_engine::recover::create_member(disk, dir, options, new.log_id, |_| {
        LogStore::create(disk, dir, options.log(), new).map(drop).map_err(StartError::from)
    })?;
    Ok(())
}

impl Node {
    /// Starts a node from its directory.
    pub async fn start(setup: Setup) -> Result<Node, StartError> {
        let Setup { disk, dir, options, clock, transport, incarnation, timing, fault } = setup;
        let storage = Storage::open(incarnation, (disk, &dir), options, fault)?;
        let id = storage.id;
        let shared = Arc::new(Shared {
            gates: Gates::new(id, timing.lease()),
            time: Time::new(clock),
            transport,
            timing,
            reads: Reads::default(),
            receiving: Mutex::default(),
            confirming: AtomicUsize::new(0),
            unconfirmed: Mutex::default(),
            ready: watch::Sender::new(false),
            storage,
        });
        shared.note_members(&shared.storage.rows.lock().membership);
        let config = timing.config().validate();
        let config = config.map_err(|error| StartError::Raft(error.to_string()))?;
        let network = Network(Arc::clone(&shared));
        let (log, machine) = (shared.storage.log.clone(), Machine(Arc::clone(&shared.storage)));
        let raft = Raft::new(id, Arc::new(config), network, log, machine).await;
        let raft = raft.map_err(|error| StartError::Raft(error.to_string()))?;
        runtime::spawn(leader::run(Arc::clone(&shared), raft.clone()));
        runtime::spawn(tick(Arc::clone(&shared), raft.clone()));
        Ok(Node { shared, raft })
    }

    /// openraft's handle: metrics, members, triggers.
    pub fn raft(&self) -> &Raft<Types> {
        &self.raft
    }

    /// The rows of this node.
    pub fn replica(&self) -> MappedMutexGuard<'_, Replica> {
        MutexGuard::map(self.shared.storage.rows.lock(), |rows| &mut rows.replica)
    }

    /// The last entry applied.
    pub fn applied(&self) -> Option<LogId> {
        self.shared.storage.rows.lock().applied
    }

    /// The last entry that the rows include. While an entry is being applied and answered, that is the one before it.
    pub fn progress(&self) -> Arc<AppliedIndex> {
        Arc::clone(&self.shared.storage.applied)
    }

    /// Whether rows of another node are being installed. Openraft already counts them as committed.
    pub fn is_installing(&self) -> bool {
        self.shared.receiving.lock().installing.strong_count() > 0
    }

    /// The log of this node.
    pub fn log(&self) -> &LogStore {
        &self.shared.storage.log
    }

    /// The moment with which this node stamps entries; `None` if it is not a leader that is ready.
    pub fn moment(&self) -> Option<Moment> {
        self.shared.time.moment()
    }

    /// Passes a request to a shard. If this node does not lead, the answer says so.
    pub fn submit(&self, shard: ShardId, request: EngineRequest) {
        self.shared.storage.status.push(shard, request);
    }

    /// Whether this node leads, reaches a majority, has applied what its log held, and knows the
    /// time.
    pub fn is_ready(&self) -> bool {
        self.shared.time.moment().is_some() && self.shared.gates.may_lead()
    }

    /// Checkpoints the rows and frees the log up to the previous checkpoint. A node that needs what is gone gets the rows
    /// instead.
    pub async fn compact(&self) {
        self.shared.compact(&self.raft, u64::MAX).await;
    }

    /// Answers a message from another node.
    pub async fn receive(&self, request: Request) -> Response {
        let shared = &self.shared;
        match request {
            Request::Append { rpc, moment } => {
                let bytes: usize = rpc.entries.iter().map(bytes_of).sum();
                // Openraft stops for good when its log cannot be written, so notice a full disk first.
                if bytes > 0
                    && let Err(error) = shared.storage.make_room(bytes as u64).await
                {
                    return Response::Failed(error.to_string());
                }
                let LeaderId { term, node_id: node } = rpc.vote.leader_id;
                let response = match self.raft.append_entries(rpc).await {
                    Ok(response) => response,
                    Err(error) => return Response::Failed(error.to_string()),
                };
                if !matches!(response, AppendEntriesResponse::HigherVote(_)) {
                    shared.gates.heard_leader();
                    if let Some(moment) = moment {
                        shared.time.note(Leader { term, node }, moment);
                    }
                }
                Response::Append(response)
            }
            Request::Vote(rpc) => match self.raft.vote(rpc).await {
                Ok(response) => Response::Vote(response),
                Err(error) => Response::Failed(error.to_string()),
            },
            Request::Ping => Response::Pong { leader_heard: shared.gates.leader_heard() },
            Request::Time => {
                Response::Time { noted: shared.time.noted(), wall: shared.time.wall() }
            }
            Request::ReadIndex => self.answer_read_index().await,
            Request::SnapshotBegin { vote, meta } => {
                shared.begin_receiving(vote, meta).unwrap_or_else(Response::Failed)
            }
            Request::SnapshotChunk { transfer, shard, chunk } => {
                shared.receive_chunk(transfer, shard, &chunk).unwrap_or_else(Response::Failed)
            }
            Request::SnapshotEnd { transfer } => {
                self.install(transfer).await.unwrap_or_else(Response::Failed)
            }
        }
    }

    async fn install(&self, transfer: u64) -> Result<Response, String> {
        let installing = Arc::new(());
        let (receiving, vote, meta) = {
            let mut transfers = self.shared.receiving.lock();
            let current = transfers.current.take_if(|it| it.0.number == transfer);
            let current = current.ok_or("there is no such transfer")?;
            transfers.installing = Arc::downgrade(&installing);
            current
        };
        receiving.finish(meta.last_log_id.map_or(0, |at| at.index))?;
        let rows = SnapshotRows { rows: Rows::Incoming, _installing: Some(installing) };
        let snapshot = Snapshot { meta, snapshot: Box::new(rows) };
        let installed = self.raft.install_full_snapshot(vote, snapshot).await;
        installed.map(Response::Installed).map_err(|error| error.to_string())
    }

    /// Whether this node is the only voter.
    pub(crate) fn is_alone(&self) -> bool {
        self.shared.gates.is_alone()
    }

    /// Elects this node, and waits until it is ready. It is the only voter, so no lease has to end
    /// first.
    pub(crate) async fn lead_alone(&self) -> Result<(), StartError> {
        let mut ready = self.shared.ready.subscribe();
        let status = &self.shared.storage.status;
        // It fails only if openraft has stopped, which the loop below finds out.
        let _ = self.raft.trigger().elect().await;
        loop {
            if *ready.borrow_and_update() {
                return Ok(());
            }
            if self.raft.metrics().borrow().running_state.is_err() || status.has_failed() {
                return Err(StartError::Raft(status.error().to_string()));
            }
            // The sender lives as long as this node.
            let _ = ready.changed().await;
        }
    }

    /// The current moment: exact if this node leads, otherwise estimated from the leader's last message.
    pub fn now(&self) -> Moment {
        let shared = &self.shared;
        let last = || shared.storage.rows.lock().replica.now();
        shared.time.moment().unwrap_or_else(|| shared.time.estimated(last()))
    }

    /// Stops the node because it must not go on. Nothing is acknowledged any more.
    pub(crate) fn fail(&self, error: &EngineError) {
        self.shared.storage.status.fail(error);
        self.shared.storage.wake.notify_one();
    }

    /// Finishes what was proposed, answers what waits, makes a checkpoint and stops the node.
    pub async fn close(&self) {
        let storage = &self.shared.storage;
        storage.rows.lock().replica.drain();
        storage.wake.notify_one();
        let finished = async {
            while !storage.rows.lock().replica.is_idle()
                || self.shared.confirming.load(Ordering::Acquire) > 0
            {
                storage.settled.notified().await;
            }
        };
        let _ = runtime::timeout(CLOSE_WITHIN, finished).await;
        // The log has everything: if this fails, the next start only takes longer.
        let _ = storage.checkpoint().await;
        self.shutdown().await;
        storage.rows.lock().replica.stop(&EngineError::Closed);
        // What waits for a majority fails now that openraft has stopped. It must be answered before the runtime ends.
        let answered = async {
            while self.shared.confirming.load(Ordering::Acquire) > 0 {
                storage.settled.notified().await;
            }
        };
        let _ = runtime::timeout(CLOSE_WITHIN, answered).await;
    }

    /// Stops the node. What it has acknowledged is durable already.
    pub async fn shutdown(&self) {
        // It fails only if openraft has stopped already.
        let _ = self.raft.shutdown().await;
    }
}

/// An estimate of how many bytes an entry takes in the log; never too low.
fn bytes_of(entry: &Entry) -> usize {
    const BASE: usize = 512;
    match &entry.payload {
        EntryPayload::Blank => BASE,
        EntryPayload::Normal(proposal) => {
            let records = proposal.records.iter().map(|(_, record)| record.len() + BASE);
            BASE + records.sum::<usize>()
        }
        EntryPayload::Membership(membership) => {
            BASE + membership.nodes().map(|(_, member)| member.address.len() + BASE).sum::<usize>()
        }
    }
}

/// Pings the other voters from time to time, lets this node stand for election or not, and shortens
/// the log when it has grown.
async fn tick(node: Arc<Shared>, raft: Raft<Types>) {
    let limit = node.timing.lease();
    loop {
        for id in node.gates.others() {
            let node = Arc::clone(&node);
            runtime::spawn(async move {
                let sent = node.transport.send(id, Request::Ping, limit).await;
                if let Ok(Response::Pong { leader_heard }) = sent {
                    node.gates.pong(id, leader_heard);
                }
            });
        }
        let log = &node.storage.log;
        if log.index_keeping(LOG_KEEP_BYTES + LOG_EXCESS_BYTES).is_some()
            && let Some(index) = log.index_keeping(LOG_KEEP_BYTES)
        {
            node.compact(&raft, index).await;
        }
        let may = node.gates.may_campaign() || node.storage.has(Fault::AlwaysCampaign);
        raft.runtime_config().elect(may);
        if raft.metrics().borrow().running_state.is_err() {
            return;
        }
        runtime::sleep(node.timing.heartbeat).await;
    }
}
