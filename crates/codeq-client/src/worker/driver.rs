//! Runs a worker: one stream after another, the handlers, and the end.
//!
//! While there is no stream, handlers go on and their reports are kept. A shutdown half-closes the stream,
//! which gives its credits back; what is still in hand is seen to over another stream, without credits.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use codeq_proto::worker::server_event::Event as Answer;
use codeq_proto::worker::worker_event::Event;
use codeq_proto::worker::{Ready, ServerError, ServerEvent, Task as WireTask, WorkerEvent};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tonic::{Status, Streaming};

use super::Setup;
use super::hand::{Ack, Hand, Settled};
use super::link::{self, Link};
use super::outcome::{Outcome, Report};
use super::task::{CancelReason, Signal, TaskInfo};
use crate::backoff::Backoff;
use crate::error::Error;

/// Time for the last reports after the grace period, and for the server to end a stream that we end.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A stream that lived so long was a good one: the next failure is the first.
const GOOD: Duration = Duration::from_secs(10);

/// A handler's end.
struct Finished {
    task_id: String,
    fence: u64,
    outcome: Outcome,
}

/// How a stream ended.
enum End {
    /// There is nothing left to do.
    Finished,
    /// We ended it to give credits back: open another one at once.
    Swapped,
    /// Open another one after a pause.
    Broken(Error),
    /// There is no use in another one.
    Refused(Error),
}

/// A shutdown under way.
struct Drain {
    grace_ends: Instant,
    released: bool,
}

impl Drain {
    /// The moment of the next step.
    fn next_step(&self) -> Instant {
        if self.released { self.grace_ends + LAST_WORDS } else { self.grace_ends }
    }
}

pub(super) struct Driver {
    setup: Setup,
    shutdown: watch::Receiver<bool>,
    hand: Hand,
    running: JoinSet<Finished>,
    /// What is to be sent over this stream: a message for each task in hand and each credit at most.
    outbox: VecDeque<WorkerEvent>,
    /// Readys of this stream that were not answered.
    credits: usize,
    drain: Option<Drain>,
    /// There was no time left for the last reports.
    given_up: bool,
    failure: Option<Error>,
    backoff: Backoff,
}

impl Driver {
    pub(super) fn new(setup: Setup, shutdown: watch::Receiver<bool>) -> Driver {
        Driver {
            hand: Hand::new(setup.lease_seconds),
            setup,
            shutdown,
            running: JoinSet::new(),
            outbox: VecDeque::new(),
            credits: 0,
            drain: None,
            given_up: false,
            failure: None,
            backoff: Backoff::default(),
        }
    }

    pub(super) async fn run(mut self) -> Result<(), Error> {
        loop {
            let setup = &self.setup;
            let opening =
                link::open(setup.endpoint.clone(), setup.options.clone(), setup.worker_id.clone());
            let end = match self.meanwhile(opening).await {
                None => End::Finished,
                Some(Ok(link)) => self.serve(link).await,
                Some(Err(error @ Error::Refused { .. })) => End::Refused(error),
                Some(Err(error)) => End::Broken(error),
            };
            self.outbox.clear();
            self.credits = 0;
            match end {
                End::Finished => break,
                End::Refused(error) => return Err(error),
                End::Swapped => {}
                End::Broken(error) => {
                    tracing::warn!(%error, "the worker has no stream");
                    let pause = tokio::time::sleep(self.backoff.pause());
                    if self.meanwhile(pause).await.is_none() {
                        break;
                    }
                }
            }
        }
        match (self.failure, self.hand.len()) {
            (Some(failure), _) => Err(failure),
            (None, 0) => Ok(()),
            (None, left) => Err(Error::Unavailable(format!(
                "shut down without an answer about {left} tasks, whose leases will end"
            ))),
        }
    }

    /// Waits for something outside while handlers go on. None if there is nothing left to wait for.
    async fn meanwhile<F: Future>(&mut self, outside: F) -> Option<F::Output> {
        tokio::pin!(outside);
        while !self.is_finished() {
            tokio::select! {
                output = &mut outside => return Some(output),
                () = self.inside() => {}
            }
        }
        None
    }

    fn is_finished(&self) -> bool {
        let Some(drain) = &self.drain else { return false };
        self.given_up || (self.hand.is_empty() && (self.running.is_empty() || drain.released))
    }

    /// The next thing that happens on this side.
    async fn inside(&mut self) {
        let step = self.drain.as_ref().map(Drain::next_step);
        tokio::select! {
            Some(finished) = self.running.join_next() => self.finish(finished),
            () = asked_for(&mut self.shutdown), if self.drain.is_none() => self.begin_drain(),
            () = tokio::time::sleep_until(step.unwrap_or_else(Instant::now)), if step.is_some() => {
                self.next_step();
            }
            else => std::future::pending().await,
        }
    }

    fn finish(&mut self, finished: Result<Finished, JoinError>) {
        // An error means that we ended it ourselves: panics are outcomes.
        if let Ok(Finished { task_id, fence, outcome }) = finished {
            let now = Instant::now();
            let report = Report::new(outcome, self.setup.options.max_payload_bytes);
            self.hand.finish(&task_id, fence, report, now);
            self.outbox.extend(self.hand.due(&task_id, now));
        }
    }

    fn begin_drain(&mut self) {
        let grace_ends = Instant::now() + self.setup.grace;
        self.drain.get_or_insert(Drain { grace_ends, released: false });
    }

    /// The grace period is over; after it, the time for last words.
    fn next_step(&mut self) {
        match &mut self.drain {
            Some(drain) if !drain.released => {
                drain.released = true;
                let now = Instant::now();
                self.hand.release_running(now);
                self.running.abort_all();
                self.outbox.extend(self.hand.all_due(now));
            }
            _ => self.given_up = true,
        }
    }

