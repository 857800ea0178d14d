//! The clients of a cluster: what they ask which node, and what they were told.
//!
//! An answer goes to the ledger once the reference has applied the same command and given the same answer.

use std::sync::Arc;

use codeq_core::command::{Command, Millis};
use codeq_core::id::ShardId;
use codeq_core::reply::Reply;
use codeq_engine::request::{FirstReply, Inboxes, ReplyTo, Request};
use codeq_engine::route::{Route, route};
use codeq_engine::{Answer, EngineError};
use codeq_raft::node::Node;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::committed::{Committed, ProcessId};
use super::rules::ANSWERS;
use crate::invariants::{Violation, check_history};
use crate::ledger::{Final, Ledger, Line, Outcome};
use crate::notes;
use crate::plan::Plan;
use crate::rng::{Rng, mix, text_hash};
use crate::simulator::{count_in_engine_time, learn};
use crate::workload::{ClientCall, Workload};

/// What the clients have done and heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests.
    pub ops: u64,
    /// Acknowledged.
    pub acked: u64,
    /// Refused: nothing was done.
    pub refused: u64,
    /// Never answered, or answered that it is unknown.
    pub unknown: u64,
}

struct InFlight {
    invoked: u64,
    command: Command,
    /// `None` if any of them may answer.
    shard: Option<ShardId>,
    process: ProcessId,
    /// There was something to claim, as far as the reference knew, from the request until now.
    claimable: bool,
    answer: oneshot::Receiver<Answer>,
}

/// An answer that the reference has not confirmed yet.
struct Answered {
    invoked: u64,
    done: u64,
    command: Command,
    process: ProcessId,
    /// There was something to claim all the time.
    claimable: bool,
    reply: Reply,
}

/// The clients.
pub struct Clients {
    /// What they know.
    pub workload: Workload,
    /// What happened so far.
    pub counts: Counts,
    /// A hash of everything that they heard.
    pub trace: u64,
    shards: u16,
    rng: Rng,
    ledger: Ledger,
    tick: u64,
    in_flight: Vec<InFlight>,
    answered: Vec<Answered>,
    /// The shortest retention that was ever configured.
    retention: Millis,
}

impl Clients {
    /// The clients of a plan.
    pub fn new(plan: &Plan, seed: u64) -> Clients {
        Clients {
            workload: Workload::new(plan, seed),
            counts: Counts::default(),
            trace: seed,
            shards: plan.shards,
            rng: Rng::new(seed).fork("clients"),
            ledger: Ledger::default(),
            tick: 0,
            in_flight: Vec::new(),
            answered: Vec::new(),
            retention: plan.settings.retention.min(plan.settings.dead_letter_retention),
        }
    }

    /// Number of requests that wait for an answer.
    pub fn waiting(&self) -> usize {
        self.in_flight.len()
    }

    /// Sends a request to a node.
    pub fn call(
        &mut self,
        call: ClientCall,
        node: &Node,
        process: ProcessId,
        committed: &Committed,
    ) {
        self.note_retention(&call.command);
        let is_claim = matches!(call.command, Command::Claim(_));
        let shards = self.shards;
        match route(&call.command, shards) {
            Ok(Route::One(shard)) => self.send(shard, &call, node, process, committed),
            Ok(Route::All) if is_claim && call.wait > 0 && shards > 1 => {
                self.send_to_first(&call, node, process);
            }
            Ok(Route::All) if is_claim => {
                let shard = ShardId(self.rng.below(u64::from(shards)) as u16);
                self.send(shard, &call, node, process, committed);
            }
            Ok(Route::All) => {
                for shard in ShardId::all(shards) {
                    self.send(shard, &call, node, process, committed);
                }
            }
            // Refused before it reached a shard.
            Err(_) => {}
        }
    }

