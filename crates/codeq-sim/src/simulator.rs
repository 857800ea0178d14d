//! One run: a seed decides everything, and the same seed decides the same.
//!
//! Two phases. First the clients work while things go wrong; the rows are held against the invariants and
//! against the [`Model`] again and again, and after every restart. Then everything is healed: what clients
//! know is judged, and every task that is left must be claimable and finish.

use std::collections::VecDeque;
use std::sync::Arc;

use codeq_core::command::{Command, Millis};
use codeq_core::id::split_mix64;
use codeq_core::moment::Moment;
use codeq_core::reply::{Enqueued, Reply, Returned};
use codeq_core::view::Task;
use codeq_engine::request::{FirstReply, Inboxes, ReplyTo, Request};
use codeq_engine::route::{Route, route};
use codeq_engine::{Answer, EngineError};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::disk::{Class, SimDisk};
use crate::invariants::{Violation, check_all, check_history};
use crate::ledger::{Ledger, Line, Outcome};
use crate::model::Model;
use crate::notes;
use crate::plan::Plan;
use crate::rng::{Rng, mix, text_hash};
use crate::sabotage::{Sabotage, Saboteur};
use crate::server::{Server, SimClock, Stopped, stop};
use crate::workload::{Ask, Held, Workload};

/// What can be chosen about a run. The rest follows from the seed.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// A bug to plant.
    pub sabotage: Option<Sabotage>,
    /// Rounds of requests; none means what the seed says.
    pub steps: Option<u64>,
    /// Clients are not shown the fences of their claims, as over an interface that leaves them out.
    pub without_fences: bool,
    /// Return the ledger with the report.
    pub keep_ledger: bool,
}

/// What came of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// A hash over everything that clients saw and everything that restarts found.
    pub trace: u64,
    /// Operations that were asked for.
    pub ops: u64,
    /// Those of them that were acknowledged.
    pub acked: u64,
    /// Those whose answer never came.
    pub unknown: u64,
    /// Virtual milliseconds.
    pub simulated: Millis,
    /// Kills and power cuts.
    pub crashes: u64,
    /// Checkpoints that were begun.
    pub checkpoints: u64,
    /// What must not be. Empty if all is well.
    pub violations: Vec<Violation>,
    /// All that clients know; for a closer look at a failing seed.
    pub ledger: Vec<String>,
}

impl Report {
    /// The one command that repeats this run.
    pub fn replay_command(&self) -> String {
        format!("codeq sim --seed {}", self.seed)
    }
}

/// Wall clock at the start of every run: a date of no importance.
const EPOCH: Millis = 1_700_000_000_000;
/// The rows are checked every so many steps.
const CHECK_EVERY: u64 = 8;
/// A run that found something goes on this long no more: one cause has many effects.
const VIOLATIONS_MAX: usize = 8;

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Report {
    let mut run = match Run::new(seed, options) {
        Ok(run) => run,
        Err(Stopped(text)) => {
            let violations =
                vec![Violation::new(1, format!("a new directory did not open: {text}"))];
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

/// A request under way.
struct Flight {
    invoked: u64,
    command: Command,
    shard: u16,
    /// The moment at which it was applied.
    at: Option<Moment>,
    answer: oneshot::Receiver<Answer>,
}

pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) disk: SimDisk,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) engine: codeq_engine::Options,
    /// None while the process is down.
    pub(crate) server: Option<Server>,
    pub(crate) model: Model,
    pub(crate) saboteur: Saboteur,
    pub(crate) workload: Workload,
    flights: Vec<Flight>,
    /// The latest moments at which the shards applied something.
    turns: Turns,
    pub(crate) ledger: Ledger,
    tick: u64,
    /// The shortest retention that was ever asked for.
    pub(crate) retention: Millis,
    /// Steps until the present fault is over.
    pub(crate) fault_left: u64,
    pub(crate) report: Report,
}

