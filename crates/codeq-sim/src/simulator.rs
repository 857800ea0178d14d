//! One run. The seed determines everything, so a run can be repeated.
//!
//! A run has two phases. First the clients work while things go wrong; every few steps and after every restart, the
//! rows are checked against the invariants and the [`Model`]. Then the faults stop: the clients' history is checked,
//! and every remaining task must be claimable and finish.

use std::collections::VecDeque;
use std::sync::Arc;

use codeq_core::command::{Command, Millis};
use codeq_core::id::{ShardId, split_mix64};
use codeq_core::moment::Moment;
use codeq_core::reply::{Enqueued, Reply, Returned};
use codeq_core::view::Task;
use codeq_engine::request::{FirstReply, Inboxes, ReplyTo, Request};
use codeq_engine::{Answer, EngineError};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::disk::{Class, SimDisk};
use crate::invariants::{Violation, check_history, check_shards};
use crate::ledger::{Ledger, Line, Outcome};
use crate::model::Model;
use crate::notes;
use crate::plan::Plan;
use crate::rng::{Rng, mix, text_hash};
use crate::sabotage::{Sabotage, Saboteur};
use crate::server::{Server, SimClock, Stopped, stop};
use crate::workload::{ClientCall, Held, Target, Workload};

/// Options of a run. Everything else follows from the seed.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// A bug to plant.
    pub sabotage: Option<Sabotage>,
    /// Rounds of requests; `None` means what the seed says.
    pub steps: Option<u64>,
    /// Hide the fences of claims from clients, like an interface that does not have them.
    pub without_fences: bool,
    /// Return the ledger with the report.
    pub keep_ledger: bool,
}

/// Outcome of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// A hash over everything that clients saw and everything that restarts found.
    pub trace: u64,
    /// Requested operations.
    pub ops: u64,
    /// Acknowledged operations.
    pub acked: u64,
    /// Operations that were never answered.
    pub unknown: u64,
    /// Virtual milliseconds.
    pub simulated: Millis,
    /// Kills and power cuts.
    pub crashes: u64,
    /// Attempts to start a checkpoint.
    pub checkpoints: u64,
    /// Broken invariants; empty if everything is fine.
    pub violations: Vec<Violation>,
    /// Everything that clients know, to investigate a failing seed.
    pub ledger: Vec<String>,
}

impl Report {
    /// The command that repeats this run.
    pub fn replay_command(&self) -> String {
        format!("codeq sim --seed {}", self.seed)
    }
}

/// Wall clock at the start of every run; an arbitrary date.
const EPOCH: Millis = 1_700_000_000_000;
/// Steps between two checks of the rows.
const CHECK_EVERY: u64 = 8;
/// A run ends after this many violations: one cause has many effects.
const VIOLATIONS_MAX: usize = 8;

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Report {
    let mut run = match Run::new(seed, options) {
        Ok(run) => run,
        Err(Stopped(text)) => {
            let violations =
                vec![Violation::new(1, format!("a new directory could not be opened: {text}"))];
            return Report { seed, violations, ..Report::default() };
        }
    };
    let steps = options.steps.unwrap_or(run.plan.steps);
    run.preload();
    for step in 0..steps {
        run.step(step);
        if run.report.violations.len() >= VIOLATIONS_MAX {
            break;
        }
    }
    run.finish();
    if options.keep_ledger {
        run.report.ledger = run.ledger.lines.iter().map(Line::to_text).collect();
    }
    run.report
}

/// A request in flight.
struct InFlight {
    invoked: u64,
    command: Command,
    shard: ShardId,
    /// When it was applied.
    at: Option<Moment>,
    answer: oneshot::Receiver<Answer>,
}

pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) disk: SimDisk,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) engine: codeq_engine::Options,
    /// `None` while the process is down.
    pub(crate) server: Option<Server>,
    pub(crate) model: Model,
    pub(crate) saboteur: Saboteur,
    pub(crate) workload: Workload,
    in_flight: Vec<InFlight>,
    /// The latest moments at which the shards ran.
    shard_runs: ShardRuns,
    pub(crate) ledger: Ledger,
    tick: u64,
    /// The shortest retention that was ever configured.
    pub(crate) retention: Millis,
    /// Steps until the current fault is over.
    pub(crate) fault_left: u64,
    pub(crate) report: Report,
}

