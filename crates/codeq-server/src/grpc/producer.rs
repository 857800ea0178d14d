//! The producer stream, `/producerpb.ProducerStream/Stream`.

use std::sync::Arc;

use axum::http::HeaderMap;
use bytes::Bytes;
use codeq_auth::{Principal, Role};
use codeq_core::command::NewTask;
use codeq_engine::Answer as EngineAnswer;
use codeq_proto::producer::producer_event::Event;
use codeq_proto::producer::server_event::Event as Answer;
use codeq_proto::producer::{
    CreateAck, CreateAckBatch, CreateTask, CreateTaskBatch, HelloAck, ProducerEvent, ServerError,
    ServerEvent,
};
use tonic::Status;

use super::hello;
use super::mailbox::Slot;
use super::messages::Messages;
use super::session::{After, Begun, Opened, Protocol, ReadyOutcome, check_rate};
use super::{StreamOrigin, convert};
use crate::app::App;
use crate::limits::LimitScope;
use crate::observe::trace::{self, TraceContext};
use crate::service::enqueue::{Ahead, Draft, EnqueuedTask, EnqueuedTasks};
use crate::service::payload::check_payload;
use crate::service::permission::MayProduce;
use crate::service::prepared_call::AnswerReader;
use crate::service::{Kind, ServiceError};

/// Opens a stream: waits for the Hello and authenticates the producer.
pub(super) async fn open(
    app: Arc<App>,
    origin: Arc<StreamOrigin>,
    metadata: HeaderMap,
    mut messages: Messages<ProducerEvent>,
) -> Result<Opened<Producer>, Status> {
    let hello = hello::first(&app, &mut messages, |event: ProducerEvent| match event.event {
        Some(Event::Hello(hello)) => Some(hello),
        _ => None,
    });
    let token = hello.await?.token;
    let text = |name| metadata.get(name).and_then(|value| value.to_str().ok());
    let trace = trace::parse(text("traceparent"), text("tracestate"));
    let token = hello::Token { hello: &token, metadata: &metadata };
    let (caller, revoked) =
        token.authenticate(&app, &origin, Producer::SERVICE, Role::Producer).await?;
    let (tenant_id, subject) = (caller.tenant.to_string(), caller.subject.to_string());
    let ack = answer(Answer::HelloAck(HelloAck { tenant_id, subject }));
    let protocol = Producer { app, caller, trace, command: "".into() };
    Ok(Opened { protocol, messages, ack, revoked })
}

/// The server's side of a producer's stream.
pub(super) struct Producer {
    app: Arc<App>,
    caller: Principal,
    /// The trace of the call, for tasks without one of their own.
    trace: Option<TraceContext>,
    /// The last command, whose string is reused if the next task has the same: most streams use few commands.
    command: Arc<str>,
}

impl Protocol for Producer {
    type In = ProducerEvent;
    type Out = ServerEvent;
    type EventState = Created;

    const SERVICE: &'static str = "producer";
    const OF_PRODUCERS: bool = true;

    fn caller(&self) -> &Principal {
        &self.caller
    }

    fn ready(&mut self, event: ProducerEvent) -> Result<(Created, usize), ProducerEvent> {
        Err(event)
    }

    fn post_ready(&mut self, ready: Created, _: &mut Slot<'_>) -> ReadyOutcome<Producer> {
        // Unreachable: producers send no Readys.
        ReadyOutcome::Posted(ready)
    }

    fn begin(&mut self, event: ProducerEvent, slot: &mut Slot<'_>) -> Begun<Producer> {
        match event.event {
            Some(Event::Create(create)) => self.create(create, slot),
            Some(Event::CreateBatch(batch)) => self.create_batch(batch, slot),
            Some(Event::Hello(_)) => {
                mistake("Hello must be the first event and cannot be repeated")
            }
            None => mistake("unknown event"),
        }
    }

    fn answered(
        &mut self,
        event: &mut Created,
        index: usize,
        answer: EngineAnswer,
        _: &mut Slot<'_>,
    ) -> After<ServerEvent> {
        match event {
            Created::One(seq, reader) => After::Answer(acknowledge(*seq, reader.read(answer))),
            Created::Batch { acks, parts, missing } => {
                if let Some((places, reader)) = parts.get_mut(index) {
                    fill(acks, std::mem::take(places), reader.read(answer));
                }
                *missing -= 1;
                if *missing > 0 {
                    return After::More;
                }
                After::Answer(acknowledge_all(std::mem::take(acks)))
            }
        }
    }
}

/// A create event that was posted to the engine.
pub(super) enum Created {
    /// A single task, with its sequence number.
    One(u64, AnswerReader<EnqueuedTask>),
    /// A batch: the acks known so far, the posted parts with the places of their tasks, and the
    /// number of parts without an answer.
    Batch {
        acks: Vec<CreateAck>,
        parts: Vec<(Places, AnswerReader<EnqueuedTasks>)>,
        missing: usize,
    },
}

/// The positions of a part's tasks in the batch.
type Places = Vec<usize>;

/// A parsed batch: an ack per task, final for invalid ones, and the valid tasks in parts.
struct Batch {
    acks: Vec<CreateAck>,
    parts: Vec<(Places, Vec<NewTask>)>,
}

impl Producer {
    fn create(&mut self, create: CreateTask, slot: &mut Slot<'_>) -> Begun<Producer> {
        let (seq, bytes) = (create.seq, weight(&create));
        let draft = self.check_rate().and_then(|()| self.draft(create));
        let service = &self.app.service;
        match draft.and_then(|draft| service.enqueue(MayProduce::of(&self.caller)?, draft)) {
            Ok(prepared) => Begun::Posted(Created::One(seq, slot.post(0, prepared)), bytes),
            Err(error) => Begun::Answered(acknowledge(seq, Err(error))),
        }
    }

