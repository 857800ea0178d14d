//! One run of a cluster. The seed determines everything, so a run can be repeated.
//!
//! A cluster grows from one node to three or five. Then come episodes, in which clients work while something goes wrong.
//! Each is followed by calm: everything is repaired, the cluster must work again within ten seconds, and soon after that
//! all nodes must agree. The checkers run all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use codeq_core::command::{Command, Millis};
use codeq_engine::Durability;
use codeq_engine::clock::Clock;
use codeq_raft::fault::Fault;
use codeq_raft::node::{Node, Timing};
use codeq_raft::types::{LogId, NodeId};

use super::clients::{Clients, Counts};
use super::committed::Committed;
use super::disks::Disks;
use super::executor::Executor;
use super::network::{Network, NetworkConditions};
use super::node::{Machine, World};
use super::repair::PROGRESS_WITHIN;
use super::rules::{ANSWERS, PROGRESS, RAFT, Rules, STOPPED};
use super::transitions::LastReported;
use crate::ending::list;
use crate::invariants::Violation;
use crate::ledger::Final;
use crate::plan::Plan;
use crate::rng::{Rng, mix};
use crate::workload::ClientCall;

/// Maximum number of violations reported at the end: one cause has many effects.
const VIOLATIONS_MAX: usize = 6;

/// Options of a run. Everything else follows from the seed.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Number of nodes: 3 or 5; `None` means what the seed says.
    pub nodes: Option<u64>,
    /// A bug to plant.
    pub fault: Option<Fault>,
    /// Return what the clients know with the report.
    pub keep_ledger: bool,
}

/// Outcome of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// A hash of everything that happened.
    pub trace: u64,
    /// What the clients did.
    pub counts: Counts,
    /// Leaders that were elected.
    pub elections: u64,
    /// Entries that were committed.
    pub entries: u64,
    /// How often the episode `snapshot` left a follower with a newer snapshot.
    pub snapshots: u64,
    /// How often each kind of fault happened, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Simulated time in milliseconds.
    pub simulated: Millis,
    /// Broken rules; empty if everything is fine.
    pub violations: Vec<Violation>,
    /// What the clients know, to investigate a failing seed.
    pub ledger: Vec<String>,
}

impl Report {
    /// The command that repeats this run.
    pub fn replay_command(&self) -> String {
        format!("codeq sim --cluster --nodes {} --seed {}", self.nodes, self.seed)
    }

    /// Whether the leader changed, or a rule was broken. Otherwise the run proves nothing about a cluster.
    pub fn changed_leader_or_failed(&self) -> bool {
        self.elections > 1 || !self.violations.is_empty()
    }
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Report {
    let executor = Executor::new(seed);
    let _entered = executor.enter();
    let mut run = Run::new(seed, options, &executor);
    // A debug assertion in a step that the simulator calls itself ends the run.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run.play())) {
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        run.report.violations.push(Violation::new(RAFT, format!("panicked: {text}")));
    }
    run.finish(options)
}

/// A run.
pub(super) struct Run {
    pub(super) world: World,
    pub(super) rng: Rng,
    pub(super) plan: Plan,
    pub(super) machines: BTreeMap<NodeId, Machine>,
    /// Who should be a voter.
    pub(super) desired: BTreeSet<NodeId>,
    pub(super) next_id: NodeId,
    pub(super) clients: Clients,
    pub(super) committed: Committed,
    pub(super) rules: Rules,
    /// Maximum drift of the clocks, in parts per million.
    pub(super) drift: u64,
    pub(super) report: Report,
    /// Requests per step.
    pub(super) burst: u64,
    /// Whether crashed nodes are started again.
    pub(super) supervised: bool,
    /// A node whose disk has lied: it should refuse to start.
    pub(super) expelled: Option<NodeId>,
    /// Up to which entry each process was compared with the reference.
    pub(super) compared: BTreeMap<NodeId, (u64, u64)>,
    /// The last entry that any node has applied.
    pub(super) highest_applied: Option<LogId>,
    pub(super) disks: Disks,
    pub(super) last_reported: LastReported,
    pub(super) operating: Arc<AtomicBool>,
    pub(super) steps: u64,
}

impl Run {
    fn new(seed: u64, options: &Options, executor: &Executor) -> Run {
        Run::of(Plan::of(seed), seed, options, executor)
    }