    fn note_retention(&mut self, command: &Command) {
        let shortest = match command {
            Command::Configure(settings) => {
                Some(settings.retention.min(settings.dead_letter_retention))
            }
            Command::PutTopic(put) => {
                let own = [put.policy.retention, put.policy.dead_letter_retention];
                own.into_iter().filter(|ms| *ms > 0).min()
            }
            _ => None,
        };
        self.retention = shortest.map_or(self.retention, |own| self.retention.min(own));
    }

    fn send(
        &mut self,
        shard: ShardId,
        call: &ClientCall,
        node: &Node,
        process: ProcessId,
        committed: &Committed,
    ) {
        let (sender, answer) = oneshot::channel();
        let request = Request::with(call.command.clone(), ReplyTo::One(sender), call.wait);
        let command = request.command.clone();
        let claimable = match &command {
            Command::Claim(claim) => call.wait == 0 && committed.has_claimable(shard, claim),
            _ => false,
        };
        self.track(command, Some(shard), process, claimable, answer);
        node.submit(shard, request);
    }

    /// Sends a claim that waits in every shard and is answered by one.
    fn send_to_first(&mut self, call: &ClientCall, node: &Node, process: ProcessId) {
        let (sender, answer) = oneshot::channel();
        let first = FirstReply::new(ReplyTo::One(sender), Inboxes::default());
        // One shard's answer arrives; the others may lease a task briefly and return it.
        let (_, unheard) = oneshot::channel();
        self.track(call.command.clone(), None, process, false, unheard);
        self.track(call.command.clone(), None, process, false, answer);
        for shard in ShardId::all(self.shards) {
            let reply = ReplyTo::First(first.clone());
            node.submit(shard, Request::with(call.command.clone(), reply, call.wait));
        }
    }

    fn track(
        &mut self,
        command: Command,
        shard: Option<ShardId>,
        process: ProcessId,
        claimable: bool,
        answer: oneshot::Receiver<Answer>,
    ) {
        self.tick += 1;
        self.counts.ops += 1;
        let invoked = self.tick;
        self.in_flight.push(InFlight { invoked, command, shard, process, claimable, answer });
    }

    /// Notes for which claims there is nothing any more, after every entry of the reference.
    pub fn look_at(&mut self, committed: &Committed) {
        for request in self.in_flight.iter_mut().filter(|request| request.claimable) {
            if let (Command::Claim(claim), Some(shard)) = (&request.command, request.shard) {
                request.claimable = committed.has_claimable(shard, claim);
            }
        }
    }

    /// Lets clients receive their answers.
    pub fn collect(&mut self, committed: &mut Committed, found: &mut Vec<Violation>) {
        for mut request in std::mem::take(&mut self.in_flight) {
            match request.answer.try_recv() {
                Ok(Ok(reply)) => self.answered(request, reply),
                Ok(Err(
                    error @ (EngineError::NoLeader
                    | EngineError::DiskFull
                    | EngineError::NoDescriptors
                    | EngineError::Overloaded
                    | EngineError::TooManyWaiting
                    | EngineError::TooLarge { .. }),
                )) => {
                    let outcome =
                        Outcome::Refused { at: committed.latest.now, code: error.to_string() };
                    self.record(request.invoked, None, &request.command, outcome);
                }
                Ok(Err(_)) | Err(TryRecvError::Closed) => {
                    self.record(request.invoked, None, &request.command, Outcome::Unknown);
                }
                Err(TryRecvError::Empty) => self.in_flight.push(request),
            }
        }
        self.confirm(committed, found);
    }

    fn answered(&mut self, request: InFlight, reply: Reply) {
        let InFlight { invoked, command, process, claimable, .. } = request;
        learn(&mut self.workload, &command, &reply);
        self.tick += 1;
        let done = self.tick;
        self.answered.push(Answered { invoked, done, command, process, claimable, reply });
    }