    async fn serve(&mut self, link: Link) -> End {
        let Link { out, mut inbound } = link;
        let opened = Instant::now();
        self.outbox.clear();
        self.hand.reconnected(opened);
        self.outbox.extend(self.hand.all_due(opened));
        let mut tick = tokio::time::interval(self.setup.tick());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.drain.is_some() && (self.credits > 0 || self.is_finished()) {
                drop(out);
                return self.half_closed(inbound).await;
            }
            self.give_credits();
            tokio::select! {
                permit = out.reserve(), if !self.outbox.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(event) = self.outbox.pop_front() {
                            permit.send(event);
                        }
                    }
                    Err(_) => return End::Broken(last_words(Ok(None))),
                },
                message = inbound.message() => match message {
                    Ok(Some(event)) => {
                        if let Some(end) = self.receive(event) {
                            return end;
                        }
                    }
                    over => return End::Broken(last_words(over)),
                },
                _ = tick.tick() => {
                    if opened.elapsed() > GOOD {
                        self.backoff.reset();
                    }
                    self.outbox.extend(self.hand.all_due(Instant::now()));
                }
                () = self.inside() => {}
            }
        }
    }

    /// We have said our last over this stream. What the server had on its way is taken in.
    async fn half_closed(&mut self, mut inbound: Streaming<ServerEvent>) -> End {
        let reading = tokio::time::sleep(LAST_WORDS.min(self.setup.lease() / 3));
        tokio::pin!(reading);
        loop {
            tokio::select! {
                message = inbound.message() => match message {
                    Ok(Some(event)) => {
                        self.receive(event);
                    }
                    _ => break,
                },
                () = &mut reading => break,
            }
        }
        if self.is_finished() { End::Finished } else { End::Swapped }
    }

    /// As many credits as handlers could start. Reports that are not acknowledged hold credits back when
    /// there are as many of them as handlers.
    fn give_credits(&mut self) {
        let Setup { concurrency, lease_seconds, .. } = self.setup;
        while self.drain.is_none()
            && self.running.len() + self.credits < concurrency
            && self.hand.len() + self.credits < concurrency * 2
        {
            self.credits += 1;
            let commands = self.setup.commands.clone();
            let ready = Ready { commands, lease_seconds, count: 1 };
            self.outbox.push_back(WorkerEvent { event: Some(Event::Ready(ready)) });
        }
    }

    /// Takes in what the server says. Some if that ends the stream.
    fn receive(&mut self, event: ServerEvent) -> Option<End> {
        match event.event? {
            Answer::Task(assignment) => self.assigned(assignment.task),
            Answer::TaskBatch(batch) => self.assigned(batch.tasks),
            Answer::ResultAck(ack) => self.settle(ack.into()),
            Answer::NackAck(ack) => self.settle(ack.into()),
            Answer::AbandonAck(ack) => self.settle(ack.into()),
            Answer::HeartbeatAck(ack) => self.settle(ack.into()),
            Answer::ResultAckBatch(batch) => {
                batch.acks.into_iter().for_each(|ack| self.settle(ack.into()));
            }
            Answer::Error(error) => return self.server_error(error),
            Answer::HelloAck(_) => {}
        }
        self.backoff.reset();
        None
    }

    fn server_error(&mut self, error: ServerError) -> Option<End> {
        let failure = match Error::of_stream(error.code, error.message) {
            refused @ Error::Refused { .. } => refused,
            passing => return Some(End::Broken(passing)),
        };
        // The token does not allow what this worker is for: no use in going on.
        tracing::error!(error = %failure, "the server refuses the worker");
        self.failure.get_or_insert(failure);
        self.begin_drain();
        None
    }

    /// The answer to one credit.
    fn assigned(&mut self, tasks: impl IntoIterator<Item = WireTask>) {
        self.credits = self.credits.saturating_sub(1);
        for task in tasks {
            let now = Instant::now();
            let (signal, cancellation) = Signal::new();
            if task.cancel_requested {
                signal.fire(CancelReason::Requested);
            }
            let info = TaskInfo::new(&task, cancellation);
            self.hand.take(&task.id, task.fence, signal, now);
            if self.drain.is_some() {
                let report = Report::Abandon { no_penalty: true };
                self.hand.finish(&task.id, task.fence, report, now);
                self.outbox.extend(self.hand.due(&task.id, now));
                continue;
            }
            let work = self.setup.handlers.run(info, task.payload);
            let (task_id, fence) = (task.id, task.fence);
            self.running.spawn(async move { Finished { task_id, fence, outcome: work.await } });
        }
    }

    fn settle(&mut self, ack: Ack) {
        let now = Instant::now();
        match self.hand.settle(&ack, now) {
            Settled::No => self.outbox.extend(self.hand.due(&ack.task_id, now)),
            Settled::Accepted(report) => self.setup.stats.accepted(&report),
            Settled::Lost => {
                let (task, code) = (&ack.task_id, &ack.code);
                tracing::warn!(%task, %code, "a lease is lost");
                self.setup.stats.lost();
            }
        }
    }
}

async fn asked_for(shutdown: &mut watch::Receiver<bool>) {
    if shutdown.wait_for(|shutdown| *shutdown).await.is_err() {
        // Nobody is left who could ask for it.
        std::future::pending().await
    }
}

fn last_words(message: Result<Option<ServerEvent>, Status>) -> Error {
    match message {
        Err(status) => Error::of_status(&status),
        Ok(_) => Error::Unavailable("the stream ended".to_owned()),
    }
}
