//! A machine with one node: its disk, its clocks, and the process that is up or down.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_engine::SharedObserver;
use codeq_engine::clock::Clock;
use codeq_engine::observer::Observer;
use codeq_raft::fault::Fault;
use codeq_raft::log_store::{NewNode, Start};
use codeq_raft::node::{Node, Setup, StartError, Timing, create};
use codeq_raft::types::{LogId, Member, NodeId};
use parking_lot::Mutex;

use super::executor::Executor;
use super::network::Network;
use super::transitions::Observed;
use crate::disk::{Faults, SimDisk};
use crate::rng::mix;

/// The directory of every node, each on its own disk.
pub(super) const DIR: &str = "/data";
/// The true date when a run starts.
pub const EPOCH: Millis = 1_700_000_000_000;
/// What a sync takes, in microseconds.
const SYNC_MICROS: u64 = 150;

/// The clocks of a machine, in virtual time.
pub struct MachineClock {
    executor: Executor,
    node: NodeId,
    /// How far the wall clock is off, in milliseconds.
    ahead: AtomicI64,
    boots: AtomicU64,
}

impl MachineClock {
    /// Sets the wall clock so that it is off by this many milliseconds.
    pub fn set(&self, ahead: i64) {
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// How far the wall clock is off, in milliseconds.
    pub fn ahead(&self) -> i64 {
        self.ahead.load(Ordering::Relaxed)
    }
}

impl Clock for MachineClock {
    fn wall(&self) -> Millis {
        self.wall_micros() / 1_000
    }

    fn wall_micros(&self) -> u64 {
        let real = EPOCH * 1_000 + self.executor.time().as_micros() as u64;
        real.saturating_add_signed(self.ahead() * 1_000)
    }

    fn monotonic(&self) -> Duration {
        self.executor.clock(Some(self.node))
    }

    fn boot(&self) -> Option<u64> {
        Some(mix(&[self.node, self.boots.load(Ordering::Relaxed)]))
    }
}

/// What the process of a machine is doing.
pub enum Process {
    /// It does not run.
    Down,
    /// It is starting.
    Starting,
    /// It runs.
    Up(Node),
    /// It refused to start.
    Refused(StartError),
}

/// A machine with one node.
pub struct Machine {
    /// Its number in the cluster.
    pub id: NodeId,
    /// Its disk.
    pub disk: SimDisk,
    /// Its clocks.
    pub clock: Arc<MachineClock>,
    /// Drawn at each start.
    pub incarnation: u64,
    /// Whether a failure of the disk was planned since the last start: the node may then stop.
    pub excused: bool,
    /// By how many parts in a billion its monotonic clock runs too fast.
    pub drift: i64,
    process: Arc<Mutex<Process>>,
    indexes: Arc<Mutex<IndexesSlot>>,
    /// The transitions that the process has reported.
    pub(super) observed: Arc<Observed>,
}

/// openraft's state at one moment, as indexes of entries; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaftIndexes {
    /// The last entry that its log no longer has.
    pub purged: u64,
    /// The last entry that its snapshot includes.
    pub snapshot: u64,
    /// The last entry that its rows include.
    pub applied: u64,
    /// The last entry that it knows to be committed.
    pub committed: u64,
    /// The last entry of its log.
    pub last: u64,
    /// Rows of another node are being installed: openraft counts them already.
    pub installing: bool,
}

#[derive(Default)]
struct IndexesSlot {
    asked: bool,
    taken: Option<RaftIndexes>,
}

/// What all machines have in common.
#[derive(Clone)]
pub struct World {
    /// Runs their tasks.
    pub executor: Executor,
    /// Connects them.
    pub network: Network,
    /// The settings of all nodes.
    pub options: codeq_engine::Options,
    /// Their timeouts.
    pub timing: Timing,
    /// The bug that is planted in all of them.
    pub fault: Option<Fault>,
    /// The seed of the run.
    pub seed: u64,
    /// Makes an observer for every start of a node.
    pub observers: Option<Observers>,
}

/// Makes an observer for a start of a node.
pub type Observers = Arc<dyn Fn(NodeId) -> SharedObserver + Send + Sync>;

/// The address of a node, which nobody uses.
pub fn member(id: NodeId) -> Member {
    Member { address: format!("node-{id}") }
}

