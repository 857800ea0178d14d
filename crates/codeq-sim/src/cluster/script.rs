//! Scripted runs: a test says step by step what happens to a cluster, and what it expects.
//!
//! All checkers of a run are active throughout, and at the end the cluster must work and all nodes must agree. A script
//! ends at the first violation; the report says which.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use codeq_core::codec::read_record;
use codeq_core::command::Command;
use codeq_core::id::TaskId;
use codeq_core::read::Reader;
use codeq_core::settings::Settings;
use codeq_raft::fault::Fault;
use codeq_raft::node::{Node, StartError};
use codeq_raft::types::{Entry, NodeId};
use openraft::EntryPayload;
use openraft::storage::RaftLogReader;

use super::committed::Committed;
use super::executor::Executor;
use super::node::{Machine, Observers};
use super::repair::PROGRESS_WITHIN;
use super::rules::{RAFT, Rules, SCRIPT};
use super::run::{Options, Report, Run};
use super::script_clients::Reads;
use crate::disk::{Class, Faults};
use crate::plan::Plan;

/// How often a script checks answers and reads.
const SLICE: Duration = Duration::from_millis(20);

/// What a script starts with.
#[derive(Clone)]
pub struct Setup {
    /// Number of nodes, from 1.
    pub nodes: u64,
    /// Number of shards.
    pub shards: u16,
    /// Decides everything that the script does not.
    pub seed: u64,
    /// A bug to plant.
    pub fault: Option<Fault>,
    /// By how many parts per million the clocks of the nodes run too fast, in order; the others are right.
    pub drifts: Vec<i64>,
    /// Memory at which a shard is checkpointed.
    pub memtable_bytes: usize,
    /// Makes an observer for every start of a node.
    pub observers: Option<Observers>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            nodes: 3,
            shards: 1,
            seed: 1,
            fault: None,
            drifts: Vec::new(),
            memtable_bytes: 1 << 20,
            observers: None,
        }
    }
}

/// Runs a script on a new cluster, then repairs everything and waits until all nodes agree.
pub fn play(setup: &Setup, script: impl FnOnce(&mut Script)) -> Report {
    let executor = Executor::new(setup.seed);
    let _entered = executor.enter();
    let options = Options { nodes: Some(setup.nodes), fault: setup.fault, keep_ledger: false };
    let mut plan = Plan::of(setup.seed);
    plan.shards = setup.shards;
    plan.settings = Settings::default();
    plan.memtable_bytes = setup.memtable_bytes;
    let mut run = Run::of(plan, setup.seed, &options, &executor);
    run.burst = 0;
    run.clients.heard = Some(BTreeMap::new());
    run.world.observers = setup.observers.clone();
    run.drift = setup.drifts.iter().map(|ppm| ppm.unsigned_abs()).max().unwrap_or(0);
    run.rules = Rules::new(run.drift);
    let mut playing = Script { run, drifts: setup.drifts.clone(), reads: None };
    let played = catch_unwind(AssertUnwindSafe(|| {
        playing.grow(setup);
        script(&mut playing);
        playing.settle();
    }));
    let mut run = playing.run;
    if let Err(panic) = played
        && !panic.is::<Over>()
    {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        run.violation(RAFT, format!("panicked: {}", text.unwrap_or_default()));
    }
    run.finish(&options)
}

/// Unwinds to the end of a script: something is wrong, and the report says so already.
struct Over;

/// A cluster that a script controls.
pub struct Script {
    pub(super) run: Run,
    drifts: Vec<i64>,
    pub(super) reads: Option<Reads>,
}

/// The beginning.
impl Script {
    fn grow(&mut self, setup: &Setup) {
        let first = self.add_machine(true);
        let started = self.run.node_started(first);
        self.expect(started, "the first node starts");
        let applied = self.applied(first);
        match Committed::new(setup.shards, applied) {
            Ok(committed) => self.run.committed = committed,
            Err(error) => self.fail(&error.to_string()),
        }
        self.run.desired.insert(first);
        let leads = self.run.await_leader(PROGRESS_WITHIN);
        self.expect(leads, "the first node leads");
        while (self.run.desired.len() as u64) < setup.nodes {
            self.add_node();
        }
        self.settle();
    }