impl Run {
    fn new(seed: u64, options: &Options) -> Result<Run, Stopped> {
        let plan = Plan::of(seed);
        let engine = plan.engine_options();
        let disk = SimDisk::new(seed);
        if options.sabotage == Some(Sabotage::LyingSync) {
            disk.lie(Class::Log);
        }
        let clock = SimClock::new(EPOCH);
        let rng = Rng::new(seed);
        let saboteur = Saboteur::new(options.sabotage, options.without_fences);
        let server = Server::open(&disk, &clock, &engine, rng.fork("server"), &saboteur);
        let server = server.map_err(stop)?;
        let mut run = Run {
            rng: rng.fork("run"),
            disk,
            clock,
            server: Some(server),
            model: Model::new(plan.shards).map_err(stop)?,
            saboteur,
            workload: Workload::new(&plan, seed),
            in_flight: Vec::new(),
            shard_runs: ShardRuns::default(),
            ledger: Ledger::default(),
            tick: 0,
            // The default applies only until the first configuration.
            retention: plan.settings.retention.min(plan.settings.dead_letter_retention),
            fault_left: 0,
            report: Report { seed, ..Report::default() },
            engine,
            plan,
        };
        run.invoke(ClientCall { command: Command::Configure(run.plan.settings.clone()), wait: 0 });
        Ok(run)
    }

    /// Creates long queues at the start, if the plan has them.
    fn preload(&mut self) {
        for _ in 0..self.plan.preload * u64::from(self.plan.shards) {
            let call = self.workload.hundred();
            self.invoke(call);
            if let Err(Stopped(text)) = self.run_all_shards() {
                let text = format!("the server stopped without a fault: {text}");
                self.report.violations.push(Violation::new(1, text));
            }
        }
    }

    fn step(&mut self, step: u64) {
        self.mishap();
        let requests = self.rng.between(0, self.plan.burst);
        for _ in 0..requests {
            let wall = self.server.as_ref().map_or(0, |server| server.now().wall);
            let call = self.workload.next(wall);
            self.invoke(call);
        }
        let outcome = self.serve();
        self.collect();
        self.pass_disk_time();
        match outcome {
            Ok(()) if self.disk.is_dead() => self.crash_and_restart(true),
            Ok(()) => {}
            Err(_) => {
                let cut = self.disk.is_dead()
                    || (self.rng.chance(50)
                        && self.plan.durability == codeq_engine::Durability::Fsync);
                self.crash_and_restart(cut);
            }
        }
        if step.is_multiple_of(CHECK_EVERY) {
            self.check_rows("while running");
        }
        if let Err(Stopped(_)) = self.pass_time() {
            let cut = self.disk.is_dead();
            self.crash_and_restart(cut);
        }
    }

    /// Lets the server do some of its work.
    fn serve(&mut self) -> Result<(), Stopped> {
        let plan = &self.plan;
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        if self.rng.chance(90) {
            server.prepare();
        }
        let early = self.saboteur.is(Sabotage::AckBeforeSync);
        for number in 0..server.shards() {
            if self.rng.chance(90) {
                let at = server.run_shard(number, &mut self.saboteur)?;
                mark(&mut self.in_flight, &mut self.shard_runs, number, at);
            }
        }
        if self.rng.chance(80) {
            server.append(&mut self.model, early)?;
        }
        for number in 0..server.shards() {
            // The next commands are applied while the group waits for its sync.
            if self.rng.chance(30) {
                let at = server.run_shard(number, &mut self.saboteur)?;
                mark(&mut self.in_flight, &mut self.shard_runs, number, at);
            }
            if server.wants_checkpoint(number) || self.rng.chance(plan.checkpoint) {
                self.report.checkpoints += 1;
                server.begin_checkpoint(number, &mut self.model, &self.saboteur)?;
            }
            if self.rng.chance(60) {
                server.run_job(number)?;
            }
        }
        if self.rng.chance(80) {
            server.sync(&mut self.model)?;
        }
        Ok(())
    }

    /// Sends a request.
    pub(crate) fn invoke(&mut self, call: ClientCall) {
        let shards = self.plan.shards;
        self.retention = call.retention().map_or(self.retention, |own| self.retention.min(own));
        match call.target(shards, &mut self.rng) {
            Target::First => self.send_to_first(&call),
            Target::Each(shards) => {
                shards.into_iter().for_each(|shard| self.send(shard, call.clone()));
            }
        }
    }

    fn send(&mut self, shard: ShardId, call: ClientCall) {
        let (sender, answer) = oneshot::channel();
        let request = Request::with(call.command.clone(), ReplyTo::One(sender), call.wait);
        self.track(shard, call.command, answer);
        if let Some(server) = &mut self.server {
            server.push(shard, request);
        }
    }