impl Machine {
    /// Boots a new machine and formats its disk: for the first node of a cluster, or for one that joins later.
    pub fn new(world: &World, id: NodeId, first: bool, drift: i64) -> Result<Machine, StartError> {
        let World { executor, options, seed, .. } = world;
        let disk = SimDisk::new(mix(&[*seed, id]));
        let (shared, dir) = (disk.shared(), Path::new(DIR));
        let start = match first {
            true => Start::Cluster { member: member(id), position: 0 },
            false => Start::Joining,
        };
        let new = NewNode { cluster_id: *seed, node_id: id, log_id: mix(&[*seed, id, 1]), start };
        create(&shared, dir, options, new)?;
        executor.boot(id, drift);
        let seen = AtomicU64::new(disk.syncs());
        let costs = disk.clone();
        executor.set_cost(
            id,
            Arc::new(move || {
                let syncs = costs.syncs();
                let more = syncs - seen.swap(syncs, Ordering::Relaxed);
                Duration::from_micros(more * SYNC_MICROS) + Duration::from_millis(costs.take_cost())
            }),
        );
        let clock = Arc::new(MachineClock {
            executor: executor.clone(),
            node: id,
            ahead: AtomicI64::new(0),
            boots: AtomicU64::new(1),
        });
        let process = Arc::new(Mutex::new(Process::Down));
        let (incarnation, excused) = (0, false);
        let (indexes, observed) = (Arc::default(), Arc::default());
        Ok(Machine { id, disk, clock, incarnation, excused, process, drift, indexes, observed })
    }

    /// The state that an earlier call asked openraft for, if it has arrived. Asks for a new one.
    pub fn take_indexes(&self) -> Option<RaftIndexes> {
        let node = self.node()?;
        let mut slot = self.indexes.lock();
        if !std::mem::replace(&mut slot.asked, true) {
            let (log, process, slot) = (node.log().clone(), node.clone(), self.indexes.clone());
            let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
            node.raft().external_request(move |state| {
                let indexes = RaftIndexes {
                    purged: index(log.purged_log_id()),
                    snapshot: index(state.snapshot_meta.last_log_id),
                    applied: index(process.applied()),
                    committed: index(state.committed),
                    last: index(log.last_log_id()),
                    installing: process.is_installing(),
                };
                *slot.lock() = IndexesSlot { asked: false, taken: Some(indexes) };
            });
        }
        slot.taken.take()
    }

    /// The node, if it is up.
    pub fn node(&self) -> Option<Node> {
        match &*self.process.lock() {
            Process::Up(node) => Some(node.clone()),
            _ => None,
        }
    }

    /// Whether the process runs or is starting.
    pub fn is_running(&self) -> bool {
        matches!(&*self.process.lock(), Process::Up(_) | Process::Starting)
    }

    /// Why the process refused to start, once.
    pub fn take_refusal(&self) -> Option<StartError> {
        let mut process = self.process.lock();
        match std::mem::replace(&mut *process, Process::Down) {
            Process::Refused(error) => Some(error),
            other => {
                *process = other;
                None
            }
        }
    }

    /// Starts the process, if it does not run.
    pub fn start(&mut self, world: &World) {
        if self.is_running() {
            return;
        }
        self.incarnation = mix(&[self.incarnation, self.id, world.seed]);
        self.excused = false;
        self.indexes = Arc::default();
        self.observed = Arc::default();
        world.executor.restart(self.id);
        *self.process.lock() = Process::Starting;
        let observed = Arc::clone(&self.observed) as Arc<dyn Observer>;
        let observer = match &world.observers {
            Some(observers) => observers(self.id),
            None => SharedObserver(Some(observed)),
        };
        let setup = Setup {
            disk: self.disk.shared(),
            dir: DIR.into(),
            options: codeq_engine::Options { observer, ..world.options.clone() },
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            transport: world.network.transport(self.id),
            incarnation: self.incarnation,
            timing: world.timing,
            fault: world.fault,
        };
        let (process, network, id) = (Arc::clone(&self.process), world.network.clone(), self.id);
        world.executor.spawn_on(Some(id), async move {
            let started = match Node::start(setup).await {
                Ok(node) => {
                    let receiver = node.clone();
                    network.attach(
                        id,
                        Arc::new(move |_, request| {
                            let node = receiver.clone();
                            Box::pin(async move { node.receive(request).await })
                        }),
                    );
                    Process::Up(node)
                }
                Err(error) => Process::Refused(error),
            };
            *process.lock() = started;
        });
    }

    /// Kills the process, or cuts the power of the machine.
    pub fn crash(&mut self, world: &World, power_cut: bool) {
        // The disk first: a dead process writes nothing more, whatever its destructors try.
        match power_cut || self.disk.is_dead() {
            true => self.disk.power_cut(),
            false => self.disk.kill(),
        }
        world.network.detach(self.id);
        let process = std::mem::replace(&mut *self.process.lock(), Process::Down);
        world.executor.with_owner(Some(self.id), || drop(process));
        world.executor.crash(self.id);
        if power_cut {
            self.clock.boots.fetch_add(1, Ordering::Relaxed);
            world.executor.boot(self.id, self.drift);
        }
    }

    /// Plans faults of the disk. If the disk fails, the node may stop; if it is only slow or full, the node must go on.
    pub fn plan(&mut self, faults: Faults) {
        let Faults { fail_write, fail_sync, cut_at_sync, cut_at_change, .. } = &faults;
        let cut = cut_at_sync.or(*cut_at_change).is_some();
        self.excused |= fail_write.or(*fail_sync).is_some() || cut;
        self.disk.plan(faults);
    }
}
