//! One run of a cluster: the seed decides everything, and always the same.
//!
//! A cluster grows from one node to three or five. Then come episodes, in which clients work while something goes wrong,
//! each followed by calm: everything is repaired, and within ten seconds the cluster has to work again and all nodes
//! have to agree. All the time the checkers look.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use codeq_core::command::{Command, Millis};
use codeq_engine::Durability;
use codeq_engine::clock::Clock;
use codeq_raft::fault::Fault;
use codeq_raft::node::{Node, StartError, Timing};
use codeq_raft::runtime;
use codeq_raft::types::{Entry, NodeId};
use openraft::storage::RaftLogReader;

use super::bus::{Network, Weather};
use super::clients::{Clients, Counts};
use super::committed::Committed;
use super::executor::Executor;
use super::node::{Machine, World, member};
use super::rules::{ANSWERS, PROGRESS, RAFT, Rules, STOPPED};
use crate::disk::Faults;
use crate::ending::list;
use crate::invariants::{Violation, check_all};
use crate::ledger::Final;
use crate::plan::Plan;
use crate::rng::{Rng, mix};
use crate::workload::ClientCall;

/// Within this time after a repair the cluster works again.
pub(super) const PROGRESS_WITHIN: Duration = Duration::from_secs(10);
/// A run ends after this many violations: one cause has many effects.
const VIOLATIONS_MAX: usize = 6;
/// Steps between two checks of all rows of a node.
const CHECK_EVERY: u64 = 25;

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
    /// Snapshots that nodes installed.
    pub snapshots: u64,
    /// What went wrong, by its name.
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

    /// A run in which the leader never changed proves nothing about a cluster.
    pub fn counts_as_run(&self) -> bool {
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
    /// By how much clocks are off at most, in parts per million.
    drift: u64,
    pub(super) report: Report,
    /// Requests per step.
    pub(super) burst: u64,
    /// Whether crashed nodes are started again.
    pub(super) supervised: bool,
    /// A node whose disk has lied: it should refuse to start.
    pub(super) expelled: Option<NodeId>,
    /// Up to which entry each process was compared with the reference.
    compared: BTreeMap<NodeId, (u64, u64)>,
    operating: Arc<AtomicBool>,
    steps: u64,
}

impl Run {
    fn new(seed: u64, options: &Options, executor: &Executor) -> Run {
        let mut plan = Plan::of(seed);
        plan.durability = Durability::Fsync;
        plan.preload = 0;
        plan.lease = plan.lease.min(20_000);
        let mut rng = Rng::new(seed).fork("cluster");
        let nodes = options.nodes.unwrap_or(if seed.is_multiple_of(3) { 5 } else { 3 });
        let engine = codeq_engine::Options {
            shards: Some(plan.shards),
            durability: plan.durability,
            settings: plan.settings.clone(),
            segment_bytes: plan.segment_bytes,
            memtable_bytes: plan.memtable_bytes.max(16 << 10),
            checkpoint_log_bytes: u64::MAX,
            verify_bytes_max: codeq_engine::options::VERIFY_BYTES_MAX,
            scrub_every: codeq_engine::options::SCRUB_EVERY,
            store: codeq_store::Options {
                owner: None,
                cache_bytes: 1 << 20,
                sync_every: 64 << 10,
                rewrite_slack: 256 << 10,
                rewrite_step: 64 << 10,
            },
            observer: codeq_engine::SharedObserver::default(),
        };
        // Good clocks are off by less than 0.1 %, and nodes allow for that; some seeds have bad ones.
        let drift = if rng.chance(33) { 5_000 } else { 1_000 };
        let network = Network::new(executor, seed, Weather::FAIR);
        let world = World {
            executor: executor.clone(),
            network,
            options: engine,
            timing: Timing::default(),
            fault: options.fault,
            seed,
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
            operating: Arc::default(),
            steps: 0,
        }
    }