    /// Moves answers that the reference confirms to the ledger.
    fn confirm(&mut self, committed: &mut Committed, found: &mut Vec<Violation>) {
        for mut answered in std::mem::take(&mut self.answered) {
            let (process, command) = (answered.process, &answered.command);
            let (at, shard) = match committed.take(process, command, &answered.reply) {
                Ok(outcome) => (outcome.at, outcome.shard),
                // That there is nothing to claim need not be logged, but has to be true.
                Err(_) if is_empty(&answered.reply) => {
                    if answered.claimable {
                        let text = format!(
                            "node {} said that there is nothing to claim, but all the time there was: {command:?}",
                            process.0
                        );
                        found.push(Violation::new(ANSWERS, text));
                    }
                    (committed.latest, ShardId(0))
                }
                Err(_) => {
                    self.answered.push(answered);
                    continue;
                }
            };
            count_in_engine_time(&mut answered.reply, at);
            let at = at.now;
            let outcome = match notes::answer(&answered.reply) {
                Ok(answer) => Outcome::Acked { at, shard, answer },
                Err(code) => Outcome::Refused { at, code },
            };
            self.record(answered.invoked, Some(answered.done), &answered.command, outcome);
        }
    }

    fn record(&mut self, invoked: u64, done: Option<u64>, command: &Command, outcome: Outcome) {
        let done = done.unwrap_or_else(|| {
            self.tick += 1;
            self.tick
        });
        match outcome {
            Outcome::Acked { .. } => self.counts.acked += 1,
            Outcome::Unknown => self.counts.unknown += 1,
            Outcome::Refused { .. } => self.counts.refused += 1,
        }
        let line = Line { invoked, done, op: notes::op(command), outcome };
        self.trace = mix(&[self.trace, text_hash(&line.to_text())]);
        self.ledger.lines.push(line);
    }

    /// Reports answers that the reference does not confirm although it has everything that was committed.
    pub fn unconfirmed(&mut self, committed: &mut Committed) -> Vec<Violation> {
        let mut found = Vec::new();
        self.confirm(committed, &mut found);
        let report = |answered: &Answered| {
            let Answered { command, process, reply, .. } = answered;
            let known = committed.take(*process, command, reply).err().unwrap_or_default();
            let known: Vec<_> =
                known.iter().map(|outcome| (outcome.index, &outcome.reply)).collect();
            let text = format!(
                "node {} answered {reply:?} to {command:?}, but what was committed says {known:?}",
                process.0
            );
            Violation::new(ANSWERS, text)
        };
        let answered = std::mem::take(&mut self.answered);
        found.extend(answered.iter().map(report));
        found
    }

    /// Checks everything that the clients were told, and what is left at the end.
    pub fn judge(&mut self, end: Option<Final>) -> Vec<Violation> {
        self.ledger.lines.sort_by_key(|line| line.done);
        let retention = self.retention;
        self.ledger.end = end.map(|end| Final { retention, ..end });
        check_history(&self.ledger)
    }

    /// What the clients know, line by line.
    pub fn lines(&self) -> Vec<String> {
        self.ledger.lines.iter().map(Line::to_text).collect()
    }

    /// Lets a sender of callbacks look into the outbox of a node.
    pub fn look_for_callbacks(&mut self, node: &Node, now: Millis) {
        for shard in node.replica().each() {
            let data = shard.data().read();
            let reader = codeq_core::read::Reader { state: &data.state, kv: &data.store };
            let due = reader.callbacks_due((0, codeq_core::keys::Seq(0)), 4).unwrap_or_default();
            for due in due.into_iter().filter(|due| due.at <= now) {
                let Ok(Some(due)) = reader.callback(due.seq) else { continue };
                let callback = (Arc::clone(&due.task.tenant), due.task.id);
                if !self.workload.callbacks.contains(&callback) {
                    self.workload.callbacks.push_back(callback);
                }
            }
        }
    }
}

/// Whether an answer says that there is nothing to claim.
fn is_empty(reply: &Reply) -> bool {
    matches!(reply, Reply::Claimed(tasks) if tasks.is_empty())
}
