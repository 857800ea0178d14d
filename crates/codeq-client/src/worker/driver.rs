//! Runs a worker: its streams, its handlers, and its shutdown.
//!
//! While there is no stream, handlers continue and their reports are kept. A shutdown half-closes the stream, which
//! returns its credits; tasks still held are finished over another stream, without credits.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use codeq_proto::worker::server_event::Event as Answer;
use codeq_proto::worker::worker_event::Event;
use codeq_proto::worker::{Ready, ServerError, ServerEvent, Task as WireTask, WorkerEvent};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tonic::Streaming;

use super::Setup;
use super::ack::Ack;
use super::acknowledged::Acknowledged;
use super::leased::{LeasedTasks, Settled};
use super::link::{self, Link};
use super::outcome::{Outcome, Report};
use super::task::{CancelReason, Signal, TaskInfo, run_limit};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::seconds::from_now;
use crate::transport::stream_error;

/// Time limit for the last reports after the grace period, and for the server to end a half-closed stream.
const LAST_REPORTS: Duration = Duration::from_secs(5);
/// A stream that lived this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The outcome of a handler.
struct Finished {
    task_id: String,
    fence: u64,
    outcome: Outcome,
}

/// How a stream ended.
enum End {
    /// Nothing is left to do.
    Finished,
    /// Closed by us to return credits: open another one at once.
    Swapped,
    /// Open another one after a delay.
    Broken(Error),
    /// The server would refuse another one, too.
    Refused(Error),
}

/// A shutdown in progress.
struct Drain {
    grace_ends: Instant,
    released: bool,
}

impl Drain {
    /// When the next step is due.
    fn next_step(&self) -> Instant {
        if self.released { self.grace_ends + LAST_REPORTS } else { self.grace_ends }
    }
}

pub(super) struct Driver {
    setup: Setup,
    shutdown: watch::Receiver<bool>,
    leased: LeasedTasks,
    running: JoinSet<Finished>,
    /// Messages for this stream: at most one per held task and per credit.
    outbox: VecDeque<WorkerEvent>,
    /// Unanswered `Ready` messages of this stream.
    credits: usize,
    drain: Option<Drain>,
    /// The time for the last reports has run out.
    given_up: bool,
    failure: Option<Error>,
    backoff: Backoff,
}