    fn create_batch(&mut self, batch: CreateTaskBatch, slot: &mut Slot<'_>) -> Begun<Producer> {
        let bytes = batch.tasks.iter().map(weight).sum();
        let Batch { mut acks, parts } = self.read_batch(batch.tasks);
        let mut posted = Vec::with_capacity(parts.len());
        let mut ahead = Ahead::default();
        for (places, tasks) in parts {
            let service = &self.app.service;
            let caller = MayProduce::of(&self.caller);
            match caller.and_then(|caller| service.enqueue_batch(caller, tasks, false, &mut ahead))
            {
                Ok(prepared) => posted.push((places, slot.post(posted.len(), prepared))),
                Err(error) => fill(&mut acks, places, Err(error)),
            }
        }
        if posted.is_empty() {
            return Begun::Answered(acknowledge_all(acks));
        }
        let missing = posted.len();
        Begun::Posted(Created::Batch { acks, parts: posted, missing }, bytes)
    }

    /// Splits a batch into parts no longer than an HTTP batch; each takes one token from the
    /// tenant's rate limit. An invalid task gets an error in its ack and does not fail the others.
    fn read_batch(&mut self, creates: Vec<CreateTask>) -> Batch {
        let len = creates.len();
        let max = self.app.service.batch_max();
        let mut acks = Vec::with_capacity(len);
        let mut parts = Vec::with_capacity(len.div_ceil(max));
        let mut creates = creates.into_iter();
        while creates.len() > 0 {
            let size = creates.len().min(max);
            let allowed = self.check_rate();
            let (mut places, mut tasks) = (Vec::with_capacity(size), Vec::with_capacity(size));
            for create in creates.by_ref().take(size) {
                let seq = create.seq;
                match allowed
                    .clone()
                    .and_then(|()| self.draft(create)?.into_task(&self.app.service))
                {
                    Ok(task) => {
                        places.push(acks.len());
                        tasks.push(task);
                        acks.push(CreateAck { seq, ..CreateAck::default() });
                    }
                    Err(error) => acks.push(ack(seq, Err(error))),
                }
            }
            if !tasks.is_empty() {
                parts.push((places, tasks));
            }
        }
        Batch { acks, parts }
    }

    fn check_rate(&self) -> Result<(), ServiceError> {
        check_rate(&self.app, &self.caller, LimitScope::Producer, "createTask")
    }

    fn draft(&mut self, create: CreateTask) -> Result<Draft, ServiceError> {
        let payload = match create.payload {
            // The original codeQ's clients send an empty payload for a task that needs none.
            payload if payload.is_empty() => Bytes::from_static(b"null"),
            payload => payload,
        };
        check_payload(&payload)?;
        if *self.command != *create.command {
            self.command = create.command.into();
        }
        let (trace_parent, trace_state) = self.trace_of(&create.trace_parent, &create.trace_state);
        Ok(Draft {
            command: Arc::clone(&self.command),
            payload,
            priority: i64::from(create.priority),
            max_attempts: i64::from(create.max_attempts),
            webhook: text(create.webhook),
            idempotency_key: text(create.idempotency_key),
            run_at: create.run_at.map(convert::moment).transpose()?,
            delay_seconds: Some(i64::from(create.delay_seconds)).filter(|delay| *delay != 0),
            max_run_seconds: i64::from(create.max_run_seconds),
            trace_parent,
            trace_state,
        })
    }

    fn trace_of(&self, parent: &str, state: &str) -> (Option<Arc<str>>, Option<Arc<str>>) {
        let own;
        let trace = if parent.is_empty() {
            self.trace.as_ref()
        } else {
            own = trace::parse(Some(parent), Some(state).filter(|state| !state.is_empty()));
            own.as_ref()
        };
        trace.map_or((None, None), |trace| {
            (Some(trace.traceparent().into()), trace.tracestate().map(Into::into))
        })
    }
}

fn weight(create: &CreateTask) -> usize {
    256 + create.payload.len()
}

fn text(text: String) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

/// Writes the outcome of a part into the acks of its tasks.
fn fill(acks: &mut [CreateAck], places: Places, made: Result<EnqueuedTasks, ServiceError>) {
    let mut made = made.map(Vec::into_iter);
    for place in places {
        let made = match &mut made {
            Ok(made) => made.next().unwrap_or_else(|| Err(ServiceError::unexpected())),
            Err(error) => Err(error.clone()),
        };
        if let Some(slot) = acks.get_mut(place) {
            *slot = ack(slot.seq, made);
        }
    }
}

fn acknowledge(seq: u64, made: Result<EnqueuedTask, ServiceError>) -> ServerEvent {
    answer(Answer::CreateAck(ack(seq, made)))
}

fn acknowledge_all(acks: Vec<CreateAck>) -> ServerEvent {
    answer(Answer::CreateAckBatch(CreateAckBatch { acks }))
}

fn ack(seq: u64, made: Result<EnqueuedTask, ServiceError>) -> CreateAck {
    match made {
        Ok(made) => CreateAck {
            seq,
            ok: true,
            task_id: made.task.id.to_string(),
            repeated: made.repeated,
            ..CreateAck::default()
        },
        Err(error) => CreateAck {
            seq,
            ok: false,
            error_message: error.to_string(),
            code: error.code.text().to_owned(),
            ..CreateAck::default()
        },
    }
}

fn mistake(message: &str) -> Begun<Producer> {
    let code = convert::code_name(Kind::Invalid).to_owned();
    Begun::Answered(answer(Answer::Error(ServerError { code, message: message.to_owned() })))
}

fn answer(event: Answer) -> ServerEvent {
    ServerEvent { event: Some(event) }
}