    fn play(&mut self) {
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

    fn finish(mut self, options: &Options) -> Report {
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

    fn node_started(&mut self, id: NodeId) -> bool {
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
        let Some(machine) = self.machines.get(&id) else { return };
        let Some(node) = machine.node() else { return };
        let process = (id, machine.incarnation);
        let executor = self.world.executor.clone();
        let (clients, committed) = (&mut self.clients, &self.committed);
        executor.with_owner(Some(id), || clients.call(call, &node, process, committed));
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
            self.world.executor.run_for(step);
            self.look();
        }
    }

    /// Looks at everything after a step.
    fn look(&mut self) {
        self.steps += 1;
        for panicked in self.world.executor.take_panics() {
            let owner =
                panicked.owner.map_or("the simulator".to_owned(), |id| format!("node {id}"));
            self.violation(RAFT, format!("a task of {owner} panicked: {}", panicked.text));
        }
        self.look_after_processes();
        self.read_logs();
        let mut found = Vec::new();
        for (id, node) in self.nodes() {
            let Some(machine) = self.machines.get(&id) else { continue };
            self.rules.look(machine, &node, &self.committed, false, &mut found);
        }
        if let Some(leader) = self.leader()
            && let Some(node) = self.node(leader)
            && let Some(moment) = node.moment()
        {
            let time = self.world.executor.time();
            self.rules.look_at_time(moment.now, time, &self.machines, &mut found);
            self.clients.look_for_callbacks(&node, moment.now);
        }
        self.clients.collect(&mut self.committed, &mut found);
        for violation in found {
            self.violation(violation.invariant, violation.text);
        }
        if self.steps.is_multiple_of(CHECK_EVERY) {
            let up = self.nodes();
            if let Some((id, node)) = self.rng.pick(&up) {
                self.check_rows(*id, node);
            }
        }
        self.operate();
    }

    /// Restarts processes that have died, and reports those that had no reason to.
    fn look_after_processes(&mut self) {
        let ids: Vec<NodeId> = self.machines.keys().copied().collect();
        for id in ids {
            let Some(machine) = self.machines.get_mut(&id) else { continue };
            let excused = machine.excused || machine.disk.is_dead();
            if let Some(error) = machine.take_refusal() {
                if self.expelled == Some(id) {
                    // As it should.
                } else if excused {
                    self.crash(id, true);
                } else {
                    self.refused(id, &error);
                }
            }
            let Some(machine) = self.machines.get_mut(&id) else { continue };
            let stopped = machine
                .node()
                .and_then(|node| node.raft().metrics().borrow().running_state.clone().err());
            if machine.disk.is_dead() {
                self.count("power cut");
                self.crash(id, true);
            } else if let Some(error) = stopped {
                if !excused {
                    self.violation(STOPPED, format!("node {id} stopped: {error}"));
                }
                self.count("stopped by its disk");
                self.crash(id, false);
            }
            if self.supervised
                && let Some(machine) = self.machines.get_mut(&id)
            {
                machine.start(&self.world);
            }
        }
    }

    fn refused(&mut self, id: NodeId, error: &StartError) {
        self.violation(STOPPED, format!("node {id} does not start: {error}"));
    }

    /// Kills a process or cuts the power of its machine.
    pub(super) fn crash(&mut self, id: NodeId, power_cut: bool) {
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.crash(&self.world, power_cut);
        }
    }

    /// Reads what nodes have applied since the last time: the reference follows, and must agree.
    fn read_logs(&mut self) {
        let mut found = Vec::new();
        // A node may have entries that another one has purged, so look twice.
        for _ in 0..2 {
            for (id, node) in self.nodes() {
                if let Err(violation) = self.read_log(id, &node) {
                    found.push(violation);
                }
            }
        }
        for violation in found {
            self.violation(violation.invariant, violation.text);
        }
    }

