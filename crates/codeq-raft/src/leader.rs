//! The loop of a node: notices whether it leads, and proposes what has gathered if it does.
//!
//! A new leader first applies everything that its log held (A1), then asks a majority for the time, and only then
//! proposes. What it proposed is answered when it is applied, in `machine.rs`.

use std::sync::Arc;
use std::time::Duration;

use codeq_engine::options::GROUP_BYTES_MAX;
use codeq_engine::request::ReplyTo;
use codeq_engine::{Answer, EngineError};
use openraft::{Raft, RaftMetrics, ServerState};
use tokio::sync::mpsc;

use crate::fault::Fault;
use crate::runtime;
use crate::shared::Shared;
use crate::transport::{Request, Response, TimeNote};
use crate::types::{Digests, Member, NodeId, Origin, Proposal, Types};

/// Entries in flight. One more keeps the disks busy while the answers of the one before travel; many would only make
/// the entries small.
const IN_FLIGHT_MAX: usize = 4;
/// Room for one entry: the largest group, and as much again for what surrounds its commands.
const ENTRY_ROOM: u64 = 2 * GROUP_BYTES_MAX as u64;

/// A term in which this node leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Leadership {
    term: u64,
    /// It has applied what its log held, and knows the time.
    ready: bool,
}

/// Runs until openraft stops.
pub(crate) async fn run(node: Arc<Shared>, raft: Raft<Types>) {
    let mut watched = raft.metrics();
    let mut leadership: Option<Leadership> = None;
    loop {
        let metrics = watched.borrow_and_update().clone();
        if metrics.running_state.is_err() {
            node.core.rows.lock().replica.stop(&EngineError::Closed);
            return;
        }
        node.note_members(&metrics);
        let term = term_as_leader(&metrics, node.core.id);
        if leadership.map(|it| it.term) != term {
            node.core.rows.lock().replica.step_down();
            node.time.follow();
            leadership = term.map(|term| Leadership { term, ready: false });
            node.gates.set_leads(leadership.is_some());
        }
        if let Some(Leadership { term, ready: ready @ false }) = &mut leadership
            && node.has_applied_own(*term)
        {
            *ready = node.learn_time().await;
        }
        // The gates change with time alone.
        let mut wait = node.timing.heartbeat;
        match leadership {
            Some(Leadership { term, ready: true }) if node.gates.may_lead() => {
                wait = wait.min(node.propose(&raft, term).await);
            }
            // Not ready yet: requests wait.
            Some(Leadership { ready: false, .. }) if node.gates.may_lead() => {}
            // A leader that is cut off does not learn that it is deposed.
            _ => node.core.rows.lock().replica.step_down(),
        }
        tokio::select! {
            biased;
            changed = watched.changed() => if changed.is_err() {
                node.core.rows.lock().replica.stop(&EngineError::Closed);
                return;
            },
            () = node.core.wake.notified() => {}
            () = runtime::sleep(wait) => {}
        }
    }
}

/// The term in which this node leads, if it does.
fn term_as_leader(metrics: &RaftMetrics<NodeId, Member>, id: NodeId) -> Option<u64> {
    let (vote, leader) = (&metrics.vote, metrics.vote.leader_id);
    let leads = metrics.state == ServerState::Leader && vote.committed && leader.node_id == id;
    leads.then_some(leader.term)
}

impl Shared {
    /// A1: whether the first entry of this node's term is applied, and so is everything before it.
    fn has_applied_own(&self, term: u64) -> bool {
        let applied = self.core.rows.lock().applied;
        let own = |leader: &openraft::CommittedLeaderId<NodeId>| {
            (leader.term, leader.node_id) == (term, self.core.id)
        };
        applied.is_some_and(|id| own(&id.leader_id)) || self.core.has(Fault::ProposeBeforeReady)
    }