impl Run {
    fn new(seed: u64, options: &Options) -> Result<Run, Stopped> {
        let plan = Plan::of(seed);
        let engine = codeq_engine::Options {
            shards: Some(plan.shards),
            durability: plan.durability,
            settings: plan.settings.clone(),
            segment_bytes: plan.segment_bytes,
            memtable_bytes: plan.memtable_bytes,
            checkpoint_log_bytes: u64::MAX,
            verify_bytes_max: codeq_engine::options::VERIFY_BYTES_MAX,
            scrub_every: codeq_engine::options::SCRUB_EVERY,
            store: codeq_store::Options {
                owner: None,
                cache_bytes: 1 << 20,
                sync_every: 64 << 10,
                rewrite_slack: 256 << 10,
                rewrite_step: 64 << 10,
            },
            observer: codeq_engine::SharedObserver::default(),
        };
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
            flights: Vec::new(),
            turns: Turns::default(),
            ledger: Ledger::default(),
            tick: 0,
            // The default holds until the first configuration is applied, and only then.
            retention: plan.settings.retention.min(plan.settings.dead_letter_retention),
            fault_left: 0,
            report: Report { seed, ..Report::default() },
            engine,
            plan,
        };
        run.invoke(Ask { command: Command::Configure(run.plan.settings.clone()), wait: 0 });
        Ok(run)
    }

    /// Long queues from the start, if the plan has them.
    fn preload(&mut self) {
        for _ in 0..self.plan.preload {
            let ask = self.workload.hundred();
            self.invoke(ask);
            if let Err(Stopped(text)) = self.turn_all() {
                let text = format!("nothing is wrong, and yet the server stopped: {text}");
                self.report.violations.push(Violation::new(1, text));
            }
        }
    }

    fn step(&mut self, step: u64) {
        self.mishap();
        let requests = self.rng.between(0, self.plan.burst);
        for _ in 0..requests {
            let wall = self.server.as_ref().map_or(0, |server| server.now().wall);
            let ask = self.workload.next(wall);
            self.invoke(ask);
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

    /// The server gets some of its work done.
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
                let at = server.turn(number, &mut self.saboteur)?;
                mark(&mut self.flights, &mut self.turns, number, at);
            }
        }
        if self.rng.chance(80) {
            server.append(&mut self.model, early)?;
        }
        for number in 0..server.shards() {
            // The next commands are applied while the group waits for its sync.
            if self.rng.chance(30) {
                let at = server.turn(number, &mut self.saboteur)?;
                mark(&mut self.flights, &mut self.turns, number, at);
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

    /// Somebody asks for something.
    pub(crate) fn invoke(&mut self, ask: Ask) {
        let shards = self.plan.shards;
        if let Command::Configure(settings) = &ask.command {
            let shorter = settings.retention.min(settings.dead_letter_retention);
            self.retention = self.retention.min(shorter);
        }
        if let Command::PutTopic(put) = &ask.command {
            let own = [put.policy.retention, put.policy.dead_letter_retention];
            let shorter = own.into_iter().filter(|ms| *ms > 0).min();
            self.retention = shorter.map_or(self.retention, |own| self.retention.min(own));
        }
        let is_claim = matches!(ask.command, Command::Claim(_));
        match route(&ask.command, shards) {
            Ok(Route::One(shard)) => self.send(shard, ask),
            Ok(Route::All) if is_claim && ask.wait > 0 && shards > 1 => self.send_to_first(&ask),
            Ok(Route::All) if is_claim => {
                let shard = self.rng.below(u64::from(shards)) as u16;
                self.send(shard, ask);
            }
            Ok(Route::All) => (0..shards).for_each(|shard| self.send(shard, ask.clone())),
            // Refused before it reached a shard.
            Err(_) => {}
        }
    }

    fn send(&mut self, shard: u16, ask: Ask) {
        let (sender, answer) = oneshot::channel();
        let request = Request::with(ask.command.clone(), ReplyTo::One(sender), ask.wait);
        self.take_off(shard, ask.command, answer);
        if let Some(server) = &mut self.server {
            server.push(shard, request);
        }
    }

    /// A claim that waits in every shard and is answered by one.
    fn send_to_first(&mut self, ask: &Ask) {
        let (sender, answer) = oneshot::channel();
        let first = FirstReply::new(ReplyTo::One(sender), Inboxes::default());
        // One shard's answer arrives; the others may lease a task for a moment and take it back.
        let (_, unheard) = oneshot::channel();
        self.take_off(u16::MAX, ask.command.clone(), unheard);
        self.take_off(u16::MAX, ask.command.clone(), answer);
        if let Some(server) = &mut self.server {
            for shard in 0..self.plan.shards {
                let reply = ReplyTo::First(first.clone());
                server.push(shard, Request::with(ask.command.clone(), reply, ask.wait));
            }
        }
    }

    fn take_off(&mut self, shard: u16, command: Command, answer: oneshot::Receiver<Answer>) {
        self.tick += 1;
        self.report.ops += 1;
        let invoked = self.tick;
        self.flights.push(Flight { invoked, command, shard, at: None, answer });
    }

    /// Clients take their answers and write them down.
    pub(crate) fn collect(&mut self) {
        for mut flight in std::mem::take(&mut self.flights) {
            match flight.answer.try_recv() {
                Ok(Ok(reply)) => self.answered(flight, reply),
                Ok(Err(
                    EngineError::DiskFull | EngineError::Overloaded | EngineError::TooManyWaiting,
                )) => {
                    let at = flight.at.unwrap_or_default().now;
                    self.note(&flight, Outcome::Refused { at, code: "disk_full".to_owned() });
                }
                Ok(Err(_)) | Err(TryRecvError::Closed) => self.note(&flight, Outcome::Unknown),
                Err(TryRecvError::Empty) => self.flights.push(flight),
            }
        }
    }

    fn answered(&mut self, flight: Flight, mut reply: Reply) {
        self.saboteur.after_release(&mut reply);
        let mut at = flight.at.unwrap_or_default();
        let mut shard = flight.shard;
        if let Reply::Claimed(tasks) = &reply
            && let Some(task) = tasks.first()
        {
            // A claim that waited is served at a later moment than it arrived.
            shard = task.id.shard(self.plan.shards);
            at = self.turns.at(shard, task.updated_at).unwrap_or(at);
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
        self.learn(&flight.command, &reply);
        self.note(&flight, outcome);
    }

    fn note(&mut self, flight: &Flight, outcome: Outcome) {
        self.tick += 1;
        match outcome {
            Outcome::Acked { .. } => self.report.acked += 1,
            Outcome::Unknown => self.report.unknown += 1,
            Outcome::Refused { .. } => {}
        }
        let line = Line {
            invoked: flight.invoked,
            done: self.tick,
            op: notes::op(&flight.command),
            outcome,
        };
        self.report.trace = mix(&[self.report.trace, text_hash(&line.to_text())]);
        self.ledger.lines.push(line);
    }

    /// What the clients now know.
    fn learn(&mut self, command: &Command, reply: &Reply) {
        let workload = &mut self.workload;
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
                self.learn(&Command::from((*command.deed).clone()), reply);
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

    /// Every request under way will never be answered.
    pub(crate) fn lose_flights(&mut self) {
        self.collect();
        for flight in std::mem::take(&mut self.flights) {
            self.note(&flight, Outcome::Unknown);
        }
    }

    /// The time that the disk took passes for everybody.
    fn pass_disk_time(&mut self) {
        let cost = self.disk.take_cost();
        self.clock.advance(cost);
        self.report.simulated += cost;
    }

    /// Holds the rows against the invariants and the model, if nothing is under way.
    pub(crate) fn check_rows(&mut self, when: &str) {
        let Some(server) = &self.server else { return };
        let mut found = Vec::new();
        for shard in &server.node.shards {
            let data = shard.data().read();
            match check_all(&data.state, &data.store) {
                Ok(violations) => found.extend(violations),
                Err(error) => found.push(Violation::new(3, format!("{when}: {error}"))),
            }
        }
        if server.is_quiet() {
            match self.model.compare(when, &server.node.shards) {
                Ok(violations) => found.extend(violations),
                Err(error) => found.push(Violation::new(14, format!("{when}: {error}"))),
            }
        }
        self.report.violations.extend(found);
    }

    /// A callback sender looks into the outbox.
    pub(crate) fn look_for_callbacks(&mut self) {
        let Some(server) = &self.server else { return };
        if !server.is_quiet() {
            return; // It is sent only what is durable.
        }
        for number in 0..server.shards() {
            let now = server.now().now;
            let Some(shard) = server.node.shards.get(number) else { continue };
            let data = shard.data().read();
            let reader = codeq_core::read::Reader { state: &data.state, kv: &data.store };
            let due = reader.callbacks_due((0, 0), 4).unwrap_or_default();
            for due in due.into_iter().filter(|due| due.at <= now) {
                let Ok(Some(due)) = reader.callback(due.seq) else { continue };
                let callback = (Arc::clone(&due.task.tenant), due.task.id);
                if !self.workload.callbacks.contains(&callback) {
                    self.workload.callbacks.push_back(callback);
                }
            }
        }
    }

    /// Adds something that both runs of a seed must agree on.
    pub(crate) fn trace(&mut self, what: u64) {
        self.report.trace = split_mix64(self.report.trace ^ what);
    }

    /// The history so far is judged.
    pub(crate) fn judge(&mut self) {
        let found = check_history(&self.ledger);
        self.report.violations.extend(found);
    }
}

/// Requests that had arrived at a shard were applied at this moment.
pub(crate) fn mark_all(run: &mut Run, number: usize, at: Moment) {
    mark(&mut run.flights, &mut run.turns, number, at);
}

fn mark(flights: &mut [Flight], turns: &mut Turns, number: usize, at: Moment) {
    turns.add(number, at);
    for flight in flights {
        if flight.at.is_none() && usize::from(flight.shard) == number {
            flight.at = Some(at);
        }
    }
}

/// When the shards had their turns, as far back as an answer may be under way.
#[derive(Default)]
struct Turns(VecDeque<(usize, Moment)>);

impl Turns {
    fn add(&mut self, shard: usize, at: Moment) {
        const MEMORY: usize = 1_024;
        if self.0.len() >= MEMORY {
            self.0.pop_front();
        }
        self.0.push_back((shard, at));
    }

    /// The latest turn of a shard when its wall clock showed that.
    fn at(&self, shard: u16, wall: Millis) -> Option<Moment> {
        let of = |turn: &&(usize, Moment)| turn.0 == usize::from(shard) && turn.1.wall == wall;
        self.0.iter().rev().find(of).map(|(_, at)| *at)
    }
}

/// Clients are shown dates. The checkers count in engine time, which nobody sets: the dates of deadlines in an
/// answer that was given at this moment are turned back.
fn count_in_engine_time(reply: &mut Reply, at: Moment) {
    let back = |date: &mut Millis| *date = Moment { now: at.wall, wall: at.now }.date_of(*date);
    let turn = |task: &mut Task| {
        task.lease_until.iter_mut().for_each(back);
        task.visible_at.iter_mut().for_each(back);
    };
    match reply {
        Reply::Enqueued(made) => made.iter_mut().for_each(|one| {
            if let Enqueued::Created(task) | Enqueued::Repeated(task) = one {
                turn(task);
            }
        }),
        Reply::Claimed(tasks) => tasks.iter_mut().for_each(turn),
        Reply::Extended { lease_until, .. } => back(lease_until),
        Reply::Cancelled(task) | Reply::CancelRequested(task) | Reply::Replayed(task) => turn(task),
        _ => {}
    }
}