    fn add_machine(&mut self, first: bool) -> NodeId {
        let id = self.run.next_id;
        self.run.next_id += 1;
        let ppm = self.drifts.get(id as usize - 1).copied().unwrap_or(0);
        match Machine::new(&self.run.world, id, first, ppm * 1_000) {
            Ok(mut machine) => {
                machine.start(&self.run.world);
                self.run.machines.insert(id, machine);
            }
            Err(error) => self.fail(&format!("a new directory cannot be made: {error}")),
        }
        id
    }

    /// Boots another machine that is to join; the operator makes it a voter.
    pub fn add_node(&mut self) -> NodeId {
        let id = self.add_machine(false);
        self.run.desired.insert(id);
        id
    }

    /// Changes the settings in the files of all nodes, which a node reads when it starts.
    pub fn set_file_settings(&mut self, settings: Settings) {
        self.run.world.options.settings = settings;
    }
}

/// Expectations.
impl Script {
    /// Ends the script if something is wrong.
    fn check(&self) {
        if self.run.is_over() {
            resume_unwind(Box::new(Over));
        }
    }

    /// Ends the script: something is wrong.
    pub fn fail(&mut self, text: &str) -> ! {
        if !self.run.is_over() {
            self.run.violation(SCRIPT, text);
        }
        resume_unwind(Box::new(Over))
    }

    /// Ends the script unless this holds.
    pub fn expect(&mut self, holds: bool, text: &str) {
        self.check();
        if !holds {
            self.fail(&format!("does not hold: {text}"));
        }
    }

    /// Repairs everything: the cluster must work within ten seconds, and then all nodes must agree.
    pub fn settle(&mut self) {
        self.run.settle();
        self.check();
    }
}

/// Time.
impl Script {
    /// The true time since the start.
    pub fn time(&self) -> Duration {
        self.run.world.executor.time()
    }

    /// Lets some time pass.
    pub fn pass(&mut self, duration: Duration) {
        let end = self.time() + duration;
        loop {
            let left = end.saturating_sub(self.time());
            self.run.pass(left.min(SLICE));
            self.read_on();
            self.check();
            if self.time() >= end {
                return;
            }
        }
    }

    /// Lets much time pass, without background clients and with few checks.
    pub fn pass_idly(&mut self, duration: Duration) {
        let second = Duration::from_secs(1);
        let (burst, end) = (std::mem::take(&mut self.run.burst), self.time() + duration);
        while self.time() < end {
            self.run.world.executor.run_for(second);
            self.pass(Duration::from_micros(10));
        }
        self.run.burst = burst;
    }

    /// Lets time pass until something holds. Checks after every slice.
    pub fn pass_until(
        &mut self,
        what: &str,
        within: Duration,
        mut holds: impl FnMut(&mut Script) -> bool,
    ) {
        let end = self.time() + within;
        while !holds(self) {
            if self.time() >= end {
                self.fail(&format!("not within {within:?}: {what}"));
            }
            self.pass(SLICE / 10);
        }
    }

    /// Stops at the very step after which something holds.
    pub fn stop_when(&mut self, what: &str, within: Duration, holds: impl Fn(&Script) -> bool) {
        let (executor, end) = (self.run.world.executor.clone(), self.time() + within);
        if !executor.run_until(end, || holds(self)) {
            self.fail(&format!("not within {within:?}: {what}"));
        }
    }
}

/// What goes wrong.
impl Script {
    /// Cuts a node off from all others.
    pub fn isolate(&mut self, id: NodeId) {
        let all: Vec<NodeId> = self.run.machines.keys().copied().collect();
        self.run.world.network.part(&[id], &all);
    }

    /// Cuts both directions between two nodes.
    pub fn part(&mut self, one: NodeId, other: NodeId) {
        self.run.world.network.part(&[one], &[other]);
    }

    /// Cuts one direction.
    pub fn cut(&mut self, from: NodeId, to: NodeId) {
        self.run.world.network.cut(from, to);
    }

    /// Makes one direction slower.
    pub fn slow_down(&mut self, from: NodeId, to: NodeId, by: Duration) {
        self.run.world.network.slow_down(from, to, by.as_micros() as u64);
    }

