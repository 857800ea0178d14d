//! `/producerpb.ProducerStream/Stream`.

use std::sync::Arc;

use codeq_core::command::NewTask;
use codeq_engine::request::Answer as EngineAnswer;
use codeq_proto::producer::producer_event::Event;
use codeq_proto::producer::server_event::Event as Answer;
use codeq_proto::producer::{
    CreateAck, CreateAckBatch, CreateTask, CreateTaskBatch, HelloAck, ProducerEvent, ServerError,
    ServerEvent,
};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::convert;
use super::events::Events;
use super::hello;
use super::session::{After, Begun, Opened, Protocol, Slots, check_rate};
use crate::auth::{Principal, Role};
use crate::http::{App, json};
use crate::limits::LimitScope;
use crate::observe::trace::{self, TraceContext};
use crate::service::enqueue::{Draft, Made, enqueued};
use crate::service::{Kind, ServiceError};

/// Opens a stream: waits for its Hello.
pub(super) async fn open(
    app: Arc<App>,
    metadata: MetadataMap,
    mut events: Events<ProducerEvent>,
) -> Result<Opened<Producer>, Status> {
    let hello = hello::first(&app, &mut events, |event: ProducerEvent| match event.event {
        Some(Event::Hello(hello)) => Some(hello),
        _ => None,
    });
    let token = hello.await?.token;
    let text = |name| metadata.get(name).and_then(|value| value.to_str().ok());
    let trace = trace::parse(text("traceparent"), text("tracestate"));
    let (caller, withdrawn) = hello::authenticate(&app, &token, metadata, Role::Producer).await?;
    let (tenant_id, subject) = (caller.tenant.to_string(), caller.subject.to_string());
    let ack = answer(Answer::HelloAck(HelloAck { tenant_id, subject }));
    let protocol = Producer { app, caller: Arc::new(caller), trace, command: "".into() };
    Ok(Opened { protocol, events, ack, withdrawn })
}

/// One producer at the other end of a stream.
pub(super) struct Producer {
    app: Arc<App>,
    caller: Arc<Principal>,
    /// The trace of the call, for tasks that bring none of their own.
    trace: Option<TraceContext>,
    /// The last command: most streams know few.
    command: Arc<str>,
}

impl Protocol for Producer {
    type In = ProducerEvent;
    type Out = ServerEvent;
    type Posted = Created;

    const SERVICE: &'static str = "producer";

    fn caller(&self) -> &Principal {
        &self.caller
    }

    fn credit(&mut self, event: ProducerEvent) -> Result<(Created, usize), ProducerEvent> {
        Err(event)
    }

    fn post_credit(&mut self, credit: Created, _: &mut Slots<'_>) -> Result<Created, ServerEvent> {
        // There are none.
        Ok(credit)
    }

    fn begin(&mut self, event: ProducerEvent, slots: &mut Slots<'_>) -> Begun<Producer> {
        match event.event {
            Some(Event::Create(create)) => self.create(create, slots),
            Some(Event::CreateBatch(batch)) => self.create_batch(batch, slots),
            Some(Event::Hello(_)) => mistake("Hello comes first, and once"),
            None => mistake("unknown event"),
        }
    }

    fn answered(
        &mut self,
        event: &mut Created,
        _: u16,
        answer: EngineAnswer,
    ) -> After<ServerEvent> {
        After::Answer(std::mem::replace(event, Created::One(0)).ack(enqueued(answer)))
    }
}

/// What is remembered of creates that were posted.
pub(super) enum Created {
    /// The number of a single one.
    One(u64),
    /// The numbers of a batch, and what is wrong with those that were not even posted.
    Batch(Vec<(u64, Option<ServiceError>)>),
}

