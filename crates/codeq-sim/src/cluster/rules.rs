//! What must hold in every cluster, whatever the queue does: Raft's rules, and that time never runs ahead.

use std::collections::BTreeMap;
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_raft::node::Node;
use codeq_raft::types::NodeId;

use super::committed::Committed;
use super::node::{EPOCH, Machine, RaftIndexes};
use crate::invariants::Violation;

/// Raft's own rules. Numbers above 100 are for rules that are not among the invariants of the contract.
pub const RAFT: u8 = 101;
/// Every answer is the one that the reference gives.
pub const ANSWERS: u8 = 102;
/// Once faults are over, or a majority is connected, the cluster works again.
pub const PROGRESS: u8 = 103;
/// A node stops only if its disk fails, and every stopped node can be started again.
pub const STOPPED: u8 = 104;
/// A follower that returns does not depose a healthy leader.
pub const STABLE: u8 = 105;
/// A read is never older than what was acknowledged before it began.
pub const READS: u8 = 106;
/// What a script expects.
pub const SCRIPT: u8 = 107;

/// Allowance for rounding to milliseconds: of a stamp, of two moments in true time, and of the clocks' drift.
const SLACK_MS: Millis = 4;

/// The leader as votes name it.
pub type Leader = (u64, NodeId);

#[derive(Default)]
struct Seen {
    incarnation: u64,
    vote: Leader,
    applied: u64,
    purged: u64,
    committed: u64,
}

/// The true time at which an entry was stamped, and its engine time.
struct Stamped {
    true_time: Duration,
    engine: Millis,
}

/// What was seen of the nodes so far.
#[derive(Default)]
pub struct Rules {
    /// Maximum drift of the clocks, in parts per million.
    drift: u64,
    nodes: BTreeMap<NodeId, Seen>,
    leaders: BTreeMap<Leader, u64>,
    highest: Leader,
    stamped: Option<Stamped>,
}

impl Rules {
    /// Rules for clocks that drift by up to this many parts per million.
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

    /// Checks a node.
    pub fn check_node(
        &mut self,
        machine: &Machine,
        node: &Node,
        committed: &Committed,
        found: &mut Vec<Violation>,
    ) {
        let metrics = node.raft().metrics().borrow().clone();
        let id = machine.id;
        let mut broken = |text: String| found.push(Violation::new(RAFT, text));
        let vote = (metrics.vote.leader_id.term, metrics.vote.leader_id.node_id);
        self.highest = self.highest.max(vote);
        let index = |id: &Option<codeq_raft::types::LogId>| id.map_or(0, |id| id.index);
        let (applied, purged) = (index(&metrics.last_applied), index(&metrics.purged));
        let last = metrics.last_log_index.unwrap_or(0);
        if vote == (0, 0) {
            // It has just started, and openraft has not reported anything yet.
            return;
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
        let committed_before = match seen.incarnation == machine.incarnation {
            true => seen.committed,
            false => 0,
        };
        *seen = Seen {
            incarnation: machine.incarnation,
            vote,
            applied,
            purged,
            committed: committed_before,
        };
        if metrics.state.is_leader() && metrics.vote.committed {
            if vote.1 != id {
                broken(format!("node {id} leads with a vote for {vote:?}"));
            }
            let elected = *self.leaders.entry(vote).or_insert(machine.incarnation);
            if elected != machine.incarnation {
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

    /// Checks openraft's state at one moment.
    pub fn check_indexes(&mut self, id: NodeId, indexes: &RaftIndexes, found: &mut Vec<Violation>) {
        let RaftIndexes { purged, snapshot, applied, committed, last, installing } = *indexes;
        let mut broken = |text: String| found.push(Violation::new(RAFT, text));
        let in_order = [purged, snapshot, applied, committed, last].is_sorted();
        if !in_order && !installing {
            broken(format!(
                "node {id}: purged ≤ snapshot ≤ applied ≤ committed ≤ last does not hold: {indexes:?}"
            ));
        }
        let before = &mut self.nodes.entry(id).or_default().committed;
        if committed < *before {
            broken(format!("node {id} had committed {before}, now {committed}"));
        }
        *before = committed;
    }

    /// Checks the engine time of a leader that is ready. It may stand still, but must not run ahead of the true time, nor
    /// faster than the true time since the last entry was stamped: leases and delays would end early.
    pub fn check_time(
        &mut self,
        leader: Leader,
        engine: Millis,
        true_time: Duration,
        committed: &Committed,
        found: &mut Vec<Violation>,
    ) {
        let drift = self.drift * 11 / 10;
        let passed = |duration: Duration| {
            let millis = duration.as_millis() as u64;
            millis + millis * drift / 1_000_000 + SLACK_MS
        };
        let mut ahead_of = |latest: Millis, what: &str| {
            if engine > latest {
                let text = format!(
                    "engine time of leader {leader:?} is {} ms ahead of {what}",
                    engine - latest
                );
                found.push(Violation::new(8, text));
            }
        };
        ahead_of(EPOCH + passed(true_time), "the true time");
        let last = committed.last_stamp();
        if last.is_some_and(|(by, _)| by > leader) {
            // It does not know yet that it is deposed. Nothing that it stamps will be committed.
            return;
        }
        if let Some(stamped) = &self.stamped {
            let since = passed(true_time.saturating_sub(stamped.true_time));
            ahead_of(stamped.engine + since, "the last entry");
        }
        if let Some((by, moment)) = last
            && by == leader
            && self.stamped.as_ref().is_none_or(|stamped| stamped.engine < moment)
        {
            let ago = Duration::from_millis(engine.saturating_sub(moment));
            let true_time = true_time.saturating_sub(ago);
            self.stamped = Some(Stamped { true_time, engine: moment });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: RaftIndexes = RaftIndexes {
        purged: 1,
        snapshot: 2,
        applied: 3,
        committed: 4,
        last: 5,
        installing: false,
    };

    fn found(positions: &[RaftIndexes]) -> usize {
        let (mut rules, mut found) = (Rules::new(1_000), Vec::new());
        positions.iter().for_each(|indexes| rules.check_indexes(1, indexes, &mut found));
        found.len()
    }

    #[test]
    fn positions_are_in_order() {
        let same = RaftIndexes { purged: 3, snapshot: 3, committed: 3, last: 3, ..GOOD };
        assert_eq!(found(&[GOOD, GOOD]) + found(&[same]), 0);
        let bad = [
            RaftIndexes { purged: 3, ..GOOD },
            RaftIndexes { snapshot: 4, ..GOOD },
            RaftIndexes { applied: 5, ..GOOD },
            RaftIndexes { committed: 6, ..GOOD },
        ];
        for indexes in bad {
            assert_eq!(found(&[indexes]), 1, "{indexes:?}");
            assert_eq!(found(&[RaftIndexes { installing: true, ..indexes }]), 0);
        }
    }

    #[test]
    fn the_commit_index_never_goes_back() {
        let before = RaftIndexes { committed: 5, ..GOOD };
        assert_eq!(found(&[GOOD, before]), 0);
        assert_eq!(found(&[before, GOOD]), 1);
    }

    #[test]
    fn time_never_runs_ahead_of_the_true_time() {
        let committed = Committed::new(1, 0).unwrap();
        let seconds = Duration::from_secs(100);
        for (ahead, expected) in [(0, 0), (100 + 14, 0), (200, 1)] {
            let mut found = Vec::new();
            let engine = EPOCH + 100_000 + ahead;
            Rules::new(1_000).check_time((1, 1), engine, seconds, &committed, &mut found);
            assert_eq!(found.len(), expected, "{ahead} ms");
        }
    }
}
