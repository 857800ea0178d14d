//! The network: messages are late, lost, duplicated or out of order, and links are cut in one direction or both.
//!
//! A message that was sent arrives even if its sender no longer waits for the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use codeq_raft::runtime;
use codeq_raft::transport::{self, Sending, Transport, Unreachable};
use codeq_raft::types::NodeId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::executor::Executor;
use crate::rng::Rng;

/// Delays and losses on all links. Probabilities are in tenths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkConditions {
    /// The shortest time a message takes, in microseconds.
    pub fastest: u64,
    /// The longest time it usually takes, in microseconds.
    pub slowest: u64,
    /// Probability that a message takes much longer.
    pub straggler: u64,
    /// The longest additional delay then, in microseconds.
    pub straggler_slowest: u64,
    /// Probability that a request or an answer is lost.
    pub loss: u64,
    /// Probability that a request arrives twice.
    pub double: u64,
}

impl NetworkConditions {
    /// A good network, which still delays messages.
    pub const GOOD: NetworkConditions = NetworkConditions {
        fastest: 50,
        slowest: 500,
        straggler: 0,
        straggler_slowest: 0,
        loss: 0,
        double: 0,
    };

    /// The delays and losses that a seed draws.
    pub fn draw(rng: &mut Rng) -> NetworkConditions {
        let pick = |rng: &mut Rng, items: &[u64]| rng.pick(items).copied().unwrap_or(0);
        NetworkConditions {
            fastest: pick(rng, &[20, 100, 1_000]),
            slowest: pick(rng, &[500, 2_000, 15_000]),
            straggler: pick(rng, &[0, 1, 20]),
            straggler_slowest: pick(rng, &[20_000, 200_000, 2_000_000]),
            loss: pick(rng, &[0, 0, 1, 10, 50]),
            double: pick(rng, &[0, 0, 10, 50]),
        }
    }
}

/// The answer that a node is preparing.
pub type Answering<A> = Pin<Box<dyn Future<Output = A> + Send>>;
/// Receives the messages of a node, with their senders.
pub type Receiver<Q, A> = Arc<dyn Fn(NodeId, Q) -> Answering<A> + Send + Sync>;

/// How many messages there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests sent.
    pub sent: u64,
    /// Requests that arrived, duplicates included.
    pub arrived: u64,
    /// Answers that arrived.
    pub answered: u64,
    /// Requests that were sent twice.
    pub doubled: u64,
    /// Requests and answers that the network lost.
    pub lost: u64,
    /// Requests and answers that met a cut link.
    pub cut: u64,
    /// Requests and answers that took much longer than others.
    pub late: u64,
    /// Requests that arrived after a later one of the same link.
    pub overtaken: u64,
}

impl Traffic {
    /// What went wrong, with its name.
    pub fn faults(&self) -> [(&'static str, u64); 5] {
        [
            ("messages lost", self.lost),
            ("messages cut off", self.cut),
            ("messages doubled", self.doubled),
            ("messages late", self.late),
            ("messages overtaken", self.overtaken),
        ]
    }
}

struct State<Q, A> {
    rng: Rng,
    conditions: NetworkConditions,
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Additional microseconds, by link.
    slow: BTreeMap<(NodeId, NodeId), u64>,
    receivers: BTreeMap<NodeId, Receiver<Q, A>>,
    traffic: Traffic,
    /// The latest request that has arrived, by link.
    latest: BTreeMap<(NodeId, NodeId), u64>,
}

/// The network. Clones are the same network.
pub struct SimNetwork<Q, A> {
    executor: Executor,
    state: Arc<Mutex<State<Q, A>>>,
}

impl<Q, A> Clone for SimNetwork<Q, A> {
    fn clone(&self) -> SimNetwork<Q, A> {
        SimNetwork { executor: self.executor.clone(), state: Arc::clone(&self.state) }
    }
}

/// What happens to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrives(Duration),
    /// The sender learns of it after this time, unless it times out earlier.
    Lost(Duration),
}

impl<Q: Clone + Send + 'static, A: Send + 'static> SimNetwork<Q, A> {
    /// A network without nodes.
    pub fn new(executor: &Executor, seed: u64, conditions: NetworkConditions) -> SimNetwork<Q, A> {
        let state = State {
            // Another name here would give every seed a different run.
            rng: Rng::new(seed).fork("bus"),
            conditions,
            cut: BTreeSet::new(),
            slow: BTreeMap::new(),
            receivers: BTreeMap::new(),
            traffic: Traffic::default(),
            latest: BTreeMap::new(),
        };
        SimNetwork { executor: executor.clone(), state: Arc::new(Mutex::new(state)) }
    }

    /// Connects a node that has started.
    pub fn attach(&self, node: NodeId, receiver: Receiver<Q, A>) {
        self.state.lock().receivers.insert(node, receiver);
    }

    /// Disconnects a node that has stopped.
    pub fn detach(&self, node: NodeId) {
        let gone = self.state.lock().receivers.remove(&node);
        drop(gone);
    }

    /// Changes the delays and losses.
    pub fn set_conditions(&self, conditions: NetworkConditions) {
        self.state.lock().conditions = conditions;
    }

