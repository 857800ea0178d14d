//! The checks after every step: processes, what they have applied, Raft's rules, time, answers and rows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use codeq_raft::node::{Node, StartError};
use codeq_raft::types::{Entry, LogId, NodeId};
use openraft::storage::RaftLogReader;

use super::committed::Members;
use super::rules::{RAFT, STOPPED};
use super::run::Run;
use crate::invariants::{Violation, check_shards};

/// Steps between two checks of all rows of a node.
const CHECK_EVERY: u64 = 25;

impl Run {
    /// Runs until a condition holds or the time is up. Whenever a node is the first to apply an entry, everything stops: at
    /// that very moment a majority must have it on disk.
    pub(super) fn run_until(&mut self, end: Duration, mut done: impl FnMut() -> bool) -> bool {
        let executor = self.world.executor.clone();
        loop {
            let nodes = self.nodes();
            let highest = || nodes.iter().filter_map(|(_, node)| node.applied()).max();
            let (known, mut is_done) = (self.highest_applied, false);
            executor.run_until(end, || {
                is_done = done();
                is_done || highest() > known
            });
            self.highest_applied = highest().max(known);
            if self.highest_applied > known {
                self.read_logs();
            }
            if is_done || executor.time() >= end || self.is_over() {
                return is_done;
            }
        }
    }

    /// Runs all checks after a step.
    pub(super) fn check_step(&mut self) {
        self.steps += 1;
        for panicked in self.world.executor.take_panics() {
            let owner =
                panicked.owner.map_or("the simulator".to_owned(), |id| format!("node {id}"));
            self.violation(RAFT, format!("a task of {owner} panicked: {}", panicked.text));
        }
        self.look_after_processes();
        self.read_logs();
        let mut found = Vec::new();
        let mut alive = BTreeSet::new();
        for (id, node) in self.nodes() {
            let Some(machine) = self.machines.get(&id) else { continue };
            alive.insert((id, machine.incarnation));
            self.rules.check_node(machine, &node, &self.committed, &mut found);
            let snapshot = node.raft().metrics().borrow().snapshot.map_or(0, |id| id.index);
            let process = (id, machine.incarnation);
            found.extend(self.last_reported.check_reported(
                process,
                &machine.observed,
                snapshot,
                &self.committed,
            ));
            if let Some(indexes) = machine.take_indexes() {
                self.rules.check_indexes(id, &indexes, &mut found);
            }
        }
        if let Some(leader) = self.leader()
            && let Some(node) = self.node(leader)
            && let Some(moment) = node.moment()
        {
            let time = self.world.executor.time();
            let vote = node.raft().metrics().borrow().vote;
            if vote.committed && vote.leader_id.node_id == leader {
                let by = (vote.leader_id.term, leader);
                self.rules.check_time(by, moment.now, time, &self.committed, &mut found);
            }
            self.clients.look_for_callbacks(&node, moment.now);
        }
        self.clients.collect(&alive, &mut self.committed, &mut found);
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
                    // It must refuse: its disk reported syncs that it did not make.
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

    /// Reads what nodes have applied since the last time: the reference follows, and must agree.
    fn read_logs(&mut self) {
        let mut found = Vec::new();
        // A node may have entries that another one has purged, so look twice.
        for _ in 0..2 {
            for (id, node) in self.nodes() {
                if let Err(violation) = self.read_log(id, &node, &mut found) {
                    found.push(violation);
                }
            }
        }
        for violation in found {
            self.violation(violation.invariant, violation.text);
        }
    }

    fn read_log(
        &mut self,
        id: NodeId,
        node: &Node,
        found: &mut Vec<Violation>,
    ) -> Result<(), Violation> {
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
                found.extend(self.clients.check_entry(&self.committed));
                found.extend(self.check_disks(entry.log_id));
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

    /// Checks that an entry is on the disks of a majority, either of the last committed members or of later ones that a
    /// leader may already be using.
    fn check_disks(&self, entry: LogId) -> Option<Violation> {
        let committed = self.committed.members();
        let since = committed.map(|(id, _)| *id);
        let mut members: Vec<Members> =
            committed.map(|(_, sets)| sets.clone()).into_iter().collect();
        for (_, node) in self.nodes() {
            let known = Arc::clone(&node.raft().metrics().borrow().membership_config);
            let sets = known.membership().get_joint_config();
            if *known.log_id() > since && !members.contains(sets) {
                members.push(sets.clone());
            }
        }
        self.disks.check(entry, &self.machines, &members, self.world.options.log())
    }

    /// Checks all rows of a node, and compares them with the reference if it has applied as much.
    pub(super) fn check_rows(&mut self, id: NodeId, node: &Node) {
        let replica = node.replica();
        let mut found = check_shards(&format!("node {id}"), replica.each());
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
}