    /// Sends a claim that waits in every shard and is answered by one.
    fn send_to_first(&mut self, call: &ClientCall) {
        let (sender, answer) = oneshot::channel();
        let first = FirstReply::new(ReplyTo::One(sender), Inboxes::default());
        // Only the first answer is heard. Another shard may also lease a task, which is then given back; for the checkers
        // that is a claim whose answer was lost, so the ledger gets one.
        let (_, unheard) = oneshot::channel();
        self.track(ShardId(u16::MAX), call.command.clone(), unheard);
        self.track(ShardId(u16::MAX), call.command.clone(), answer);
        if let Some(server) = &mut self.server {
            for shard in ShardId::all(self.plan.shards) {
                let reply = ReplyTo::First(first.clone());
                server.push(shard, Request::with(call.command.clone(), reply, call.wait));
            }
        }
    }

    fn track(&mut self, shard: ShardId, command: Command, answer: oneshot::Receiver<Answer>) {
        self.tick += 1;
        self.report.ops += 1;
        let invoked = self.tick;
        self.in_flight.push(InFlight { invoked, command, shard, at: None, answer });
    }

    /// Lets clients receive their answers and record them.
    pub(crate) fn collect(&mut self) {
        for mut request in std::mem::take(&mut self.in_flight) {
            match request.answer.try_recv() {
                Ok(Ok(reply)) => self.answered(request, reply),
                Ok(Err(
                    EngineError::DiskFull | EngineError::Overloaded | EngineError::TooManyWaiting,
                )) => {
                    let at = request.at.unwrap_or_default().now;
                    self.record(&request, Outcome::Refused { at, code: "disk_full".to_owned() });
                }
                Ok(Err(_)) | Err(TryRecvError::Closed) => self.record(&request, Outcome::Unknown),
                Err(TryRecvError::Empty) => self.in_flight.push(request),
            }
        }
    }

    fn answered(&mut self, request: InFlight, mut reply: Reply) {
        self.saboteur.after_release(&mut reply);
        let mut at = request.at.unwrap_or_default();
        let mut shard = request.shard;
        if let Reply::Claimed(tasks) = &reply
            && let Some(task) = tasks.first()
        {
            // A waiting claim is served later than it arrived.
            shard = task.id.shard(self.plan.shards);
            at = self.shard_runs.at(shard, task.updated_at).unwrap_or(at);
        }
        count_in_engine_time(&mut reply, at);
        let at = at.now;
        let outcome = match notes::answer(&reply) {
            Ok(answer) if self.saboteur.hides_fences() => {
                Outcome::Acked { at, shard, answer: answer.without_fences() }
            }
            Ok(answer) => Outcome::Acked { at, shard, answer },
            Err(code) => Outcome::Refused { at, code },
        };
        learn(&mut self.workload, &request.command, &reply);
        self.record(&request, outcome);
    }

    fn record(&mut self, request: &InFlight, outcome: Outcome) {
        self.tick += 1;
        match outcome {
            Outcome::Acked { .. } => self.report.acked += 1,
            Outcome::Unknown => self.report.unknown += 1,
            Outcome::Refused { .. } => {}
        }
        let line = Line {
            invoked: request.invoked,
            done: self.tick,
            op: notes::op(&request.command),
            outcome,
        };
        self.report.trace = mix(&[self.report.trace, text_hash(&line.to_text())]);
        self.ledger.lines.push(line);
    }

    /// Marks every request in flight as never answered.
    pub(crate) fn lose_in_flight(&mut self) {
        self.collect();
        for request in std::mem::take(&mut self.in_flight) {
            self.record(&request, Outcome::Unknown);
        }
    }

    /// Lets the time pass that the disk took.
    fn pass_disk_time(&mut self) {
        let cost = self.disk.take_cost();
        self.clock.advance(cost);
        self.report.simulated += cost;
    }

    /// Checks the rows against the invariants and, if nothing is in progress, against the model.
    pub(crate) fn check_rows(&mut self, when: &str) {
        let Some(server) = &self.server else { return };
        let mut found = check_shards(when, server.node.shards.iter());
        if server.is_quiet() {
            match self.model.compare(when, &server.node.shards) {
                Ok(violations) => found.extend(violations),
                Err(error) => found.push(Violation::new(14, format!("{when}: {error}"))),
            }
        }
        self.report.violations.extend(found);
    }

    /// Lets a callback sender look into the outbox.
    pub(crate) fn look_for_callbacks(&mut self) {
        let Some(server) = &self.server else { return };
        if !server.is_quiet() {
            return; // It only sees what is durable.
        }
        for number in 0..server.shards() {
            let now = server.now().now;
            let Some(shard) = server.node.shards.get(number) else { continue };
            self.workload.look_for_callbacks(shard, now);
        }
    }