    /// Asks a majority of the voters for the time. False if it does not answer.
    async fn learn_time(&self) -> bool {
        let last = self.core.rows.lock().replica.now();
        let mut notes: Vec<TimeNote> = self.time.noted().into_iter().collect();
        let mut walls = vec![self.time.wall()];
        if self.core.has(Fault::TrustWallClock) {
            self.time.lead(&[], &mut walls, 1, last);
            return true;
        }
        let mut answered = vec![self.core.id];
        let others = self.gates.others();
        let voters = others.len() + 1;
        let (answers, mut received) = mpsc::unbounded_channel();
        for id in others {
            let (sent, answers) =
                (self.transport.send(id, Request::Time, self.timing.lease()), answers.clone());
            runtime::spawn(async move {
                if let Ok(Response::Time { noted, wall }) = sent.await {
                    // Enough others have answered if nobody listens any more.
                    let _ = answers.send((id, noted, wall));
                }
            });
        }
        drop(answers);
        while !self.gates.is_quorum(&answered) {
            let Some((id, noted, wall)) = received.recv().await else { return false };
            notes.extend(noted);
            walls.push(wall);
            answered.push(id);
        }
        if self.core.has(Fault::HighestEstimate) {
            notes.sort_by_key(|note| std::cmp::Reverse(note.moment + note.elapsed));
            notes.truncate(1);
        }
        self.time.lead(&notes, &mut walls, voters, last);
        true
    }

    /// Proposes what has gathered. Returns how long until there may be more.
    async fn propose(self: &Arc<Shared>, raft: &Raft<Types>, term: u64) -> Duration {
        loop {
            let Some(at) = self.time.moment() else { return Duration::MAX };
            if !self.core.has_room(ENTRY_ROOM) {
                self.core.rows.lock().replica.refuse(&EngineError::DiskFull);
                return Duration::MAX;
            }
            let (gathered, unconfirmed, digests, wait) = {
                let replica = &mut self.core.rows.lock().replica;
                if replica.in_flight() >= IN_FLIGHT_MAX {
                    // The end of one of them wakes this loop.
                    return Duration::MAX;
                }
                let gathered = replica.gather(at, runtime::random());
                let digests =
                    Digests { index: replica.applied(), by_shard: replica.current_digests() };
                (gathered, replica.take_unconfirmed(), digests, replica.wait(at))
            };
            if !unconfirmed.is_empty() {
                self.confirm(raft, unconfirmed);
            }
            let Some(gathered) = gathered else {
                return wait.map_or(Duration::MAX, |wait| Duration::from_millis(wait.max(1)));
            };
            let number = gathered.number;
            let (node, incarnation) = (self.core.id, self.core.incarnation);
            let proposal = Proposal {
                origin: Origin { term, node, incarnation, number },
                records: gathered.records,
                digests: Some(digests),
            };
            let Ok(written) = raft.client_write_ff(proposal).await else {
                self.core.rows.lock().replica.lost(number);
                return Duration::MAX;
            };
            let node = Arc::clone(self);
            runtime::spawn(async move {
                // Openraft says the same of an entry that it never wrote and of one that may still be committed.
                if !matches!(written.await, Ok(Ok(_))) {
                    node.core.rows.lock().replica.lost(number);
                    node.core.wake.notify_one();
                }
            });
        }
    }

    /// A4: sends answers that were not logged, once it is certain that this node still led when they were found.
    fn confirm(self: &Arc<Shared>, raft: &Raft<Types>, answers: Vec<(ReplyTo, Answer)>) {
        let (raft, unchecked) = (raft.clone(), self.core.has(Fault::AnswerWithoutReadIndex));
        runtime::spawn(async move {
            let leads = unchecked || raft.get_read_log_id().await.is_ok();
            for (reply, answer) in answers {
                let answer = if leads { answer } else { Err(EngineError::NoLeader) };
                // A client that is gone does not need to know: there is nothing to give back.
                let _ = reply.send(answer);
            }
        });
    }
}
