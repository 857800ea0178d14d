//! Two rules that openraft 0.9 lacks: when a node may stand for election, and when a leader must be silent. A *lease* is
//! how long a node counts as alive after its last message.
//!
//! **Campaign gate** (pre-vote): a node stands for election only while it can reach a majority in which no node has heard
//! from a leader within the last lease. So a node that returns from a partition does not depose a healthy leader.
//!
//! **Quorum gate** (check-quorum): a leader that has not reached a majority within the last lease proposes and sends
//! nothing but votes and pings. Otherwise it could keep a connected majority from electing another leader.
//!
//! Both only delay a node. Safety does not depend on them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::runtime::{self, Instant};
use crate::types::NodeId;

/// The answers to pings, and what they allow this node to do.
pub(crate) struct Gates {
    id: NodeId,
    /// How long a node counts as alive after its last message.
    lease: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    voters: Vec<Vec<NodeId>>,
    pongs: BTreeMap<NodeId, Pong>,
    /// When this node last accepted a message from a leader.
    heard: Option<Instant>,
    leads: bool,
}

struct Pong {
    at: Instant,
    leader_heard: Option<Duration>,
}

impl Gates {
    pub fn new(id: NodeId, lease: Duration) -> Gates {
        Gates { id, lease, state: Mutex::default() }
    }

    /// Sets the voters; during a change of members, both the old and the new ones.
    pub fn set_voters(&self, voters: Vec<Vec<NodeId>>) {
        let mut state = self.state.lock();
        state.pongs.retain(|id, _| voters.iter().flatten().any(|voter| voter == id));
        state.voters = voters;
    }

    /// The other nodes to ping.
    pub fn others(&self) -> Vec<NodeId> {
        let mut others: Vec<NodeId> = self
            .state
            .lock()
            .voters
            .iter()
            .flatten()
            .copied()
            .filter(|id| *id != self.id)
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// Whether this node is the only voter.
    pub fn is_alone(&self) -> bool {
        matches!(&self.state.lock().voters[..], [only] if only[..] == [self.id])
    }

    /// Records that a message from a leader was accepted.
    pub fn heard_leader(&self) {
        self.state.lock().heard = Some(runtime::now());
    }

    /// Records whether this node leads.
    pub fn set_leads(&self, leads: bool) {
        self.state.lock().leads = leads;
    }

    /// Records the answer to a ping.
    pub fn pong(&self, from: NodeId, leader_heard: Option<Duration>) {
        self.state.lock().pongs.insert(from, Pong { at: runtime::now(), leader_heard });
    }

    /// How long ago this node heard from a leader, for the answer to a ping.
    pub fn leader_heard(&self) -> Option<Duration> {
        if self.may_lead() && self.state.lock().leads {
            return Some(Duration::ZERO);
        }
        self.state.lock().heard.map(|heard| runtime::now().since(heard))
    }

    /// Whether a majority has answered within the last lease. A leader without one is silent.
    pub fn may_lead(&self) -> bool {
        let state = self.state.lock();
        let now = runtime::now();
        self.is_majority(&state, |pong| now.since(pong.at) < self.lease)
    }

    /// Whether this node can reach a majority in which no node has heard from a leader within the last lease.
    pub fn may_campaign(&self) -> bool {
        let state = self.state.lock();
        let now = runtime::now();
        let own = state.heard.is_none_or(|heard| now.since(heard) >= self.lease);
        own && self.is_majority(&state, |pong| {
            let silent = pong.leader_heard.is_none_or(|heard| heard >= self.lease);
            now.since(pong.at) < self.lease && silent
        })
    }

    /// Whether these nodes are a majority.
    pub fn is_quorum(&self, nodes: &[NodeId]) -> bool {
        let state = self.state.lock();
        let counted = |voters: &Vec<NodeId>| voters.iter().filter(|id| nodes.contains(id)).count();
        !state.voters.is_empty()
            && state.voters.iter().all(|voters| counted(voters) > voters.len() / 2)
    }

    fn is_majority(&self, state: &State, counts: impl Fn(&Pong) -> bool) -> bool {
        let votes = |id: &NodeId| *id == self.id || state.pongs.get(id).is_some_and(&counts);
        !state.voters.is_empty()
            && state
                .voters
                .iter()
                .all(|voters| voters.iter().filter(|id| votes(id)).count() > voters.len() / 2)
    }
}
