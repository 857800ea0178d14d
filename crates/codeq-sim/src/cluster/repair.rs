//! The operator, who changes the members, and the calm after each episode: everything is repaired, and the cluster must
//! work again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use codeq_raft::node::Node;
use codeq_raft::runtime;
use codeq_raft::types::NodeId;

use super::network::NetworkConditions;
use super::node::{Machine, member};
use super::rules::PROGRESS;
use super::run::Run;
use crate::disk::Faults;

/// The cluster must work again within this time after a repair.
pub(super) const PROGRESS_WITHIN: Duration = Duration::from_secs(10);

impl Run {
    /// The operator: makes the voters what they should be, one step after the other.
    pub(super) fn operate(&mut self) {
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
        self.count(if missing.is_some() { "node added" } else { "voters changed" });
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
        self.world.network.set_conditions(NetworkConditions::GOOD);
        self.supervised = true;
        for machine in self.machines.values_mut() {
            machine.disk.plan(Faults::default());
            machine.clock.set(0);
            self.world.executor.resume(machine.id);
        }
        self.pass(Duration::from_millis(1));
        if !self.await_acknowledgement(PROGRESS_WITHIN) {
            return self.stuck("no request was acknowledged within ten seconds of a repair");
        }
        // No requests meanwhile, so that all nodes can reach the same last entry.
        let burst = std::mem::replace(&mut self.burst, 0);
        let end = self.world.executor.time() + PROGRESS_WITHIN * 3;
        while !self.agree() && self.world.executor.time() < end && !self.is_over() {
            self.pass(Duration::from_millis(100));
        }
        self.burst = burst;
        if !self.agree() && !self.is_over() {
            return self.stuck("the nodes do not agree thirty seconds after a repair");
        }
        for (id, node) in self.nodes() {
            self.check_rows(id, &node);
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
            "{text}; {} entries are committed, the voters should be {:?}; {}",
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