    /// Cuts a link in one direction.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.state.lock().cut.insert((from, to));
    }

    /// Makes a link slower in one direction.
    pub fn slow_down(&self, from: NodeId, to: NodeId, micros: u64) {
        self.state.lock().slow.insert((from, to), micros);
    }

    /// Cuts all links between two groups of nodes.
    pub fn part(&self, some: &[NodeId], others: &[NodeId]) {
        let mut state = self.state.lock();
        for one in some {
            for other in others.iter().filter(|other| *other != one) {
                state.cut.insert((*one, *other));
                state.cut.insert((*other, *one));
            }
        }
    }

    /// Repairs all links.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.cut.clear();
        state.slow.clear();
    }

    /// Whether messages from one node reach another.
    pub fn reaches(&self, from: NodeId, to: NodeId) -> bool {
        let state = self.state.lock();
        state.receivers.contains_key(&to) && !state.cut.contains(&(from, to))
    }

    /// How many messages there were.
    pub fn traffic(&self) -> Traffic {
        self.state.lock().traffic
    }

    /// Sends a request and waits for its answer, for at most `limit`. The request leaves at once, even if the future is
    /// never polled.
    pub fn send(
        &self,
        from: NodeId,
        to: NodeId,
        request: Q,
        limit: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<A, Unreachable>> + Send>> {
        let (answer, heard) = oneshot::channel();
        let (double, number) = {
            let mut state = self.state.lock();
            state.traffic.sent += 1;
            let double = state.conditions.double;
            let double = state.rng.below(1_000) < double;
            state.traffic.doubled += u64::from(double);
            (double, state.traffic.sent)
        };
        if double {
            self.carry(from, to, number, request.clone(), None);
        }
        self.carry(from, to, number, request, Some(answer));
        let waiting = runtime::timeout(limit, heard);
        Box::pin(async move {
            match waiting.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) | Err(_) => Err(Unreachable),
            }
        })
    }

    /// Carries a request there and its answer back.
    fn carry(
        &self,
        from: NodeId,
        to: NodeId,
        number: u64,
        request: Q,
        heard: Option<oneshot::Sender<Result<A, Unreachable>>>,
    ) {
        let network = self.clone();
        self.executor.spawn_on(None, async move {
            let outcome = network.exchange(from, to, number, request).await;
            match (outcome, heard) {
                // A sender that no longer waits does not need to know.
                (Ok(answer), Some(heard)) => drop(heard.send(Ok(answer))),
                (Err(after), Some(heard)) => {
                    runtime::sleep(after).await;
                    let _ = heard.send(Err(Unreachable));
                }
                (_, None) => {}
            }
        });
    }

    /// Delivers a request and brings back its answer. If either is lost, the error says after how long the sender notices.
    async fn exchange(
        &self,
        from: NodeId,
        to: NodeId,
        number: u64,
        request: Q,
    ) -> Result<A, Duration> {
        self.travel(from, to).await?;
        let receiver = {
            let mut state = self.state.lock();
            state.traffic.arrived += 1;
            let latest = state.latest.entry((from, to)).or_default();
            let overtaken = number < *latest;
            *latest = number.max(*latest);
            state.traffic.overtaken += u64::from(overtaken);
            state.receivers.get(&to).cloned()
        };
        let receiver = receiver.ok_or(Duration::from_micros(100))?;
        let (done, answer) = oneshot::channel();
        self.executor.spawn_on(Some(to), async move {
            let _ = done.send(receiver(from, request).await);
        });
        // If the node crashes, its end of the connection is closed.
        let answer = answer.await.map_err(|_| Duration::from_millis(1))?;
        self.travel(to, from).await?;
        self.state.lock().traffic.answered += 1;
        Ok(answer)
    }

    async fn travel(&self, from: NodeId, to: NodeId) -> Result<(), Duration> {
        let fate = self.state.lock().fate(from, to);
        match fate {
            Fate::Lost(noticed) => return Err(noticed),
            Fate::Arrives(delay) => runtime::sleep(delay).await,
        }
        // What is on its way when the link is cut is lost as well.
        let mut state = self.state.lock();
        let cut = state.cut.contains(&(from, to));
        state.traffic.cut += u64::from(cut);
        if cut { Err(Duration::from_secs(1)) } else { Ok(()) }
    }
}

impl<Q, A> State<Q, A> {
    fn fate(&mut self, from: NodeId, to: NodeId) -> Fate {
        let conditions = self.conditions;
        let (rng, traffic) = (&mut self.rng, &mut self.traffic);
        let cut = self.cut.contains(&(from, to));
        if cut || rng.below(1_000) < conditions.loss {
            traffic.cut += u64::from(cut);
            traffic.lost += u64::from(!cut);
            // Either a firewall refuses it at once, or it vanishes and the idle connection is closed after a second or two.
            let noticed = match rng.chance(30) {
                true => rng.between(100, 5_000),
                false => rng.between(1_000_000, 2_000_000),
            };
            return Fate::Lost(Duration::from_micros(noticed));
        }
        let mut micros =
            rng.between(conditions.fastest, conditions.slowest.max(conditions.fastest));
        if rng.below(1_000) < conditions.straggler {
            micros += rng.below(conditions.straggler_slowest);
            traffic.late += 1;
        }
        if let Some(slow) = self.slow.get(&(from, to)) {
            micros += rng.between(slow / 2, *slow);
            traffic.late += 1;
        }
        Fate::Arrives(Duration::from_micros(micros))
    }
}

/// The network between nodes.
pub type Network = SimNetwork<transport::Request, transport::Response>;

impl Network {
    /// A node's access to the network.
    pub fn transport(&self, from: NodeId) -> Arc<dyn Transport> {
        Arc::new(Access { network: self.clone(), from })
    }
}

struct Access {
    network: Network,
    from: NodeId,
}

impl Transport for Access {
    fn send(&self, to: NodeId, request: transport::Request, limit: Duration) -> Sending {
        self.network.send(self.from, to, request, limit)
    }
}