impl Created {
    fn ack(self, made: Result<Vec<Result<Made, ServiceError>>, ServiceError>) -> ServerEvent {
        let mut made = made.map(Vec::into_iter);
        let mut next = || match &mut made {
            Ok(made) => made.next().unwrap_or(Err(ServiceError::unexpected())),
            Err(error) => Err(error.clone()),
        };
        answer(match self {
            Created::One(seq) => Answer::CreateAck(ack(seq, next())),
            Created::Batch(tasks) => {
                let acks = tasks
                    .into_iter()
                    .map(|(seq, refused)| ack(seq, refused.map_or_else(&mut next, Err)));
                Answer::CreateAckBatch(CreateAckBatch { acks: acks.collect() })
            }
        })
    }
}

impl Producer {
    fn create(&mut self, create: CreateTask, slots: &mut Slots<'_>) -> Begun<Producer> {
        let (created, bytes) = (Created::One(create.seq), weight(&create));
        match self.check_rate().and_then(|()| self.new_task(create)) {
            Ok(task) => self.post(vec![task], created, bytes, slots),
            Err(error) => Begun::Answered(created.ack(Err(error))),
        }
    }

    fn create_batch(&mut self, batch: CreateTaskBatch, slots: &mut Slots<'_>) -> Begun<Producer> {
        let bytes = batch.tasks.iter().map(weight).sum();
        if batch.tasks.is_empty() {
            return Begun::Answered(Created::Batch(Vec::new()).ack(Ok(Vec::new())));
        }
        let service = &self.app.service;
        if let Err(error) = self.check_rate().and_then(|()| service.check_batch(batch.tasks.len()))
        {
            let tasks = batch.tasks.iter().map(|task| (task.seq, None));
            return Begun::Answered(Created::Batch(tasks.collect()).ack(Err(error)));
        }
        // What cannot even be read is answered in its place; the rest goes on.
        let mut tasks = Vec::with_capacity(batch.tasks.len());
        let mut created = Vec::with_capacity(batch.tasks.len());
        for create in batch.tasks {
            let seq = create.seq;
            match self.new_task(create) {
                Ok(task) => {
                    tasks.push(task);
                    created.push((seq, None));
                }
                Err(error) => created.push((seq, Some(error))),
            }
        }
        if tasks.is_empty() {
            return Begun::Answered(Created::Batch(created).ack(Ok(Vec::new())));
        }
        self.post(tasks, Created::Batch(created), bytes, slots)
    }

    fn post(
        &self,
        tasks: Vec<NewTask>,
        created: Created,
        bytes: usize,
        slots: &mut Slots<'_>,
    ) -> Begun<Producer> {
        match self.app.service.enqueue_request(&self.caller, tasks, slots.reply.reply(0)) {
            Ok(request) => {
                slots.out.push(request);
                Begun::Posted(created, bytes)
            }
            Err(tasks) => {
                let (app, caller) = (Arc::clone(&self.app), Arc::clone(&self.caller));
                let made = async move {
                    created.ack(app.service.enqueue_batch(&caller, tasks, false).await)
                };
                Begun::Acknowledged(Box::pin(made), bytes)
            }
        }
    }

    fn check_rate(&self) -> Result<(), ServiceError> {
        check_rate(&self.app, &self.caller, LimitScope::Producer, "createTask")
    }

    fn new_task(&mut self, create: CreateTask) -> Result<NewTask, ServiceError> {
        json::check_payload(&create.payload)?;
        if *self.command != *create.command {
            self.command = create.command.into();
        }
        let (trace_parent, trace_state) = self.trace_of(&create.trace_parent, &create.trace_state);
        let draft = Draft {
            command: Arc::clone(&self.command),
            payload: create.payload,
            priority: i64::from(create.priority),
            max_attempts: i64::from(create.max_attempts),
            webhook: text(create.webhook),
            idempotency_key: text(create.idempotency_key),
            run_at: create.run_at.map(convert::moment).transpose()?,
            delay_seconds: Some(i64::from(create.delay_seconds)).filter(|delay| *delay != 0),
            trace_parent,
            trace_state,
        };
        draft.check(&self.app.service.destinations)
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

fn ack(seq: u64, made: Result<Made, ServiceError>) -> CreateAck {
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
            code: error.code.to_owned(),
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
