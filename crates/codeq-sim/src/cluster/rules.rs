//! What must hold in every cluster, whatever the queue does: Raft's rules, and that time never runs ahead.

use std::collections::BTreeMap;
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_raft::node::Node;
use codeq_raft::types::NodeId;

use super::committed::Committed;
use super::node::{EPOCH, Machine};
use crate::invariants::Violation;

/// The numbers of rules that are not in the contract: Raft's own.
pub const RAFT: u8 = 101;
/// Every answer is the reference's.
pub const ANSWERS: u8 = 102;
/// Once faults are over, or a majority is connected, the cluster works again.
pub const PROGRESS: u8 = 103;
/// A node stops only if its disk fails, and starts again.
pub const STOPPED: u8 = 104;
/// A follower that returns does not depose a healthy leader.
pub const STABLE: u8 = 105;

/// Milliseconds are rounded in several places.
const SLACK_MS: Millis = 10;

/// How old the latest note of the time may be.
const NOTE_AGE_MAX_MS: Millis = 20_000;

/// The leader as votes name it.
pub type Leader = (u64, NodeId);

#[derive(Default)]
struct Seen {
    incarnation: u64,
    vote: Leader,
    applied: u64,
    purged: u64,
}

struct TimeSample {
    true_time: Duration,
    engine: Millis,
    incarnations: BTreeMap<NodeId, u64>,
}

/// What was seen of the nodes so far.
#[derive(Default)]
pub struct Rules {
    /// By how much clocks are off at most, in parts per million.
    drift: u64,
    nodes: BTreeMap<NodeId, Seen>,
    leaders: BTreeMap<Leader, u64>,
    highest: Leader,
    time: Option<TimeSample>,
}

impl Rules {
    /// Rules for clocks that are off by up to this many parts per million.
    pub fn new(drift: u64) -> Rules {
        Rules { drift, ..Rules::default() }
    }

    /// Number of leaders that were elected.
    pub fn elections(&self) -> u64 {
        self.leaders.len() as u64
    }

    /// The highest vote that any node has given.
    pub fn highest(&self) -> Leader {
        self.highest
    }

    /// Looks at a node. `calm` means that nothing is going on.
    pub fn look(
        &mut self,
        machine: &Machine,
        node: &Node,
        committed: &Committed,
        calm: bool,
        found: &mut Vec<Violation>,
    ) {
        let metrics = node.raft().metrics().borrow().clone();
        let id = machine.id;
        let mut broken = |text: String| found.push(Violation::new(RAFT, text));
        let vote = (metrics.vote.leader_id.term, metrics.vote.leader_id.node_id);
        self.highest = self.highest.max(vote);
        let index = |id: &Option<codeq_raft::types::LogId>| id.map_or(0, |id| id.index);
        let (applied, snapshot) = (index(&metrics.last_applied), index(&metrics.snapshot));
        let (purged, last) = (index(&metrics.purged), metrics.last_log_index.unwrap_or(0));
        if vote == (0, 0) {
            // It has just started, and openraft has not said anything yet.
            return;
        }
        // While rows of another node are being installed, openraft counts them already.
        let ordered = purged <= snapshot && snapshot <= applied && applied <= last;
        if !ordered && calm {
            broken(format!(
                "node {id}: purged {purged} ≤ snapshot {snapshot} ≤ applied {applied} ≤ last {last} does not hold"
            ));
        }
        let seen = self.nodes.entry(id).or_default();
        if vote < seen.vote {
            broken(format!("node {id} voted for {:?} and later for {vote:?}", seen.vote));
        }
        if seen.incarnation == machine.incarnation {
            if applied < seen.applied {
                broken(format!("node {id} had applied {}, now {applied}", seen.applied));
            }
            if purged < seen.purged {
                broken(format!("node {id} had purged {}, now {purged}", seen.purged));
            }
        }
        *seen = Seen { incarnation: machine.incarnation, vote, applied, purged };
        if metrics.state.is_leader() && metrics.vote.committed {
            if vote.1 != id {
                broken(format!("node {id} leads with a vote for {vote:?}"));
            }
            let is_new = *self.leaders.entry(vote).or_insert(machine.incarnation);
            if is_new != machine.incarnation {
                broken(format!("node {id} leads again in term {} after a restart", vote.0));
            }
            // What was committed before the latest leader was elected is in its log.
            if vote == self.highest
                && let Some(last_committed) = committed.log_id(committed.applied())
                && (last_committed.leader_id.term, last_committed.leader_id.node_id) < vote
                && last < last_committed.index
            {
                broken(format!(
                    "node {id} leads in term {}, but its log ends at {last}, and {last_committed} is committed",
                    vote.0
                ));
            }
        }
    }

    /// Looks at the engine time of a leader that is ready. Time may stand still, but must not run ahead of the truth.
    pub fn look_at_time(
        &mut self,
        engine: Millis,
        true_time: Duration,
        machines: &BTreeMap<NodeId, Machine>,
        found: &mut Vec<Violation>,
    ) {
        let drift = self.drift * 11 / 10;
        let passed = |duration: Duration| {
            let millis = duration.as_millis() as u64;
            millis + millis * drift / 1_000_000 + SLACK_MS
        };
        let latest = EPOCH + passed(true_time);
        if engine > latest {
            let text = format!(
                "engine time is {} ms ahead of the truth: whatever lasts a while would end early",
                engine - latest
            );
            found.push(Violation::new(8, text));
        }
        let incarnations: BTreeMap<NodeId, u64> =
            machines.iter().map(|(id, machine)| (*id, machine.incarnation)).collect();
        if let Some(last) = &self.time {
            // If most nodes have restarted, nobody may know what time it was, and their wall clocks count.
            let same = |(id, one): &(&NodeId, &u64)| last.incarnations.get(id) == Some(one);
            let stayed = incarnations.iter().filter(same).count();
            // A note of the time may be some seconds old, in which bad clocks drift apart.
            let latest = last.engine
                + passed(true_time.saturating_sub(last.true_time))
                + self.drift * NOTE_AGE_MAX_MS / 1_000_000;
            if engine > latest && stayed * 2 > incarnations.len() {
                let text = format!(
                    "a new leader's engine time is {} ms ahead of the one before",
                    engine - latest
                );
                found.push(Violation::new(8, text));
            }
        }
        self.time = Some(TimeSample { true_time, engine, incarnations });
    }
}
