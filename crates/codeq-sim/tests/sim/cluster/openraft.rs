//! openraft itself on the executor and the network, over a log in memory: the runs repeat, and faults do what they say.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use codeq_raft::runtime::Runtime;
use codeq_sim::cluster::executor::Executor;
use codeq_sim::cluster::network::{NetworkConditions, SimNetwork};
use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::storage::{
    LogFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine,
};
use openraft::{
    AnyError, Config, Entry, EntryPayload, LogId, OptionalSend, Raft, Snapshot, SnapshotMeta,
    StorageError, StoredMembership, Vote,
};
use parking_lot::Mutex;

const SECOND: Duration = Duration::from_secs(1);

openraft::declare_raft_types!(
    Toy: D = u64, R = (), NodeId = u64, Node = (), Entry = Entry<Toy>, SnapshotData = (),
        AsyncRuntime = Runtime,
);

/// What a node would have on its disk.
#[derive(Default)]
struct Kept {
    vote: Option<Vote<u64>>,
    log: BTreeMap<u64, Entry<Toy>>,
    applied: Option<LogId<u64>>,
    members: StoredMembership<u64, ()>,
    values: Vec<u64>,
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<Kept>>);

type Failure = StorageError<u64>;

impl RaftLogReader<Toy> for Store {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Toy>>, Failure> {
        Ok(self.0.lock().log.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Toy> for Store {
    type LogReader = Store;

    async fn get_log_state(&mut self) -> Result<LogState<Toy>, Failure> {
        let last_log_id = self.0.lock().log.last_key_value().map(|(_, entry)| entry.log_id);
        Ok(LogState { last_purged_log_id: None, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Store {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), Failure> {
        self.0.lock().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, Failure> {
        Ok(self.0.lock().vote)
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<Toy>) -> Result<(), Failure>
    where
        I: IntoIterator<Item = Entry<Toy>> + Send,
    {
        let entries = entries.into_iter().map(|entry| (entry.log_id.index, entry));
        self.0.lock().log.extend(entries);
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, id: LogId<u64>) -> Result<(), Failure> {
        self.0.lock().log.retain(|index, _| *index < id.index);
        Ok(())
    }

    async fn purge(&mut self, _: LogId<u64>) -> Result<(), Failure> {
        Ok(())
    }
}

impl RaftStateMachine<Toy> for Store {
    type SnapshotBuilder = Store;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, ()>), Failure> {
        let kept = self.0.lock();
        Ok((kept.applied, kept.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, Failure>
    where
        I: IntoIterator<Item = Entry<Toy>> + Send,
    {
        let mut kept = self.0.lock();
        let apply = |entry: Entry<Toy>| {
            kept.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(value) => kept.values.push(value),
                EntryPayload::Membership(members) => {
                    kept.members = StoredMembership::new(Some(entry.log_id), members);
                }
            }
        };
        Ok(entries.into_iter().map(apply).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Store {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<()>, Failure> {
        Ok(Box::new(()))
    }

    async fn install_snapshot(
        &mut self,
        _: &SnapshotMeta<u64, ()>,
        _: Box<()>,
    ) -> Result<(), Failure> {
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Toy>>, Failure> {
        Ok(None)
    }
}

impl RaftSnapshotBuilder<Toy> for Store {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Toy>, Failure> {
        panic!("nothing asks for snapshots")
    }
}

#[derive(Clone)]
enum Question {
    Append(AppendEntriesRequest<Toy>),
    Vote(VoteRequest<u64>),
}

enum Reply {
    Append(AppendEntriesResponse<u64>),
    Vote(VoteResponse<u64>),
    Failed,
}

type ToyNetwork = SimNetwork<Question, Reply>;
type ToyError = RPCError<u64, (), RaftError<u64>>;

struct Peers(ToyNetwork, u64);

struct Peer(ToyNetwork, u64, u64);

impl RaftNetworkFactory<Toy> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, _: &()) -> Peer {
        Peer(self.0.clone(), self.1, target)
    }
}

impl Peer {
    async fn ask(&self, question: Question, option: RPCOption) -> Result<Reply, ToyError> {
        let sent = self.0.send(self.1, self.2, question, option.hard_ttl()).await;
        sent.map_err(|error| NetworkError::new(&error).into())
    }
}

fn other() -> ToyError {
    NetworkError::new(&AnyError::error("no such answer")).into()
}

impl RaftNetwork<Toy> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Toy>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, ToyError> {
        match self.ask(Question::Append(rpc), option).await? {
            Reply::Append(response) => Ok(response),
            _ => Err(other()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, ToyError> {
        match self.ask(Question::Vote(rpc), option).await? {
            Reply::Vote(response) => Ok(response),
            _ => Err(other()),
        }
    }

    async fn full_snapshot(
        &mut self,
        _: Vote<u64>,
        _: Snapshot<Toy>,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Toy, Fatal<u64>>> {
        Err(NetworkError::new(&AnyError::error("no snapshots")).into())
    }
}

/// Three nodes.
struct Cluster {
    executor: Executor,
    network: ToyNetwork,
    stores: BTreeMap<u64, Store>,
    rafts: Arc<Mutex<BTreeMap<u64, Raft<Toy>>>>,
}

impl Cluster {
    fn new(seed: u64, conditions: NetworkConditions) -> Cluster {
        let executor = Executor::new(seed);
        let network = ToyNetwork::new(&executor, seed, conditions);
        let stores = (1..=3).map(|node| (node, Store::default())).collect();
        let cluster = Cluster { executor, network, stores, rafts: Arc::default() };
        for node in 1..=3 {
            cluster.executor.boot(node, (node as i64 - 2) * 1_000_000);
            cluster.start(node);
        }
        cluster
    }

    /// Starts a node with what its store holds.
    fn start(&self, node: u64) {
        let (network, rafts) = (self.network.clone(), Arc::clone(&self.rafts));
        let store = self.stores[&node].clone();
        self.executor.restart(node);
        self.executor.spawn_on(Some(node), async move {
            let config = Config {
                heartbeat_interval: 150,
                election_timeout_min: 400,
                election_timeout_max: 800,
                ..Config::default()
            };
            let config = Arc::new(config.validate().unwrap());
            let peers = Peers(network.clone(), node);
            let raft: Raft<Toy> =
                Raft::new(node, config, peers, store.clone(), store).await.unwrap();
            let receiver = raft.clone();
            network.attach(
                node,
                Arc::new(move |_, question| {
                    let raft = receiver.clone();
                    Box::pin(async move {
                        match question {
                            Question::Append(rpc) => {
                                raft.append_entries(rpc).await.map_or(Reply::Failed, Reply::Append)
                            }
                            Question::Vote(rpc) => {
                                raft.vote(rpc).await.map_or(Reply::Failed, Reply::Vote)
                            }
                        }
                    })
                }),
            );
            if node == 1 && !raft.is_initialized().await.unwrap() {
                let members: BTreeMap<u64, ()> = (1..=3).map(|node| (node, ())).collect();
                raft.initialize(members).await.unwrap();
            }
            rafts.lock().insert(node, raft);
        });
    }

    fn crash(&self, node: u64) {
        self.network.detach(node);
        let raft = self.rafts.lock().remove(&node);
        self.executor.with_owner(Some(node), || drop(raft));
        self.executor.crash(node);
    }

    /// The latest leader, if there is one.
    fn leader(&self) -> Option<u64> {
        let rafts = self.rafts.lock();
        let led = rafts.iter().filter_map(|(node, raft)| {
            let metrics = raft.metrics().borrow().clone();
            (metrics.state.is_leader()).then_some((metrics.current_term, *node))
        });
        led.max().map(|(_, node)| node)
    }

    fn await_leader(&self, not: Option<u64>) -> u64 {
        let end = self.executor.time() + SECOND * 10;
        let found = || self.leader().is_some_and(|leader| Some(leader) != not);
        assert!(self.executor.run_until(end, found), "no leader");
        self.leader().unwrap()
    }

    /// Writes a value through a node.
    fn write(&self, node: u64, value: u64) {
        let raft = self.rafts.lock()[&node].clone();
        self.executor.spawn_on(Some(node), async move { drop(raft.client_write(value).await) });
    }

    fn values(&self, node: u64) -> Vec<u64> {
        self.stores[&node].0.lock().values.clone()
    }

    fn await_values(&self, values: &[u64]) {
        let end = self.executor.time() + SECOND * 10;
        let same = || (1..=3).all(|node| self.values(node) == values);
        let reached = self.executor.run_until(end, same);
        let found: Vec<_> = (1..=3).map(|node| self.values(node)).collect();
        assert!(reached, "{found:?}, expected {values:?}");
        assert_eq!(self.executor.take_panics(), []);
    }
}

/// An election, a cut-off leader, a crash: always the same values everywhere. Returns the trace.
fn story(seed: u64, conditions: NetworkConditions) -> u64 {
    let cluster = Cluster::new(seed, conditions);
    let _entered = cluster.executor.enter();
    let first = cluster.await_leader(None);
    for value in 1..=5 {
        cluster.write(first, value);
        cluster.executor.run_for(SECOND / 2);
    }
    cluster.await_values(&[1, 2, 3, 4, 5]);
    let others: Vec<u64> = (1..=3).filter(|node| *node != first).collect();
    cluster.network.part(&[first], &others);
    cluster.write(first, 99);
    let second = cluster.await_leader(Some(first));
    cluster.write(second, 6);
    cluster.executor.run_for(SECOND * 2);
    cluster.network.heal();
    cluster.await_values(&[1, 2, 3, 4, 5, 6]);
    cluster.crash(second);
    let third = cluster.await_leader(Some(second));
    cluster.write(third, 7);
    cluster.executor.run_for(SECOND);
    cluster.start(second);
    cluster.await_values(&[1, 2, 3, 4, 5, 6, 7]);
    cluster.executor.trace()
}

#[test]
fn three_nodes_elect_commit_and_survive_a_cut_and_a_crash() {
    for seed in 1..=20 {
        story(seed, NetworkConditions::GOOD);
    }
    let stormy = NetworkConditions {
        straggler: 20,
        straggler_slowest: 50_000,
        double: 50,
        ..NetworkConditions::GOOD
    };
    for seed in 1..=20 {
        story(seed, stormy);
    }
}

#[test]
fn the_same_seed_is_the_same_run_of_openraft() {
    let traces: Vec<u64> = (1..=5).map(|seed| story(seed, NetworkConditions::GOOD)).collect();
    let again: Vec<u64> = (1..=5).map(|seed| story(seed, NetworkConditions::GOOD)).collect();
    assert_eq!(traces, again);
    assert!(traces.windows(2).all(|pair| pair[0] != pair[1]));
}