    /// A run with another plan than the seed's.
    pub(super) fn of(mut plan: Plan, seed: u64, options: &Options, executor: &Executor) -> Run {
        plan.durability = Durability::Fsync;
        plan.preload = 0;
        plan.lease = plan.lease.min(20_000);
        let mut rng = Rng::new(seed).fork("cluster");
        let nodes = options.nodes.unwrap_or(if seed.is_multiple_of(3) { 5 } else { 3 });
        let engine = codeq_engine::Options {
            memtable_bytes: plan.memtable_bytes.max(16 << 10),
            ..plan.engine_options()
        };
        // Good clocks drift by less than 0.1 %, and nodes allow for that; some seeds have bad ones.
        let drift = if rng.chance(33) { 5_000 } else { 1_000 };
        let network = Network::new(executor, seed, NetworkConditions::GOOD);
        let world = World {
            executor: executor.clone(),
            network,
            options: engine,
            timing: Timing::default(),
            fault: options.fault,
            seed,
            observers: None,
        };
        let committed = Committed::new(plan.shards, 0);
        Run {
            clients: Clients::new(&plan, seed),
            burst: plan.burst.min(4),
            world,
            rng,
            plan,
            machines: BTreeMap::new(),
            desired: BTreeSet::new(),
            next_id: 1,
            #[allow(clippy::expect_used, reason = "an empty map in memory")]
            committed: committed.expect("an empty map in memory can be read"),
            rules: Rules::new(drift),
            drift,
            report: Report { seed, nodes, ..Report::default() },
            supervised: true,
            expelled: None,
            compared: BTreeMap::new(),
            highest_applied: None,
            disks: Disks::default(),
            last_reported: LastReported::default(),
            operating: Arc::default(),
            steps: 0,
        }
    }

    fn play(&mut self) {
        if self.drift > 1_000 {
            self.count("clocks run badly");
        }
        self.grow();
        let episodes = self.rng.between(3, 6);
        for _ in 0..episodes {
            if self.is_over() {
                return;
            }
            self.episode();
            self.settle();
        }
        if self.rules.elections() < 2 && !self.is_over() {
            self.kill_leader();
            self.settle();
        }
    }

    pub(super) fn finish(mut self, options: &Options) -> Report {
        if self.report.violations.is_empty() {
            let judged = catch_unwind(AssertUnwindSafe(|| self.conclude()));
            if judged.is_err() {
                self.violation(ANSWERS, "the end of the run panicked");
            }
        }
        let executor = self.world.executor.clone();
        self.report.elections = self.rules.elections();
        self.report.entries = self.committed.applied();
        self.report.counts = self.clients.counts;
        for (fault, count) in self.world.network.traffic().faults() {
            *self.report.faults.entry(fault).or_default() += count;
        }
        self.report.simulated = executor.time().as_millis() as Millis;
        self.report.trace = mix(&[executor.trace(), self.clients.trace]);
        if options.keep_ledger {
            self.report.ledger = self.clients.lines();
        }
        let ids: Vec<NodeId> = self.machines.keys().copied().collect();
        for id in ids {
            self.crash(id, false);
        }
        self.report
    }

    /// Waits for the last answers and judges them.
    fn conclude(&mut self) {
        self.burst = 0;
        let end = self.world.executor.time() + Duration::from_secs(40);
        while self.clients.waiting() > 0 && self.world.executor.time() < end && !self.is_over() {
            self.pass(Duration::from_millis(200));
        }
        if self.clients.waiting() > 0 {
            let text = format!("{} requests were never answered", self.clients.waiting());
            self.violation(PROGRESS, text);
        }
        let unconfirmed = self.clients.unconfirmed(&mut self.committed);
        self.report.violations.extend(unconfirmed);
        let end = self.leader().and_then(|id| self.node(id)).and_then(|node| {
            let mut end = Final { at: node.moment()?.now, ..Final::default() };
            let listed = node.replica().each().try_for_each(|shard| list(shard, true, &mut end));
            listed.ok().map(|()| end)
        });
        let judged = self.clients.judge(end);
        self.report.violations.extend(judged);
        self.report.violations.truncate(VIOLATIONS_MAX);
    }

    /// From one node to three, and from three to five.
    fn grow(&mut self) {
        let Some(first) = self.add_machine(true) else { return };
        let joined = self.node_started(first);
        if !joined {
            return self.violation(PROGRESS, "the first node does not start");
        }
        if let Some(node) = self.node(first) {
            let applied = node.applied().map_or(0, |id| id.index);
            if let Ok(committed) = Committed::new(self.plan.shards, applied) {
                self.committed = committed;
            }
        }
        self.desired.insert(first);
        if !self.await_leader(PROGRESS_WITHIN) {
            return self.violation(PROGRESS, "the first node does not lead");
        }
        let configure = Command::Configure(self.plan.settings.clone());
        self.call(ClientCall { command: configure, wait: 0 });
        self.pass(Duration::from_secs(1));
        for size in [3, 5] {
            while size <= self.report.nodes && (self.desired.len() as u64) < size {
                let Some(id) = self.add_machine(false) else { return };
                self.desired.insert(id);
            }
            self.settle();
        }
    }

