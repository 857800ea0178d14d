//! Owns the stream and what is in flight on it.
//!
//! A create is kept until its acknowledgement: when the stream breaks, all that are kept go out again over the
//! next one, under the same idempotency keys. Callers keep their own time; one that has left is forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::time::Duration;

use codeq_proto::producer::producer_event::Event;
use codeq_proto::producer::{CreateAck, CreateTask, ProducerEvent, ServerEvent, server_event};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tonic::Status;
use tonic::transport::Endpoint;

use super::Enqueued;
use super::link::{self, Link};
use crate::backoff::Backoff;
use crate::error::{Error, is_transient};
use crate::options::Options;

/// How often those that are to be sent again, and those that nobody waits for, are looked for.
const TICK: Duration = Duration::from_millis(250);

/// A create and who waits for it.
pub(super) struct Job {
    pub(super) create: CreateTask,
    /// The key is random: if it was seen before, then because we sent it twice.
    pub(super) random_key: bool,
    pub(super) reply: oneshot::Sender<Result<Enqueued, Error>>,
}

struct Pending {
    job: Job,
    /// Set when the server was busy: not before this moment.
    retry_at: Option<Instant>,
    backoff: Backoff,
}

/// How a stream ended.
enum End {
    /// There is nobody left to work for.
    Idle,
    /// Open another one.
    Broken(Error),
}

pub(super) struct Driver {
    endpoint: Endpoint,
    options: Options,
    jobs: mpsc::Receiver<Job>,
    /// By number, so that a resend keeps the order.
    pending: BTreeMap<u64, Pending>,
    /// Numbers to be sent, oldest first.
    outbox: VecDeque<u64>,
    last_seq: u64,
    backoff: Backoff,
}

impl Driver {
    pub(super) fn new(endpoint: Endpoint, options: Options, jobs: mpsc::Receiver<Job>) -> Driver {
        Driver {
            endpoint,
            options,
            jobs,
            pending: BTreeMap::new(),
            outbox: VecDeque::new(),
            last_seq: 0,
            backoff: Backoff::default(),
        }
    }

    pub(super) async fn run(mut self, first: Link) {
        let mut link = first;
        loop {
            match self.serve(link).await {
                End::Idle => return,
                End::Broken(Error::Refused { code, message }) => self.refuse_all(&code, &message),
                End::Broken(error) => tracing::warn!(%error, "the producer stream broke"),
            }
            match self.reconnect().await {
                Some(next) => link = next,
                None => return,
            }
        }
    }

    async fn serve(&mut self, link: Link) -> End {
        let Link { out, mut inbound } = link;
        self.forget_abandoned();
        self.outbox = self.pending.keys().copied().collect();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                permit = out.reserve(), if !self.outbox.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(event) = self.next_create() {
                            permit.send(event);
                        }
                    }
                    Err(_) => return End::Broken(last_words(Ok(None))),
                },
                message = inbound.message() => match message {
                    Ok(Some(event)) => {
                        if let Err(error) = self.receive(event) {
                            return End::Broken(error);
                        }
                    }
                    over => return End::Broken(last_words(over)),
                },
                job = self.jobs.recv(), if self.pending.len() < self.options.max_in_flight => match job {
                    Some(job) => self.accept(job),
                    None => return End::Idle,
                },
                _ = tick.tick() => {
                    self.forget_abandoned();
                    self.retry_due();
                }
            }
        }
    }

    fn accept(&mut self, job: Job) {
        self.last_seq += 1;
        let pending = Pending { job, retry_at: None, backoff: Backoff::default() };
        self.pending.insert(self.last_seq, pending);
        self.outbox.push_back(self.last_seq);
    }

    /// The next create that somebody still waits for.
    fn next_create(&mut self) -> Option<ProducerEvent> {
        while let Some(seq) = self.outbox.pop_front() {
            let Some(pending) = self.pending.get_mut(&seq) else { continue };
            pending.retry_at = None;
            let create = CreateTask { seq, ..pending.job.create.clone() };
            return Some(ProducerEvent { event: Some(Event::Create(create)) });
        }
        None
    }

    fn receive(&mut self, event: ServerEvent) -> Result<(), Error> {
        match event.event {
            Some(server_event::Event::CreateAck(ack)) => self.acknowledge(ack),
            Some(server_event::Event::CreateAckBatch(batch)) => {
                batch.acks.into_iter().for_each(|ack| self.acknowledge(ack));
            }
            Some(server_event::Event::Error(error)) => {
                // It does not say which create it is about: it is about the stream.
                return Err(Error::of_stream(error.code, error.message));
            }
            Some(server_event::Event::HelloAck(_)) | None => {}
        }
        Ok(())
    }

    fn acknowledge(&mut self, ack: CreateAck) {
        self.backoff.reset();
        let Some(mut pending) = self.pending.remove(&ack.seq) else { return };
        if !ack.ok && is_transient(&ack.code) {
            pending.retry_at = Some(Instant::now() + pending.backoff.pause());
            self.pending.insert(ack.seq, pending);
            return;
        }
        let answer = match ack.ok {
            true => {
                let repeated = ack.repeated && !pending.job.random_key;
                Ok(Enqueued { task_id: ack.task_id, repeated })
            }
            false => Err(Error::Refused { code: ack.code, message: ack.error_message }),
        };
        // Nobody there: the caller's time was over.
        let _ = pending.job.reply.send(answer);
    }

    fn forget_abandoned(&mut self) {
        self.pending.retain(|_, pending| !pending.job.reply.is_closed());
    }

    fn retry_due(&mut self) {
        let now = Instant::now();
        for (seq, pending) in &mut self.pending {
            if pending.retry_at.is_some_and(|at| at <= now) {
                pending.retry_at = None;
                self.outbox.push_back(*seq);
            }
        }
    }

    /// Tries until it works, or until there is nobody left to work for.
    async fn reconnect(&mut self) -> Option<Link> {
        loop {
            let pause = tokio::time::sleep(self.backoff.pause());
            self.meanwhile(pause).await?;
            self.forget_abandoned();
            let (endpoint, options) = (self.endpoint.clone(), self.options.clone());
            match self.meanwhile(link::open(endpoint, options)).await? {
                Ok(link) => return Some(link),
                Err(Error::Refused { code, message }) => self.refuse_all(&code, &message),
                Err(error) => tracing::debug!(%error, "the producer cannot connect"),
            }
        }
    }

    /// Waits for something outside while creates come in: they should hear it if the server refuses us. None
    /// if there is nobody left to work for.
    async fn meanwhile<F: Future>(&mut self, outside: F) -> Option<F::Output> {
        tokio::pin!(outside);
        loop {
            let has_room = self.pending.len() < self.options.max_in_flight;
            tokio::select! {
                output = &mut outside => return Some(output),
                job = self.jobs.recv(), if has_room => self.accept(job?),
            }
        }
    }

    /// The server does not want us: those who wait should know, and not after their time is over.
    fn refuse_all(&mut self, code: &str, message: &str) {
        tracing::error!(code, message, "the server refuses the producer");
        for (_, pending) in std::mem::take(&mut self.pending) {
            let refused = Error::Refused { code: code.to_owned(), message: message.to_owned() };
            let _ = pending.job.reply.send(Err(refused));
        }
    }
}

fn last_words(message: Result<Option<ServerEvent>, Status>) -> Error {
    match message {
        Err(status) => Error::of_status(&status),
        Ok(_) => Error::Unavailable("the stream ended".to_owned()),
    }
}