    fn read_log(&mut self, id: NodeId, node: &Node) -> Result<(), Violation> {
        let Some(machine) = self.machines.get(&id) else { return Ok(()) };
        let applied = node.applied().map_or(0, |id| id.index);
        let start = (machine.incarnation, 0);
        let (_, compared) =
            self.compared.get(&id).copied().filter(|it| it.0 == start.0).unwrap_or(start);
        if applied <= compared {
            return Ok(());
        }
        let mut log = node.log().clone();
        let read = log.try_get_log_entries(compared + 1..applied + 1);
        let mut read = Box::pin(read);
        let entries: Vec<Entry> = match read.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(Ok(entries)) => entries,
            // Purged meanwhile, or the disk is dead.
            Poll::Ready(Err(_)) | Poll::Pending => Vec::new(),
        };
        let mut last = compared;
        let bad = |error: codeq_core::kv::KvError| Violation::new(14, error.to_string());
        for entry in &entries {
            let index = entry.log_id.index;
            if index > self.committed.applied() + 1 {
                break;
            }
            let before = self.committed.applied();
            if let Some(violation) = self.committed.note(id, entry).map_err(bad)? {
                return Err(violation);
            }
            if self.committed.applied() > before {
                self.clients.look_at(&self.committed);
            }
            if let Some(digests) = self.committed.digests(index)
                && let Err(error) = node.replica().compare(index, digests)
            {
                return Err(Violation::new(14, format!("node {id}: {error}")));
            }
            last = index;
        }
        if last == compared && applied <= self.committed.applied() {
            // The rows came from another node, so there is no log of them.
            last = applied;
        }
        self.compared.insert(id, (start.0, last));
        Ok(())
    }

    /// Checks all rows of a node, and compares them with the reference if it has applied as much.
    fn check_rows(&mut self, id: NodeId, node: &Node) {
        let mut found = Vec::new();
        let replica = node.replica();
        for shard in replica.each() {
            let data = shard.data().read();
            match check_all(&data.state, &data.store) {
                Ok(violations) => found.extend(violations),
                Err(error) => found.push(Violation::new(3, format!("node {id}: {error}"))),
            }
        }
        // After a restart, a shard may be ahead of the others.
        let ahead = replica
            .each()
            .any(|shard| shard.data().read().store.position() > self.committed.applied());
        if replica.applied() == self.committed.applied() && !ahead {
            match self.committed.compare(&format!("node {id}"), replica.each()) {
                Ok(violations) => found.extend(violations),
                Err(error) => found.push(Violation::new(14, format!("node {id}: {error}"))),
            }
        }
        drop(replica);
        for violation in found {
            self.violation(violation.invariant, violation.text);
        }
    }

    /// The operator: makes the voters what they should be, one step after the other.
    fn operate(&mut self) {
        if self.operating.load(Ordering::Relaxed) || !self.steps.is_multiple_of(8) {
            return;
        }
        let Some(leader) = self.leader() else { return };
        let Some(node) = self.node(leader) else { return };
        let (known, voters) = members_of(&node);
        if voters == self.desired {
            return;
        }
        let missing = self.desired.iter().find(|id| !known.contains(id)).copied();
        let desired = self.desired.clone();
        let done = Operating::begin(&self.operating);
        self.world.executor.spawn_on(Some(leader), async move {
            let limit = Duration::from_secs(10);
            // A failure is tried again.
            match missing {
                Some(id) => {
                    let added = node.raft().add_learner(id, member(id), true);
                    drop(runtime::timeout(limit, added).await);
                }
                None => {
                    let changed = node.raft().change_membership(desired, false);
                    drop(runtime::timeout(limit, changed).await);
                }
            }
            drop(done);
        });
    }

    /// Repairs everything; then the cluster must work within ten seconds, and all nodes must agree soon.
    pub(super) fn settle(&mut self) {
        if self.is_over() {
            return;
        }
        self.world.network.heal();
        self.world.network.set_weather(Weather::FAIR);
        self.supervised = true;
        for machine in self.machines.values_mut() {
            machine.disk.plan(Faults::default());
            machine.clock.set(0);
        }
        self.pass(Duration::from_millis(1));
        if !self.await_acknowledgement(PROGRESS_WITHIN) {
            return self.stuck("no request was acknowledged within ten seconds of a repair");
        }
        // Now and then nobody asks for anything, and all nodes come to the same end.
        let burst = std::mem::replace(&mut self.burst, 0);
        let end = self.world.executor.time() + PROGRESS_WITHIN * 3;
        while !self.agree() && self.world.executor.time() < end && !self.is_over() {
            self.pass(Duration::from_millis(100));
        }
        self.burst = burst;
        if !self.agree() && !self.is_over() {
            return self.stuck("the nodes do not agree thirty seconds after a repair");
        }
        let mut found = Vec::new();
        for (id, node) in self.nodes() {
            self.check_rows(id, &node);
            if let Some(machine) = self.machines.get(&id) {
                self.rules.look(machine, &node, &self.committed, true, &mut found);
            }
        }
        for violation in found {
            self.violation(violation.invariant, violation.text);
        }
    }

    fn stuck(&mut self, text: &str) {
        let describe = |(id, machine): (&NodeId, &Machine)| match machine.node() {
            Some(node) => {
                let (applied, metrics) = (node.applied(), node.raft().metrics().borrow().clone());
                format!("{id}: {metrics}, rows at {}", applied.map_or(0, |id| id.index))
            }
            None => format!("{id}: down"),
        };
        let nodes: Vec<String> = self.machines.iter().map(describe).collect();
        let text = format!(
            "{text}; {} entries are committed, desired {:?}; {}",
            self.committed.applied(),
            self.desired,
            nodes.join("; ")
        );
        self.violation(PROGRESS, text);
    }

    /// Whether some request is acknowledged in time.
    pub(super) fn await_acknowledgement(&mut self, within: Duration) -> bool {
        let end = self.world.executor.time() + within;
        let before = self.clients.counts.acked;
        while self.world.executor.time() < end && !self.is_over() {
            if let Some(leader) = self.leader() {
                let call = self.clients.workload.simple();
                self.call_node(leader, call);
            }
            self.pass(Duration::from_millis(50));
            if self.clients.counts.acked > before {
                return true;
            }
        }
        self.is_over()
    }

    pub(super) fn call_node(&mut self, id: NodeId, call: ClientCall) {
        let Some(machine) = self.machines.get(&id) else { return };
        let Some(node) = machine.node() else { return };
        let process = (id, machine.incarnation);
        let executor = self.world.executor.clone();
        let (clients, committed) = (&mut self.clients, &self.committed);
        executor.with_owner(Some(id), || clients.call(call, &node, process, committed));
    }

    /// Whether all voters are who they should be and have applied everything.
    fn agree(&self) -> bool {
        let committed = self.committed.applied();
        let Some(leader) = self.leader().and_then(|id| self.node(id)) else { return false };
        let last = leader.raft().metrics().borrow().last_log_index.unwrap_or(0);
        members_of(&leader).1 == self.desired
            && last == committed
            && self.desired.iter().all(|id| {
                let node = self.node(*id);
                node.is_some_and(|node| node.applied().is_some_and(|at| at.index == committed))
            })
    }
}

/// All nodes that a node knows, and the voters, if they are not being changed.
fn members_of(node: &Node) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
    let metrics = node.raft().metrics().borrow().clone();
    let membership = metrics.membership_config.membership();
    let known = membership.nodes().map(|(id, _)| *id).collect();
    match &membership.get_joint_config()[..] {
        [voters] => (known, voters.clone()),
        _ => (known, BTreeSet::new()),
    }
}

/// An operator is at work until this is dropped.
struct Operating(Arc<AtomicBool>);

impl Operating {
    fn begin(flag: &Arc<AtomicBool>) -> Operating {
        flag.store(true, Ordering::Relaxed);
        Operating(Arc::clone(flag))
    }
}

impl Drop for Operating {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