    /// Adds to the trace something that must be the same in every run of the seed.
    pub(crate) fn trace(&mut self, what: u64) {
        self.report.trace = split_mix64(self.report.trace ^ what);
    }

    /// Checks the history so far.
    pub(crate) fn judge(&mut self) {
        let found = check_history(&self.ledger);
        self.report.violations.extend(found);
    }
}

/// Updates what the clients know.
pub(crate) fn learn(workload: &mut Workload, command: &Command, reply: &Reply) {
    match (command, reply) {
        (Command::Enqueue(enqueue), Reply::Enqueued(made)) => {
            for one in made {
                if let Enqueued::Created(task) | Enqueued::Repeated(task) = one {
                    workload.created(&enqueue.tenant, task.id);
                }
            }
        }
        (Command::Claim(claim), Reply::Claimed(tasks)) => {
            for task in tasks {
                workload.claimed(Held {
                    tenant: Arc::clone(&claim.tenant),
                    worker: Arc::clone(&claim.worker),
                    id: task.id,
                    until: task.lease_until.unwrap_or(0),
                    fence: task.fence,
                });
            }
        }
        (Command::Heartbeat(beat), Reply::Extended { lease_until, .. }) => {
            workload.extended(beat.id, *lease_until);
        }
        (Command::Nack(nack), Reply::Returned(Returned::Dead)) => {
            workload.died(&nack.tenant, nack.id);
        }
        (Command::UnderLease(command), reply) => {
            learn(workload, &Command::from((*command.action).clone()), reply);
        }
        (Command::Abandon(abandon), Reply::Returned(Returned::Dead)) => {
            workload.died(&abandon.tenant, abandon.id);
        }
        (Command::Submit(submit), Reply::Submitted(record)) if record.error.is_some() => {
            workload.died(&submit.tenant, submit.id);
        }
        (Command::Cancel(cancel), Reply::Cancelled(_)) => {
            workload.died(&cancel.tenant, cancel.id);
        }
        (Command::Heartbeat(beat), Reply::Rejected(_)) if &*beat.worker != "intruder" => {
            workload.refused(beat.id);
        }
        _ => {}
    }
}

/// Notes that the requests that had arrived at a shard were applied at this moment.
pub(crate) fn mark_applied(run: &mut Run, number: usize, at: Moment) {
    mark(&mut run.in_flight, &mut run.shard_runs, number, at);
}

fn mark(in_flight: &mut [InFlight], shard_runs: &mut ShardRuns, number: usize, at: Moment) {
    shard_runs.add(number, at);
    for request in in_flight {
        if request.at.is_none() && usize::from(request.shard) == number {
            request.at = Some(at);
        }
    }
}

/// When the shards ran, for as long as answers may be in flight.
#[derive(Default)]
struct ShardRuns(VecDeque<(usize, Moment)>);

impl ShardRuns {
    fn add(&mut self, shard: usize, at: Moment) {
        const MEMORY: usize = 1_024;
        if self.0.len() >= MEMORY {
            self.0.pop_front();
        }
        self.0.push_back((shard, at));
    }

    /// The latest run of a shard at which its wall clock showed this.
    fn at(&self, shard: ShardId, wall: Millis) -> Option<Moment> {
        let of = |run: &&(usize, Moment)| run.0 == usize::from(shard) && run.1.wall == wall;
        self.0.iter().rev().find(of).map(|(_, at)| *at)
    }
}

/// Converts the dates of deadlines in an answer to engine time. Clients see dates, but the checkers count in engine
/// time, which nobody sets.
pub(crate) fn count_in_engine_time(reply: &mut Reply, at: Moment) {
    let back = |date: &mut Millis| *date = Moment { now: at.wall, wall: at.now }.date_of(*date);
    let convert = |task: &mut Task| {
        task.lease_until.iter_mut().for_each(back);
        task.visible_at.iter_mut().for_each(back);
        task.run_until.iter_mut().for_each(back);
    };
    match reply {
        Reply::Enqueued(made) => made.iter_mut().for_each(|one| {
            if let Enqueued::Created(task) | Enqueued::Repeated(task) = one {
                convert(task);
            }
        }),
        Reply::Claimed(tasks) => tasks.iter_mut().for_each(convert),
        Reply::Extended { lease_until, .. } => back(lease_until),
        Reply::Cancelled(task)
        | Reply::CancelRequested(task)
        | Reply::Replayed(task)
        | Reply::Rescheduled(task) => convert(task),
        _ => {}
    }
}
