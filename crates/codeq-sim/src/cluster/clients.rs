//! The clients of a cluster: what they ask which node, and what they were told.
//!
//! Each answer is recorded with the entry that its node was applying. It goes to the ledger if that entry contains the
//! command and the reference (see `committed`) gave the same answer to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codeq_core::command::{Command, Millis};
use codeq_core::id::ShardId;
use codeq_core::reply::Reply;
use codeq_engine::boundary::Mailbox;
use codeq_engine::request::{FirstReply, Inboxes, ReplyTo, Request};
use codeq_engine::{Answer, EngineError};
use codeq_raft::applied::AppliedIndex;
use codeq_raft::node::Node;
use parking_lot::Mutex;

use super::committed::{CommandKey, Committed, ProcessId, hash};
use super::rules::ANSWERS;
use crate::invariants::{Violation, check_history};
use crate::ledger::{Final, Ledger, Line, Outcome};
use crate::notes;
use crate::plan::Plan;
use crate::rng::{Rng, mix, text_hash};
use crate::simulator::{count_in_engine_time, learn};
use crate::workload::{ClientCall, Target, Workload};

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
    command: Command,
    /// `None` if any shard may answer.
    shard: Option<ShardId>,
    process: ProcessId,
    /// Whether the reference has had something to claim ever since the request.
    claimable: bool,
    /// What the reference had applied when the request was sent.
    since: u64,
}

/// An answer that the reference has not confirmed yet.
struct Answered {
    invoked: u64,
    done: u64,
    request: InFlight,
    /// The entry that the node was applying, if it was.
    index: u64,
    reply: Reply,
}

/// Receives the answers of a process.
struct Answers {
    applied: Arc<AppliedIndex>,
    delivered: Mutex<Vec<Delivered>>,
}

/// A request, the entry that was being applied, and the answer.
type Delivered = (u64, u64, Answer);

impl Mailbox for Answers {
    fn deliver(&self, number: u64, answer: Answer) -> Result<(), Answer> {
        let before = self.applied.index().unwrap_or(0);
        self.delivered.lock().push((number, before + 1, answer));
        Ok(())
    }

    fn wake(&self) {}

    fn is_closed(&self) -> bool {
        false
    }
}

/// How often clients sent a command, and how often it was refused and applied.
#[derive(Debug, Clone, Copy, Default)]
struct Requested {
    asked: u64,
    refused: u64,
    done: u64,
    /// A claim that waits is proposed again whenever there may be something for it.
    repeatable: bool,
}

impl Requested {
    fn is_too_often(&self) -> bool {
        !self.repeatable && self.done + self.refused > self.asked
    }
}