    /// Boots a new machine that is to join, or is the first.
    pub(super) fn add_machine(&mut self, first: bool) -> Option<NodeId> {
        let id = self.next_id;
        self.next_id += 1;
        let most = self.drift * 1_000;
        let drift = self.rng.between(0, 2 * most) as i64 - most as i64;
        match Machine::new(&self.world, id, first, drift) {
            Ok(mut machine) => {
                machine.start(&self.world);
                self.machines.insert(id, machine);
                Some(id)
            }
            Err(error) => {
                self.violation(STOPPED, format!("a new directory cannot be made: {error}"));
                None
            }
        }
    }

    pub(super) fn node_started(&mut self, id: NodeId) -> bool {
        let end = self.world.executor.time() + PROGRESS_WITHIN;
        while self.node(id).is_none() && self.world.executor.time() < end && !self.is_over() {
            self.pass(Duration::from_millis(20));
        }
        self.node(id).is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        !self.report.violations.is_empty()
    }

    pub(super) fn violation(&mut self, rule: u8, text: impl Into<String>) {
        let time = self.world.executor.time().as_secs_f64();
        let text = format!("after {time:.3} s: {}", text.into());
        self.report.violations.push(Violation::new(rule, text));
    }

    /// Counts something that went wrong.
    pub(super) fn count(&mut self, fault: &'static str) {
        *self.report.faults.entry(fault).or_default() += 1;
    }

    pub(super) fn node(&self, id: NodeId) -> Option<Node> {
        self.machines.get(&id).and_then(Machine::node)
    }

    /// All nodes that are up.
    pub(super) fn nodes(&self) -> Vec<(NodeId, Node)> {
        let up = |(id, machine): (&NodeId, &Machine)| Some((*id, machine.node()?));
        self.machines.iter().filter_map(up).collect()
    }

    /// The leader that accepts requests; the latest, if several believe that.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let ready = self.nodes().into_iter().filter_map(|(id, node)| {
            let ready = self.world.executor.with_owner(Some(id), || node.is_ready());
            ready.then(|| (node.raft().metrics().borrow().current_term, id))
        });
        ready.max().map(|(_, id)| id)
    }

    pub(super) fn await_leader(&mut self, within: Duration) -> bool {
        let end = self.world.executor.time() + within;
        while self.leader().is_none() && self.world.executor.time() < end && !self.is_over() {
            self.pass(Duration::from_millis(50));
        }
        self.leader().is_some()
    }

    /// Sends a request: mostly to the leader, sometimes to any node.
    pub(super) fn call(&mut self, call: ClientCall) {
        let up = self.nodes();
        let leader = self.leader().filter(|_| self.rng.chance(90));
        let any = self.rng.pick(&up).map(|(id, _)| *id);
        let Some(id) = leader.or(any) else { return };
        self.call_node(id, call);
    }

    /// Lets the cluster and its clients work for some time.
    pub(super) fn pass(&mut self, duration: Duration) {
        let end = self.world.executor.time() + duration;
        while self.world.executor.time() < end && !self.is_over() {
            for _ in 0..self.rng.between(0, self.burst) {
                let wall = self.machines.values().next().map_or(0, |machine| machine.clock.wall());
                let call = self.clients.workload.next(wall);
                self.call(call);
            }
            let left = end.saturating_sub(self.world.executor.time());
            let step = Duration::from_micros(self.rng.between(500, 50_000)).min(left);
            let until = self.world.executor.time() + step;
            self.run_until(until, || false);
            self.check_step();
        }
    }

    pub(super) fn call_node(&mut self, id: NodeId, call: ClientCall) {
        let Some(machine) = self.machines.get(&id) else { return };
        let Some(node) = machine.node() else { return };
        let process = (id, machine.incarnation);
        let known = self.is_known();
        let executor = self.world.executor.clone();
        let (clients, committed) = (&mut self.clients, &self.committed);
        executor.with_owner(Some(id), || clients.call(call, &node, process, committed, known));
    }

    /// Whether clients may know of everything that is committed: the proposer of the last entry has answered it. Until
    /// then, perhaps only other nodes have applied the entry, and those do not answer it.
    fn is_known(&self) -> bool {
        self.committed.last_proposer().is_none_or(|((id, incarnation), index)| {
            let machine = self.machines.get(&id).filter(|it| it.incarnation == incarnation);
            let applied = machine.and_then(Machine::node).and_then(|node| node.applied());
            applied.is_some_and(|applied| applied.index >= index)
        })
    }

    /// Kills a process or cuts the power of its machine.
    pub(super) fn crash(&mut self, id: NodeId, power_cut: bool) {
        if let Some(machine) = self.machines.get_mut(&id) {
            let was_running = machine.is_running();
            machine.crash(&self.world, power_cut);
            if was_running {
                self.count(if power_cut { "machine rebooted" } else { "process killed" });
            }
        }
    }

    /// Takes a machine away, with its disk.
    pub(super) fn take_away(&mut self, id: NodeId) {
        self.crash(id, true);
        if let Some(machine) = self.machines.remove(&id) {
            self.disks.lose(&machine);
        }
        self.desired.remove(&id);
        self.count("disk wiped");
    }
}