impl Driver {
    pub(super) fn new(setup: Setup, shutdown: watch::Receiver<bool>) -> Driver {
        Driver {
            leased: LeasedTasks::new(setup.lease_seconds),
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
                    let server = self.setup.endpoint.uri();
                    tracing::warn!(%server, %error, "the worker has no stream; reconnecting");
                    let pause = tokio::time::sleep(self.backoff.pause());
                    if self.meanwhile(pause).await.is_none() {
                        break;
                    }
                }
            }
        }
        match (self.failure, self.leased.len()) {
            (Some(failure), _) => Err(failure),
            (None, 0) => Ok(()),
            (None, left) => Err(Error::Unavailable(format!(
                "shut down before the server acknowledged {left} tasks; they return to their queue when their leases end"
            ))),
        }
    }

    /// Awaits something while handlers continue. `None` if nothing is left to wait for.
    async fn meanwhile<F: Future>(&mut self, outside: F) -> Option<F::Output> {
        tokio::pin!(outside);
        while !self.is_finished() {
            tokio::select! {
                output = &mut outside => return Some(output),
                () = self.local_event() => {}
            }
        }
        None
    }

    fn is_finished(&self) -> bool {
        let Some(drain) = &self.drain else { return false };
        self.given_up || (self.leased.is_empty() && (self.running.is_empty() || drain.released))
    }

    /// Handles the next event on this side: a finished handler, or a step of the shutdown.
    async fn local_event(&mut self) {
        let step = self.drain.as_ref().map(Drain::next_step);
        tokio::select! {
            Some(finished) = self.running.join_next() => self.finish(finished),
            () = requested(&mut self.shutdown), if self.drain.is_none() => self.begin_drain(),
            () = tokio::time::sleep_until(step.unwrap_or_else(Instant::now)), if step.is_some() => {
                self.next_step();
            }
            else => std::future::pending().await,
        }
    }

    fn finish(&mut self, finished: Result<Finished, JoinError>) {
        // A `JoinError` means that we aborted the handler: panics are outcomes.
        if let Ok(Finished { task_id, fence, outcome }) = finished {
            let now = Instant::now();
            let report = Report::new(outcome, self.setup.options.max_payload_bytes);
            self.leased.finish(&task_id, fence, report, now);
            self.outbox.extend(self.leased.due(&task_id, now));
        }
    }

    fn begin_drain(&mut self) {
        let grace_ends = from_now(self.setup.grace);
        self.drain.get_or_insert(Drain { grace_ends, released: false });
    }

    /// Ends the grace period or, the second time, the wait for the last reports.
    fn next_step(&mut self) {
        match &mut self.drain {
            Some(drain) if !drain.released => {
                drain.released = true;
                let now = Instant::now();
                self.leased.release_running(now);
                self.running.abort_all();
                self.outbox.extend(self.leased.all_due(now));
            }
            _ => self.given_up = true,
        }
    }

    async fn serve(&mut self, link: Link) -> End {
        let Link { out, mut inbound } = link;
        let opened = Instant::now();
        self.outbox.clear();
        self.leased.reconnected(opened);
        self.outbox.extend(self.leased.all_due(opened));
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
                    Err(_) => return End::Broken(stream_error::<ServerEvent>(Ok(None))),
                },
                message = inbound.message() => match message {
                    Ok(Some(event)) => {
                        if let Some(end) = self.receive(event) {
                            return end;
                        }
                    }
                    over => return End::Broken(stream_error(over)),
                },
                _ = tick.tick() => {
                    if opened.elapsed() > STABLE_AFTER {
                        self.backoff.reset();
                    }
                    self.outbox.extend(self.leased.all_due(Instant::now()));
                }
                () = self.local_event() => {}
            }
        }
    }

    /// Reads what the server still sends after we have half-closed the stream.
    async fn half_closed(&mut self, mut inbound: Streaming<ServerEvent>) -> End {
        let reading = tokio::time::sleep(LAST_REPORTS.min(self.setup.lease() / 3));
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

    /// Sends a credit for each handler that could start. Once more than `concurrency` reports are unacknowledged, each
    /// further one holds back a credit.
    fn give_credits(&mut self) {
        let Setup { concurrency, lease_seconds, .. } = self.setup;
        while self.drain.is_none()
            && self.running.len() + self.credits < concurrency
            && self.leased.len() + self.credits < concurrency * 2
        {
            self.credits += 1;
            let commands = self.setup.commands.clone();
            let ready = Ready { commands, lease_seconds, count: 1 };
            self.outbox.push_back(WorkerEvent { event: Some(Event::Ready(ready)) });
        }
    }

    /// Processes a message. Returns `Some` if it ends the stream.
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
        // The token does not allow this worker's commands: retrying is pointless.
        tracing::error!(error = %failure, "the server refused the worker");
        self.failure.get_or_insert(failure);
        self.begin_drain();
        None
    }

    /// Starts the tasks that answer one credit.
    fn assigned(&mut self, tasks: impl IntoIterator<Item = WireTask>) {
        self.credits = self.credits.saturating_sub(1);
        for task in tasks {
            let now = Instant::now();
            let (signal, cancellation) = Signal::new();
            if task.cancel_requested {
                signal.fire(CancelReason::Requested);
            }
            let info = TaskInfo::new(&task, cancellation);
            if self.leased.take(&task.id, task.fence, run_limit(&task), signal, now) {
                self.lost(&task.id, "lease_lost".to_owned());
            }
            if self.drain.is_some() {
                let report = Report::Abandon { no_penalty: true };
                self.leased.finish(&task.id, task.fence, report, now);
                self.outbox.extend(self.leased.due(&task.id, now));
                continue;
            }
            let work = self.setup.handlers.run(info, task.payload);
            let (task_id, fence) = (task.id, task.fence);
            self.running.spawn(async move { Finished { task_id, fence, outcome: work.await } });
        }
    }

    fn settle(&mut self, ack: Ack) {
        let now = Instant::now();
        match self.leased.settle(&ack, now) {
            Settled::No => self.outbox.extend(self.leased.due(&ack.task_id, now)),
            Settled::Accepted(report) => {
                self.setup.stats.send_modify(|stats| stats.accept(&report));
                if let Some(call) = &self.setup.on_acknowledged {
                    call(&ack.task_id, &Acknowledged::new(report, ack.dead_letter));
                }
            }
            Settled::Lost => self.lost(&ack.task_id, ack.code),
        }
    }

    fn lost(&self, task: &str, code: String) {
        self.setup.stats.send_modify(|stats| stats.lost += 1);
        match &self.setup.on_acknowledged {
            Some(call) => call(task, &Acknowledged::Lost { code }),
            None => tracing::warn!(%task, %code, "lost the lease of a task"),
        }
    }
}

async fn requested(shutdown: &mut watch::Receiver<bool>) {
    if shutdown.wait_for(|shutdown| *shutdown).await.is_err() {
        // The handle is gone, so no shutdown can be requested.
        std::future::pending().await
    }
}