/// The clients.
pub struct Clients {
    /// What they know.
    pub workload: Workload,
    /// What happened so far.
    pub counts: Counts,
    /// A hash of everything that they heard.
    pub trace: u64,
    /// Answers by the number of their request, for a script that wants to know them.
    pub heard: Option<BTreeMap<u64, Answer>>,
    /// Index of the last entry that was acknowledged to a client.
    pub acknowledged: u64,
    shards: u16,
    rng: Rng,
    ledger: Ledger,
    tick: u64,
    /// By number.
    in_flight: BTreeMap<u64, InFlight>,
    answered: Vec<Answered>,
    answers: BTreeMap<ProcessId, Arc<Answers>>,
    requested: BTreeMap<CommandKey, Requested>,
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
            heard: None,
            acknowledged: 0,
            shards: plan.shards,
            rng: Rng::new(seed).fork("clients"),
            ledger: Ledger::default(),
            tick: 0,
            in_flight: BTreeMap::new(),
            answered: Vec::new(),
            answers: BTreeMap::new(),
            requested: BTreeMap::new(),
            retention: plan.settings.retention.min(plan.settings.dead_letter_retention),
        }
    }

    /// The number of the last request.
    pub fn last(&self) -> u64 {
        self.tick
    }

    /// Number of requests that wait for an answer.
    pub fn waiting(&self) -> usize {
        self.in_flight.len()
    }

    /// Sends a request to a node. `known` says whether clients may know of everything that is committed.
    pub fn call(
        &mut self,
        call: ClientCall,
        node: &Node,
        process: ProcessId,
        committed: &Committed,
        known: bool,
    ) {
        // The last entry was acknowledged, even if the process that did so is gone.
        let known = known || committed.applied() <= self.acknowledged;
        self.retention = call.retention().map_or(self.retention, |own| self.retention.min(own));
        match call.target(self.shards, &mut self.rng) {
            Target::First => self.send_to_first(&call, node, process, committed),
            Target::Each(shards) => {
                for shard in shards {
                    self.send(shard, &call, node, process, committed, known);
                }
            }
        }
    }

    fn send(
        &mut self,
        shard: ShardId,
        call: &ClientCall,
        node: &Node,
        process: ProcessId,
        committed: &Committed,
        known: bool,
    ) {
        let command = call.command.clone().current();
        let claimable = match &command {
            Command::Claim(claim) => {
                known && call.wait == 0 && committed.has_claimable(shard, claim)
            }
            _ => false,
        };
        self.count_request(process, shard, &command, call.wait);
        let since = committed.applied();
        let request = InFlight { command, shard: Some(shard), process, claimable, since };
        let reply = ReplyTo::Mailbox(self.mailbox(node, process), self.track(request));
        node.submit(shard, Request::with(call.command.clone(), reply, call.wait));
    }

    /// Sends a claim that waits in every shard and is answered by one.
    fn send_to_first(
        &mut self,
        call: &ClientCall,
        node: &Node,
        process: ProcessId,
        committed: &Committed,
    ) {
        let (command, since) = (call.command.clone().current(), committed.applied());
        // Only the first answer is heard. Another shard may also lease a task, which is then given back; for the checkers
        // that is a claim whose answer was lost, so the ledger gets one.
        self.tick += 1;
        self.counts.ops += 1;
        self.record(self.tick, None, &command, Outcome::Unknown);
        for shard in ShardId::all(self.shards) {
            self.count_request(process, shard, &command, call.wait);
        }
        let request = InFlight { command, shard: None, process, claimable: false, since };
        let reply = ReplyTo::Mailbox(self.mailbox(node, process), self.track(request));
        let first = FirstReply::new(reply, Inboxes::default());
        for shard in ShardId::all(self.shards) {
            let reply = ReplyTo::First(first.clone());
            node.submit(shard, Request::with(call.command.clone(), reply, call.wait));
        }
    }

    fn mailbox(&mut self, node: &Node, process: ProcessId) -> Arc<dyn Mailbox> {
        let answers = self.answers.entry(process).or_insert_with(|| {
            Arc::new(Answers { applied: node.progress(), delivered: Mutex::default() })
        });
        Arc::clone(answers) as Arc<dyn Mailbox>
    }

    fn count_request(
        &mut self,
        process: ProcessId,
        shard: ShardId,
        command: &Command,
        wait: Millis,
    ) {
        let key = CommandKey { process, shard, command: hash(command) };
        let requested = self.requested.entry(key).or_default();
        requested.asked += 1;
        requested.repeatable |= wait > 0;
    }

    fn track(&mut self, request: InFlight) -> u64 {
        self.tick += 1;
        self.counts.ops += 1;
        self.in_flight.insert(self.tick, request);
        self.tick
    }

    /// Checks the reference's last entry: notes the claims for which nothing is left, and reports commands that no client
    /// has sent, or that were committed more often than sent.
    pub fn check_entry(&mut self, committed: &Committed) -> Vec<Violation> {
        for request in self.in_flight.values_mut().filter(|request| request.claimable) {
            if let (Command::Claim(claim), Some(shard)) = (&request.command, request.shard) {
                request.claimable = committed.has_claimable(shard, claim);
            }
        }
        let mut found = Vec::new();
        for executed in committed.executed() {
            let requested = self.requested.entry(*executed).or_default();
            requested.done += 1;
            if requested.is_too_often() {
                let text = format!(
                    "entry {} has a command of node {} that was not asked for: {requested:?}",
                    committed.applied(),
                    executed.process.0
                );
                found.push(Violation::new(ANSWERS, text));
            }
        }
        found
    }

    /// Lets clients receive their answers. A process that is not `alive` no longer answers.
    pub fn collect(
        &mut self,
        alive: &BTreeSet<ProcessId>,
        committed: &mut Committed,
        found: &mut Vec<Violation>,
    ) {
        let delivered: Vec<Delivered> = self
            .answers
            .values()
            .flat_map(|answers| answers.delivered.lock().split_off(0))
            .collect();
        for (number, index, answer) in delivered {
            let Some(request) = self.in_flight.remove(&number) else {
                let text = format!("request {number} was answered twice: {answer:?}");
                found.push(Violation::new(ANSWERS, text));
                continue;
            };
            if let Some(heard) = &mut self.heard {
                heard.insert(number, answer.clone());
            }
            match answer {
                Ok(reply) => self.answered(number, request, index, reply),
                Err(error) if is_refusal(&error) => {
                    found.extend(self.refused(&request, &error));
                    let (at, code) = (committed.latest.now, error.to_string());
                    let outcome = Outcome::Refused { at, code };
                    self.record(number, None, &request.command, outcome);
                }
                Err(_) => self.record(number, None, &request.command, Outcome::Unknown),
            }
        }
        self.answers.retain(|process, _| alive.contains(process));
        let dead = |_: &u64, request: &mut InFlight| !alive.contains(&request.process);
        let unknown: Vec<(u64, InFlight)> = self.in_flight.extract_if(.., dead).collect();
        for (number, request) in unknown {
            if let Some(heard) = &mut self.heard {
                heard.insert(number, Err(EngineError::Unknown));
            }
            self.record(number, None, &request.command, Outcome::Unknown);
        }
        self.confirm(committed, found);
    }

    /// A node answered that it has not applied a request and never will.
    fn refused(&mut self, request: &InFlight, error: &EngineError) -> Option<Violation> {
        let (process, shard) = (request.process, request.shard?);
        let key = CommandKey { process, shard, command: hash(&request.command) };
        let requested = self.requested.entry(key).or_default();
        requested.refused += 1;
        requested.is_too_often().then(|| {
            let text = format!(
                "node {} refused what is committed: {error}, {:?}, {requested:?}",
                process.0, request.command
            );
            Violation::new(ANSWERS, text)
        })
    }

    fn answered(&mut self, invoked: u64, request: InFlight, index: u64, reply: Reply) {
        learn(&mut self.workload, &request.command, &reply);
        self.tick += 1;
        self.answered.push(Answered { invoked, done: self.tick, request, index, reply });
    }

    /// Moves answers that the reference confirms to the ledger, and reports those that it contradicts.
    fn confirm(&mut self, committed: &mut Committed, found: &mut Vec<Violation>) {
        for mut answered in std::mem::take(&mut self.answered) {
            let Answered { request, index, reply, .. } = &answered;
            let InFlight { command, process, .. } = request;
            let (at, shard) = match committed.take(*index, *process, command, reply) {
                Ok(outcome) => {
                    self.acknowledged = self.acknowledged.max(*index);
                    if *index <= request.since {
                        let text = format!(
                            "entry {index} answers a request that was sent after it: {command:?}"
                        );
                        found.push(Violation::new(ANSWERS, text));
                    }
                    (outcome.at, outcome.shard)
                }
                // That there is nothing to claim need not be logged, but has to be true.
                Err(_) if is_empty(reply) => {
                    if request.claimable {
                        let text = format!(
                            "node {} said that there is nothing to claim, but all the time there was: {command:?}",
                            process.0
                        );
                        found.push(Violation::new(ANSWERS, text));
                    }
                    (committed.latest, ShardId(0))
                }
                Err(known) if *index <= committed.applied() => {
                    let text = format!(
                        "node {} answered {reply:?} to {command:?} with entry {index}, which says {known:?}",
                        process.0
                    );
                    found.push(Violation::new(ANSWERS, text));
                    continue;
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
            self.record(answered.invoked, Some(answered.done), &answered.request.command, outcome);
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
            let Answered { request, index, reply, .. } = answered;
            let text = format!(
                "node {} answered {reply:?} to {:?} with entry {index}, which was never committed",
                request.process.0, request.command
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
            self.workload.look_for_callbacks(shard, now);
        }
    }
}

/// Whether an error says that nothing was done and nothing will be.
fn is_refusal(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::NoLeader
            | EngineError::DiskFull
            | EngineError::NoDescriptors
            | EngineError::Overloaded
            | EngineError::TooManyWaiting
            | EngineError::TooLarge { .. }
    )
}

/// Whether an answer says that there is nothing to claim.
fn is_empty(reply: &Reply) -> bool {
    matches!(reply, Reply::Claimed(tasks) if tasks.is_empty())
}