    /// Repairs the network.
    pub fn heal(&mut self) {
        self.run.world.network.heal();
    }

    /// Kills the process of a node. It stays down until [`Script::start`] or the end.
    pub fn kill(&mut self, id: NodeId) {
        self.run.supervised = false;
        self.run.crash(id, false);
    }

    /// Cuts the power of a machine. It stays down until [`Script::start`] or the end.
    pub fn power_cut(&mut self, id: NodeId) {
        self.run.supervised = false;
        self.run.crash(id, true);
    }

    /// Stops all tasks of a node for a while. What is sent to it waits.
    pub fn suspend(&mut self, id: NodeId, duration: Duration) {
        self.run.world.executor.stall(id, duration);
    }

    /// Starts the process of a node again.
    pub fn start(&mut self, id: NodeId) {
        if let Some(machine) = self.run.machines.get_mut(&id) {
            machine.start(&self.run.world);
        }
    }

    /// Starts a node that must refuse, and says why it did.
    pub fn start_refused(&mut self, id: NodeId) -> StartError {
        self.start(id);
        let is_running =
            |script: &Script| script.run.machines.get(&id).is_some_and(Machine::is_running);
        let end = self.time() + PROGRESS_WITHIN;
        let executor = self.run.world.executor.clone();
        executor.run_until(end, || !is_running(self) || self.node(id).is_some());
        match self.run.machines.get(&id).and_then(Machine::take_refusal) {
            Some(error) => error,
            None => self.fail(&format!("node {id} starts, but must refuse")),
        }
    }

    /// Takes a machine away for good.
    pub fn remove(&mut self, id: NodeId) {
        self.run.crash(id, true);
        self.run.machines.remove(&id);
        self.run.desired.remove(&id);
    }

    /// Cuts the power of a machine at its `nth` change of the disk from now on. Then it starts again.
    pub fn cut_at_change(&mut self, id: NodeId, nth: u64) {
        self.run.supervised = true;
        if let Some(machine) = self.run.machines.get_mut(&id) {
            machine.plan(Faults { cut_at_change: Some(nth), ..Faults::default() });
        }
    }

    /// Cancels the planned faults of a node's disk that have not happened yet.
    pub fn spare_disk(&mut self, id: NodeId) {
        if let Some(machine) = self.run.machines.get_mut(&id) {
            machine.plan(Faults::default());
        }
    }

    /// From now on the disk of a node is full.
    pub fn fill_disk(&mut self, id: NodeId) {
        if let Some(machine) = self.run.machines.get_mut(&id) {
            let capacity = Some(machine.disk.used());
            machine.plan(Faults { capacity, ..Faults::default() });
        }
    }

    /// From now on the disk of a node reports its log as synced although it is not.
    pub fn lose_log_from_now(&mut self, id: NodeId) {
        if let Some(machine) = self.run.machines.get(&id) {
            machine.disk.lose_cache(Class::Log);
        }
    }

    /// Sets the wall clock of a node so that it is off by this many milliseconds.
    pub fn set_wall(&mut self, id: NodeId, ahead: i64) {
        if let Some(machine) = self.run.machines.get(&id) {
            machine.clock.set(ahead);
        }
    }

    /// Lets a node stand for election now, whatever its gates say.
    pub fn elect(&mut self, id: NodeId) {
        self.on(id, |node| async move { drop(node.raft().trigger().elect().await) });
    }

    /// Checkpoints a node and purges its log.
    pub fn compact(&mut self, id: NodeId) {
        self.on(id, |node| async move { node.compact().await });
    }

    /// Does something on a node, as one of its tasks.
    pub fn on<F>(&mut self, id: NodeId, task: impl FnOnce(Node) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(node) = self.run.node(id) {
            self.run.world.executor.spawn_on(Some(id), task(node));
        }
    }
}

/// What can be seen.
impl Script {
    /// All nodes that should be voters.
    pub fn members(&self) -> BTreeSet<NodeId> {
        self.run.desired.clone()
    }

    /// A node, if it is up.
    pub fn node(&self, id: NodeId) -> Option<Node> {
        self.run.node(id)
    }

