//! Owns the stream and everything in flight on it.
//!
//! A create is kept until it is acknowledged: when the stream breaks, all unacknowledged creates are sent again over
//! the next one, with the same idempotency keys. Callers have their own timeouts; creates whose caller has left are
//! dropped.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::time::Duration;

use codeq_proto::producer::producer_event::Event;
use codeq_proto::producer::{CreateAck, CreateTask, ProducerEvent, ServerEvent, server_event};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tonic::transport::Endpoint;

use super::Enqueued;
use super::link::{self, Link};
use crate::backoff::Backoff;
use crate::error::{Error, is_transient};
use crate::options::Options;
use crate::transport::stream_error;

/// How often to look for creates to resend and for callers that have left.
const TICK: Duration = Duration::from_millis(250);

/// A create and its waiting caller.
pub(super) struct Job {
    pub(super) create: CreateTask,
    /// The key is random: if the server has seen it before, this client has sent the create twice.
    pub(super) random_key: bool,
    pub(super) reply: oneshot::Sender<Result<Enqueued, Error>>,
}

struct Pending {
    job: Job,
    /// When to resend, after the server was busy.
    retry_at: Option<Instant>,
    backoff: Backoff,
}

/// How a stream ended.
enum End {
    /// No producer is left.
    Idle,
    /// Open another one.
    Broken(Error),
}

pub(super) struct Driver {
    endpoint: Endpoint,
    options: Options,
    jobs: mpsc::Receiver<Job>,
    /// By sequence number, so that a resend keeps the order.
    pending: BTreeMap<u64, Pending>,
    /// Sequence numbers to send, oldest first.
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
                    Err(_) => return End::Broken(stream_error::<ServerEvent>(Ok(None))),
                },
                message = inbound.message() => match message {
                    Ok(Some(event)) => {
                        if let Err(error) = self.receive(event) {
                            return End::Broken(error);
                        }
                    }
                    over => return End::Broken(stream_error(over)),
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

    /// The next create that is still unacknowledged.
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
                // The error names no create, so it concerns the stream.
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
        // Fails if the caller has timed out.
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

    /// Retries until it succeeds. `None` if no producer is left.
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

    /// Awaits something while accepting creates, so that their callers are told if the server refuses this client.
    /// `None` if no producer is left.
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

    /// Fails all waiting creates at once, because the server refuses this client.
    fn refuse_all(&mut self, code: &str, message: &str) {
        tracing::error!(code, message, "the server refused the producer");
        for (_, pending) in std::mem::take(&mut self.pending) {
            let refused = Error::Refused { code: code.to_owned(), message: message.to_owned() };
            let _ = pending.job.reply.send(Err(refused));
        }
    }
}
