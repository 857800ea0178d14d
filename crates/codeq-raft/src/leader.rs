//! The loop of a node: notices whether it leads, and proposes what has gathered if it does.
//!
//! A new leader first applies everything that its log held (A1), then asks the others for the time, and only then
//! proposes. What it proposed is answered when it is applied, in `machine.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use codeq_core::command::Command;
use codeq_core::id::ShardId;
use codeq_engine::options::GROUP_BYTES_MAX;
use codeq_engine::request::{ReplyTo, Request as EngineRequest};
use codeq_engine::{Answer, EngineError};
use openraft::error::Fatal;
use openraft::{Raft, RaftMetrics, ServerState};
use tokio::sync::mpsc;

use crate::fault::Fault;
use crate::runtime;
use crate::shared::Shared;
use crate::time::{self, Stamp};
use crate::transport::{Leader, Request, Response, TimeNote};
use crate::types::{Digests, Member, NodeId, Origin, Proposal, Types};

/// Maximum number of entries in flight. A second one keeps the disk busy while the first is applied; more would only make
/// the entries smaller.
const IN_FLIGHT_MAX: usize = 2;
/// Bytes in flight at which no further entry is proposed. The log may not have written them yet, so
/// they need room too.
const IN_FLIGHT_BYTES_MAX: usize = 8 << 20;
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
        if let Err(fatal) = &metrics.running_state {
            return node.stopped(fatal);
        }
        if node.storage.status.has_failed() {
            // It fails only if openraft has stopped already.
            let _ = raft.shutdown().await;
            return node.stopped(&Fatal::Stopped);
        }
        node.note_members(&metrics.membership_config);
        node.storage.rows.lock().replica.take_notices();
        node.storage.checkpoint_if_wanted();
        let term = term_as_leader(&metrics, node.storage.id);
        if leadership.map(|it| it.term) != term {
            node.step_down();
            node.time.follow();
            leadership = term.map(|term| Leadership { term, ready: false });
            node.gates.set_leads(leadership.is_some());
            node.ready.send_replace(false);
        }
        if let Some(Leadership { term, ready: ready @ false }) = &mut leadership
            && node.has_applied_own(*term)
        {
            *ready = node.learn_time(*term).await;
            node.ready.send_replace(*ready);
            if *ready && node.storage.has(Fault::ConfigureAtStart) {
                node.configure();
            }
        }
        // The gates change as time passes, without any event.
        let mut wait = node.timing.heartbeat;
        match leadership {
            Some(Leadership { term, ready: true }) if node.gates.may_lead() => {
                wait = wait.min(node.propose(&raft, term).await);
            }
            // Not ready yet: requests wait.
            Some(Leadership { ready: false, .. }) if node.gates.may_lead() => {}
            // A leader that is cut off does not learn that it is deposed.
            _ => node.step_down(),
        }
        node.storage.settled.notify_one();
        tokio::select! {
            biased;
            changed = watched.changed() => if changed.is_err() {
                // Openraft says why it stops, unless it panics.
                let why = watched.borrow().running_state.clone();
                return node.stopped(&why.err().unwrap_or(Fatal::Panicked));
            },
            () = node.storage.wake.notified() => {}
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
    /// Openraft has stopped, because it was asked to or because the disk failed: nothing is answered any more.
    fn stopped(&self, why: &Fatal<NodeId>) {
        let status = &self.storage.status;
        if !matches!(why, Fatal::Stopped) && !status.has_failed() {
            status.fail(&EngineError::Failed(why.to_string().into()));
        }
        self.storage.rows.lock().replica.stop(&status.error());
        // Whoever waits for it to lead looks again.
        self.ready.send_replace(false);
    }

    /// A3: this node does not lead, or cannot know whether it does.
    fn step_down(&self) {
        let mut rows = self.storage.rows.lock();
        let replica = &mut rows.replica;
        while let Some(number) =
            replica.first_in_flight().filter(|_| self.storage.has(Fault::RefuseLost))
        {
            replica.end_proposal(number, &EngineError::NoLeader);
        }
        replica.step_down();
        drop(rows);
        self.set_refusing(None);
    }

    /// A1: whether the first entry of this node's term is applied, and so is everything before it.
    fn has_applied_own(&self, term: u64) -> bool {
        let applied = self.storage.rows.lock().applied;
        let own = |leader: &openraft::CommittedLeaderId<NodeId>| {
            (leader.term, leader.node_id) == (term, self.storage.id)
        };
        applied.is_some_and(|id| own(&id.leader_id)) || self.storage.has(Fault::ProposeBeforeReady)
    }

    /// Asks the voters for the time. False if no majority answers.
    async fn learn_time(&self, term: u64) -> bool {
        let last = self.storage.rows.lock().last_stamp();
        let own = Leader { term, node: self.storage.id };
        let mut notes: Vec<TimeNote> = self.time.noted().into_iter().collect();
        let mut walls = vec![self.time.wall()];
        if self.storage.has(Fault::TrustWallClock) {
            self.time.lead(own, walls.first().copied().unwrap_or(0).max(last.moment));
            return true;
        }
        let mut answered = vec![self.storage.id];
        let others = self.gates.others();
        let voters = others.len() + 1;
        let (answers, mut received) = mpsc::unbounded_channel();
        for id in others {
            let (sent, answers) =
                (self.transport.send(id, Request::Time, self.timing.lease()), answers.clone());
            runtime::spawn(async move {
                if let Ok(Response::Time { noted, wall }) = sent.await {
                    // If nobody listens any more, enough others have answered.
                    let _ = answers.send((id, noted, wall));
                }
            });
        }
        drop(answers);
        // If no node of the first majority knows the time, another node may.
        while !self.gates.is_quorum(&answered) || time::estimate(&notes, last).is_none() {
            let Some((id, noted, wall)) = received.recv().await else { break };
            notes.extend(noted);
            walls.push(wall);
            answered.push(id);
        }
        if !self.gates.is_quorum(&answered) {
            return false;
        }
        let engine = match self.storage.fault {
            Some(Fault::HighestEstimate) => notes.iter().map(time::by_now).max().unwrap_or(0),
            Some(Fault::StaleNote) => {
                notes.iter_mut().for_each(|note| note.leader = Leader::default());
                time::start(&notes, &mut walls, voters, Stamp::default())
            }
            _ => time::start(&notes, &mut walls, voters, last),
        };
        self.time.lead(own, engine.max(last.moment));
        true
    }

    /// A planted bug: proposes this node's settings. Only `init` and an operator may do that, not a new leader.
    fn configure(&self) {
        for shard in ShardId::all(self.storage.manifest.shards) {
            let command = Command::Configure(self.storage.options.settings.clone());
            self.storage.status.push(shard, EngineRequest::detached(command));
        }
    }

    /// Proposes what has gathered. Returns how long until there may be more.
    async fn propose(self: &Arc<Shared>, raft: &Raft<Types>, term: u64) -> Duration {
        loop {
            let Some(at) = self.time.moment() else { return Duration::MAX };
            let in_flight = {
                let replica = &self.storage.rows.lock().replica;
                let bytes = replica.bytes_in_flight();
                if replica.in_flight() >= IN_FLIGHT_MAX || bytes >= IN_FLIGHT_BYTES_MAX {
                    // The loop is woken when one of them is applied.
                    return Duration::MAX;
                }
                bytes as u64
            };
            if let Err(error) = self.storage.make_room(in_flight + ENTRY_ROOM).await {
                // Before anybody is answered.
                self.set_refusing(Some(error.clone()));
                self.storage.rows.lock().replica.refuse(&error);
                return Duration::MAX;
            }
            self.set_refusing(None);
            let (gathered, unconfirmed, digests, wait) = {
                let replica = &mut self.storage.rows.lock().replica;
                let gathered = replica.gather(at, runtime::random());
                let digests =
                    Digests { index: replica.applied(), by_shard: replica.current_digests() };
                (gathered, replica.take_unconfirmed(), digests, replica.time_until_due(at))
            };
            if !unconfirmed.is_empty() {
                self.confirm(raft, term, unconfirmed);
            }
            let Some(gathered) = gathered else {
                return wait.map_or(Duration::MAX, |wait| Duration::from_millis(wait.max(1)));
            };
            let number = gathered.number;
            let bytes: usize = gathered.records.iter().map(|(_, record)| record.len()).sum();
            let needed = in_flight + bytes as u64 + ENTRY_ROOM;
            if let Err(error) = self.storage.make_room(needed).await {
                self.set_refusing(Some(error.clone()));
                self.storage.rows.lock().replica.end_proposal(number, &error);
                return Duration::MAX;
            }
            let (node, incarnation) = (self.storage.id, self.storage.incarnation);
            let proposal = Proposal {
                origin: Origin { term, node, incarnation, number },
                records: gathered.records,
                digests: Some(digests),
            };
            // Openraft has stopped: `run` answers with the reason.
            let Ok(written) = raft.client_write_ff(proposal).await else {
                return Duration::MAX;
            };
            let (node, raft) = (Arc::clone(self), raft.clone());
            runtime::spawn(async move {
                // Openraft gives the same error for an entry that it never wrote and for one that may still be
                // committed. Once it has stopped, `run` answers with the reason.
                let written = matches!(written.await, Ok(Ok(_)));
                if !written && raft.metrics().borrow().running_state.is_ok() {
                    let error = match node.storage.has(Fault::RefuseLost) {
                        true => EngineError::NoLeader,
                        false => EngineError::Unknown,
                    };
                    node.storage.rows.lock().replica.end_proposal(number, &error);
                    node.storage.wake.notify_one();
                }
            });
        }
    }

    /// Notes whether writes are refused.
    fn set_refusing(&self, why: Option<EngineError>) {
        let status = &self.storage.status;
        if status.refusing() != why {
            status.set_refusing(ShardId(0), why);
        }
    }

    /// A4: sends answers that were not logged, once it is certain that this node still led when they were found.
    fn confirm(self: &Arc<Shared>, raft: &Raft<Types>, term: u64, answers: Vec<(ReplyTo, Answer)>) {
        self.confirming.fetch_add(1, Ordering::AcqRel);
        let mut unconfirmed = self.unconfirmed.lock();
        unconfirmed.waiting.push((term, answers));
        if !std::mem::replace(&mut unconfirmed.running, true) {
            runtime::spawn(run_confirmations(Arc::clone(self), raft.clone()));
        }
    }
}

/// Runs rounds until no answer waits for one.
async fn run_confirmations(node: Arc<Shared>, raft: Raft<Types>) {
    loop {
        let waiting = {
            let mut unconfirmed = node.unconfirmed.lock();
            unconfirmed.running = !unconfirmed.waiting.is_empty();
            std::mem::take(&mut unconfirmed.waiting)
        };
        if waiting.is_empty() {
            return;
        }
        let unchecked = node.storage.has(Fault::AnswerWithoutReadIndex);
        let confirmed = unchecked || raft.get_read_log_id().await.is_ok();
        // It may have lost the leadership and won it again meanwhile.
        let now = term_as_leader(&raft.metrics().borrow(), node.storage.id);
        for (term, answers) in waiting {
            let leads = unchecked || (confirmed && now == Some(term));
            for (reply, answer) in answers {
                let answer = if leads { answer } else { Err(EngineError::NoLeader) };
                // A client that is gone does not need to know: there is nothing to give back.
                let _ = reply.send(answer);
            }
            node.confirming.fetch_sub(1, Ordering::AcqRel);
        }
        node.storage.settled.notify_one();
    }
}