    /// The leader that accepts requests, if there is one; the latest, if several believe that.
    pub fn current_leader(&self) -> Option<NodeId> {
        self.run.leader()
    }

    /// The leader, once there is one.
    pub fn leader(&mut self) -> NodeId {
        self.pass_until("there is a leader", PROGRESS_WITHIN, |script| {
            script.current_leader().is_some()
        });
        self.current_leader().unwrap_or_default()
    }

    /// The leader, once it is another node than `old`.
    pub fn next_leader(&mut self, old: NodeId) -> NodeId {
        let another = |script: &Script| script.current_leader().filter(|id| *id != old);
        self.pass_until("there is another leader", PROGRESS_WITHIN, |script| {
            another(script).is_some()
        });
        another(self).unwrap_or_default()
    }

    /// All members but the leader.
    pub fn followers(&mut self) -> Vec<NodeId> {
        let leader = self.leader();
        self.members().into_iter().filter(|id| *id != leader).collect()
    }

    /// The leader as votes name it, if this node believes that it leads.
    pub fn leads(&self, id: NodeId) -> Option<(u64, NodeId)> {
        let metrics = self.node(id)?.raft().metrics().borrow().clone();
        let vote = metrics.vote;
        let leads = metrics.state.is_leader() && vote.committed;
        leads.then_some((vote.leader_id.term, vote.leader_id.node_id))
    }

    /// Number of messages that nodes have sent each other.
    pub fn traffic(&self) -> u64 {
        self.run.world.network.traffic().sent
    }

    /// Drawn at each start of a node.
    pub fn incarnation(&self, id: NodeId) -> u64 {
        self.run.machines.get(&id).map_or(0, |machine| machine.incarnation)
    }

    /// Index of the last entry that a node has applied.
    pub fn applied(&self, id: NodeId) -> u64 {
        self.node(id).and_then(|node| node.applied()).map_or(0, |at| at.index)
    }

    /// Index of the last entry in the log of a node.
    pub fn last(&self, id: NodeId) -> u64 {
        self.node(id).and_then(|node| node.log().last_log_id()).map_or(0, |at| at.index)
    }

    /// Index of the last entry whose rows a node has checkpointed or got from another one.
    pub fn snapshot(&self, id: NodeId) -> u64 {
        let node = self.node(id);
        node.and_then(|node| node.raft().metrics().borrow().snapshot).map_or(0, |at| at.index)
    }

    /// Index of the last entry that a node no longer has in its log.
    pub fn purged(&self, id: NodeId) -> u64 {
        let node = self.node(id);
        node.and_then(|node| node.raft().metrics().borrow().purged).map_or(0, |at| at.index)
    }

    /// Index of the last entry that any node has applied.
    pub fn committed(&self) -> u64 {
        self.run.committed.applied()
    }

    /// The entries in the log of a node.
    pub fn entries(&self, id: NodeId) -> Vec<Entry> {
        let Some(node) = self.node(id) else { return Vec::new() };
        let mut log = node.log().clone();
        let mut read = Box::pin(log.try_get_log_entries(..));
        match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(entries) => entries.unwrap_or_default(),
            Poll::Pending => Vec::new(),
        }
    }

    /// The commands in the log of a node.
    pub fn commands(&self, id: NodeId) -> Vec<Command> {
        let records = self.entries(id).into_iter().flat_map(|entry| match entry.payload {
            EntryPayload::Normal(proposal) => proposal.records,
            _ => Vec::new(),
        });
        records.flat_map(|(_, record)| read_record(&record).map_or(Vec::new(), |it| it.1)).collect()
    }

    /// Whether the rows of a node have a task.
    pub fn has_task(&self, id: NodeId, task: TaskId) -> bool {
        let Some(node) = self.node(id) else { return false };
        let replica = node.replica();
        replica.each().any(|shard| {
            let data = shard.data().read();
            let reader = Reader { state: &data.state, kv: &data.store };
            reader.task(super::script_clients::TENANT, task).is_ok_and(|task| task.is_some())
        })
    }

    /// Number of leaders that were elected so far.
    pub fn elections(&self) -> u64 {
        self.run.rules.elections()
    }
}
