//! The worker stream, `/workerpb.WorkerStream/Stream`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use codeq_auth::{Principal, Role, display_identity};
use codeq_core::reply::Returned;
use codeq_core::view::{ResultRecord, Task};
use codeq_engine::Answer as EngineAnswer;
use codeq_proto::worker::server_event::Event as Answer;
use codeq_proto::worker::worker_event::Event;
use codeq_proto::worker::{
    Abandon, AbandonAck, Heartbeat, HeartbeatAck, Hello, HelloAck, Nack, NackAck, Ready,
    Result as Outcome, ResultAck, ResultAckBatch, ResultBatch, ServerError, ServerEvent,
    TaskAssignment, TaskBatch, WorkerEvent,
};
use tonic::Status;

use super::hello;
use super::mailbox::Slot;
use super::messages::Messages;
use super::session::{After, Begun, Opened, Protocol, ReadyOutcome, check_rate};
use super::{StreamOrigin, convert};
use crate::app::App;
use crate::limits::LimitScope;
use crate::service::activity::{RESOLUTION, StreamSeen};
use crate::service::claim::{ClaimRequest, READY_WAIT};
use crate::service::heartbeat::Extended;
use crate::service::lease::{LeaseRef, identity};
use crate::service::payload::check_result;
use crate::service::permission::{MayAbandon, MayClaim, MayHeartbeat, MayNack, MaySubmit};
use crate::service::prepared_call::{AnswerReader, PreparedCall};
use crate::service::submit::SubmitRequest;
use crate::service::{Code, Kind, Service, ServiceError};

/// Maximum tasks in a TaskBatch. Claims bound the payloads (`CLAIM_BYTES_MAX`); this bounds the rest, so that the message
/// stays under 4 MiB unless larger payloads are configured.
const TASKS_MAX: i32 = 256;
/// Pause before retrying a Ready that the engine could not accept.
const ENGINE_RETRY: Duration = Duration::from_secs(1);
/// Pause before retrying a Ready whose tasks did not fit in memory.
const MEMORY_RETRY: Duration = Duration::from_millis(100);
/// Memory charged per event, without its content.
const BASE: usize = 256;

/// Opens a stream: waits for the Hello and authenticates the worker.
pub(super) async fn open(
    app: Arc<App>,
    origin: Arc<StreamOrigin>,
    metadata: HeaderMap,
    mut messages: Messages<WorkerEvent>,
) -> Result<Opened<Worker>, Status> {
    let hello = hello::first(&app, &mut messages, |event: WorkerEvent| match event.event {
        Some(Event::Hello(hello)) => Some(hello),
        _ => None,
    });
    let Hello { token, worker_id } = hello.await?;
    let token = hello::Token { hello: &token, metadata: &metadata };
    let (mut caller, revoked) =
        token.authenticate(&app, &origin, Worker::SERVICE, Role::Worker).await?;
    let invalid = |_| Status::invalid_argument("worker_id is too long or not printable");
    caller.subject = identity(&caller, &worker_id).map_err(invalid)?;
    let worker_id = display_identity(&caller.subject).into_owned();
    let ack = HelloAck { worker_id, tenant_id: caller.tenant.to_string() };
    let seen = app.service.activity.stream(&caller.tenant, &caller.subject);
    let protocol = Worker { app, caller, last: Arc::default(), recorded: None, seen };
    Ok(Opened { protocol, messages, ack: answer(Answer::HelloAck(ack)), revoked })
}

/// The server's side of a worker's stream.
pub(super) struct Worker {
    app: Arc<App>,
    caller: Principal,
    /// The request of the last Ready.
    last: Arc<ClaimRequest>,
    /// The claim that was last recorded for admins, and when.
    recorded: Option<(Instant, Arc<ClaimRequest>)>,
    seen: StreamSeen,
}

impl Protocol for Worker {
    type In = WorkerEvent;
    type Out = ServerEvent;
    type EventState = Waiting;

    const SERVICE: &'static str = "worker";
    const OF_PRODUCERS: bool = false;

    fn caller(&self) -> &Principal {
        &self.caller
    }

    fn ready(&mut self, event: WorkerEvent) -> Result<(Waiting, usize), WorkerEvent> {
        let Some(Event::Ready(ready)) = event.event else {
            return Err(event);
        };
        let had = Arc::clone(&self.last);
        let request = self.request(ready);
        let bytes = ready_bytes(&request, Arc::ptr_eq(&had, &request));
        self.seen.ready(request.count);
        Ok((Waiting::Ready { request, drawn: false, reader: None }, bytes))
    }

    fn post_ready(&mut self, ready: Waiting, slot: &mut Slot<'_>) -> ReadyOutcome<Worker> {
        let Waiting::Ready { request, drawn, .. } = ready else {
            return ReadyOutcome::Posted(ready);
        };
        let record = self.is_to_record(&request).then_some(request.count);
        let service = &self.app.service;
        let caller = MayClaim::of(&self.caller);
        let prepared = match caller.and_then(|caller| service.claim(caller, &request, record)) {
            Ok(prepared) => prepared,
            Err(error) => {
                self.seen.served(request.count);
                return ReadyOutcome::Refused(refusal(&error));
            }
        };
        // The rate limit delays a Ready and never refuses it.
        if !drawn && let Err(limited) = self.check_rate("claimTask") {
            let pause = Duration::from_secs(limited.retry_after.unwrap_or(1));
            return ReadyOutcome::Again(Waiting::Ready { request, drawn, reader: None }, pause);
        }
        let reader = Some(slot.post(0, prepared));
        ReadyOutcome::Posted(Waiting::Ready { request, drawn: true, reader })
    }

    fn begin(&mut self, event: WorkerEvent, slot: &mut Slot<'_>) -> Begun<Worker> {
        match event.event {
            Some(Event::Result(result)) => self.result(result, slot),
            Some(Event::ResultBatch(batch)) => self.result_batch(batch, slot),
            Some(Event::Heartbeat(heartbeat)) => self.heartbeat(heartbeat, slot),
            Some(Event::Nack(nack)) => self.nack(nack, slot),
            Some(Event::Abandon(abandon)) => self.abandon(abandon, slot),
            Some(Event::Hello(_)) => {
                mistake("Hello must be the first event and cannot be repeated")
            }
            // `ready` handles every Ready.
            Some(Event::Ready(_)) | None => mistake("unknown event"),
        }
    }

    fn answered(
        &mut self,
        event: &mut Waiting,
        index: usize,
        answer: EngineAnswer,
        slot: &mut Slot<'_>,
    ) -> After<ServerEvent> {
        After::Answer(match event {
            Waiting::Ready { request, reader, .. } => {
                let after = reader.as_mut().map_or(After::Nothing, |reader| {
                    self.claimed(request.count <= 1, reader.read(answer))
                });
                if !matches!(after, After::Again(_)) {
                    self.seen.served(request.count);
                }
                return after;
            }
            Waiting::Result(id, reader) => {
                result_answer(std::mem::take(id), reader.read(answer).err().as_ref())
            }
            Waiting::Heartbeat(id, reader) => {
                heartbeat_answer(&self.app, std::mem::take(id), reader.read(answer))
            }
            Waiting::Nack(id, reader) => nack_answer(std::mem::take(id), reader.read(answer)),
            Waiting::Abandon(id, reader) => abandon_answer(std::mem::take(id), reader.read(answer)),
            Waiting::Batch(batch) => {
                batch.answered(index, answer);
                if batch.missing > 0 || self.post_results(batch, slot) {
                    return After::More;
                }
                answer_batch(std::mem::take(&mut batch.acks))
            }
        })
    }
}

/// An event that was posted to the engine: the task id, and the reader for the answer.
pub(super) enum Waiting {
    /// A Ready: the claim, and whether it has taken its rate-limit token.
    Ready {
        request: Arc<ClaimRequest>,
        drawn: bool,
        reader: Option<AnswerReader<Vec<Task>>>,
    },
    Result(String, AnswerReader<ResultRecord>),
    Batch(Box<Batch>),
    Heartbeat(String, AnswerReader<Extended>),
    Nack(String, AnswerReader<Returned>),
    Abandon(String, AnswerReader<Returned>),
}

/// A batch of results, posted one part at a time. A part is no longer than an HTTP batch.
pub(super) struct Batch {
    /// Results of later parts.
    results: std::vec::IntoIter<Outcome>,
    /// Acks of all results posted or refused so far.
    acks: Vec<ResultAck>,
    /// The current part: the position of each ack, and the reader for its answer.
    posted: Vec<(usize, AnswerReader<ResultRecord>)>,
    /// Results of the current part without an answer.
    missing: usize,
}

impl Batch {
    fn answered(&mut self, index: usize, answer: EngineAnswer) {
        self.missing = self.missing.saturating_sub(1);
        if let Some((place, reader)) = self.posted.get_mut(index)
            && let Some(ack) = self.acks.get_mut(*place)
            && let Err(error) = reader.read(answer)
        {
            *ack = result_ack(std::mem::take(&mut ack.task_id), Some(&error));
        }
    }
}

impl Worker {
    fn check_rate(&self, operation: &'static str) -> Result<(), ServiceError> {
        check_rate(&self.app, &self.caller, LimitScope::Worker, operation)
    }

    /// Converts a Ready to a claim. Reuses the last claim if equal, which is the common case.
    fn request(&mut self, ready: Ready) -> Arc<ClaimRequest> {
        let last = &self.last;
        let count = ready.count.clamp(1, TASKS_MAX).unsigned_abs();
        let lease_seconds = Some(i64::from(ready.lease_seconds));
        let same = last.count == count
            && last.lease_seconds == lease_seconds
            && last.commands.len() == ready.commands.len()
            && last.commands.iter().zip(&ready.commands).all(|(had, new)| **had == **new);
        if !same {
            self.last = Arc::new(ClaimRequest {
                commands: ready.commands.into_iter().map(Into::into).collect(),
                lease_seconds,
                wait_seconds: READY_WAIT,
                count,
                worker_id: None,
            });
        }
        Arc::clone(&self.last)
    }

    /// Whether to show a claim to admins: if it is a new one, or repeated after a while.
    fn is_to_record(&mut self, request: &Arc<ClaimRequest>) -> bool {
        let now = Instant::now();
        let seen = self.recorded.as_ref().is_some_and(|(at, last)| {
            Arc::ptr_eq(last, request) && now.duration_since(*at) < RESOLUTION
        });
        if !seen {
            self.recorded = Some((now, Arc::clone(request)));
        }
        !seen
    }

    /// Handles the answer to a Ready. Posts it again if the engine could not keep it waiting.
    fn claimed(&self, single: bool, tasks: Result<Vec<Task>, ServiceError>) -> After<ServerEvent> {
        match tasks {
            Ok(tasks) if !tasks.is_empty() => After::Answer(assignment(&self.app, tasks, single)),
            _ if self.app.service.is_draining() => After::Nothing,
            Ok(_) => After::Again(MEMORY_RETRY),
            Err(error) if error.code.kind() == Kind::Unavailable => {
                if let Some(what) = error.code.refused() {
                    self.app.metrics.refused(&self.caller.tenant, what);
                }
                After::Again(ENGINE_RETRY)
            }
            Err(error) => After::Answer(refusal(&error)),
        }
    }

    fn result(&self, result: Outcome, slot: &mut Slot<'_>) -> Begun<Worker> {
        let bytes = weight(&result);
        let (id, prepared) = self.submit(result, || self.check_rate("submitResult"));
        match prepared {
            Ok(prepared) => Begun::Posted(Waiting::Result(id, slot.post(0, prepared)), bytes),
            Err(error) => Begun::Answered(result_answer(id, Some(&error))),
        }
    }

    fn result_batch(&self, batch: ResultBatch, slot: &mut Slot<'_>) -> Begun<Worker> {
        if batch.results.is_empty() {
            return Begun::Answered(answer_batch(Vec::new()));
        }
        if let Err(error) = MaySubmit::of(&self.caller) {
            return Begun::Answered(refusal(&error));
        }
        let bytes = batch.results.iter().map(weight).sum();
        let acks = Vec::with_capacity(batch.results.len());
        let results = batch.results.into_iter();
        let mut batch = Box::new(Batch { results, acks, posted: Vec::new(), missing: 0 });
        if self.post_results(&mut batch, slot) {
            return Begun::Posted(Waiting::Batch(batch), bytes);
        }
        Begun::Answered(answer_batch(batch.acks))
    }

    /// Posts the next part of a batch, which takes one token from the tenant's rate limit. False if
    /// nothing is left to post.
    fn post_results(&self, batch: &mut Batch, slot: &mut Slot<'_>) -> bool {
        let max = self.app.service.batch_max();
        batch.posted.clear();
        while batch.results.len() > 0 && batch.posted.is_empty() {
            batch.posted.reserve(batch.results.len().min(max));
            let allowed = self.check_rate("submitResults");
            for result in batch.results.by_ref().take(max) {
                let (id, prepared) = self.submit(result, || allowed.clone());
                let refused = match prepared {
                    Ok(prepared) => {
                        let reader = slot.post(batch.posted.len(), prepared);
                        batch.posted.push((batch.acks.len(), reader));
                        None
                    }
                    Err(error) => Some(error),
                };
                batch.acks.push(result_ack(id, refused.as_ref()));
            }
        }
        batch.missing = batch.posted.len();
        batch.missing > 0
    }

    /// Checks a result and prepares its engine call. Returns the task id in any case, for the ack.
    fn submit(
        &self,
        result: Outcome,
        allowed: impl FnOnce() -> Result<(), ServiceError>,
    ) -> (String, Result<PreparedCall<ResultRecord>, ServiceError>) {
        let service = &self.app.service;
        let (id, request) = submit_request(service, result);
        let prepared =
            allowed().and_then(|()| service.submit(MaySubmit::of(&self.caller)?, &id, request));
        (id, prepared)
    }

    fn heartbeat(&self, heartbeat: Heartbeat, slot: &mut Slot<'_>) -> Begun<Worker> {
        let Heartbeat { task_id, extend_seconds, fence } = heartbeat;
        let extend = Some(i64::from(extend_seconds));
        let prepared = self.check_rate("heartbeat").and_then(|()| {
            let caller = MayHeartbeat::of(&self.caller)?;
            self.app.service.heartbeat(caller, &task_id, extend, lease(fence))
        });
        match prepared {
            Ok(prepared) => {
                Begun::Posted(Waiting::Heartbeat(task_id, slot.post(0, prepared)), BASE)
            }
            Err(error) => Begun::Answered(heartbeat_answer(&self.app, task_id, Err(error))),
        }
    }

    fn nack(&self, nack: Nack, slot: &mut Slot<'_>) -> Begun<Worker> {
        let Nack { task_id, delay_seconds, reason, fence } = nack;
        let bytes = BASE + reason.len();
        let reason = (!reason.is_empty()).then(|| reason.into());
        let prepared = self.check_rate("nack").and_then(|()| {
            let caller = MayNack::of(&self.caller)?;
            self.app.service.nack(caller, &task_id, delay(delay_seconds), reason, lease(fence))
        });
        match prepared {
            Ok(prepared) => Begun::Posted(Waiting::Nack(task_id, slot.post(0, prepared)), bytes),
            Err(error) => Begun::Answered(nack_answer(task_id, Err(error))),
        }
    }

    fn abandon(&self, abandon: Abandon, slot: &mut Slot<'_>) -> Begun<Worker> {
        let Abandon { task_id, no_penalty, fence } = abandon;
        let prepared = self.check_rate("abandon").and_then(|()| {
            let caller = MayAbandon::of(&self.caller)?;
            self.app.service.abandon(caller, &task_id, !no_penalty, lease(fence))
        });
        match prepared {
            Ok(prepared) => Begun::Posted(Waiting::Abandon(task_id, slot.post(0, prepared)), BASE),
            Err(error) => Begun::Answered(abandon_answer(task_id, Err(error))),
        }
    }
}

fn assignment(app: &App, tasks: Vec<Task>, single: bool) -> ServerEvent {
    let mut tasks = tasks.into_iter().map(|task| convert::task(task, &app.times));
    if single {
        answer(Answer::Task(TaskAssignment { task: tasks.next() }))
    } else {
        answer(Answer::TaskBatch(TaskBatch { tasks: tasks.collect() }))
    }
}

/// Approximate memory of a Ready, here and in the engine, which keeps an entry per command.
fn ready_bytes(request: &ClaimRequest, shared: bool) -> usize {
    let commands = request.commands.iter();
    let own: usize =
        commands.map(|command| if shared { 32 } else { 256 + 2 * command.len() }).sum();
    BASE + own
}

fn submit_request(service: &Service, result: Outcome) -> (String, SubmitRequest) {
    let Outcome { task_id, status, result_json, error, fence } = result;
    let flaw = (!result_json.is_empty()).then(|| check_result(&result_json)).and_then(Result::err);
    let flaw = flaw.or_else(|| service.too_long(&result_json));
    let request = SubmitRequest {
        status,
        result: (!result_json.is_empty()).then_some(result_json),
        error: (!error.is_empty()).then(|| error.into()),
        artifacts: Vec::new(),
        lease: lease(fence),
        flaw,
    };
    (task_id, request)
}

/// The lease a message names. Fences start at 1.
fn lease(fence: u64) -> LeaseRef {
    LeaseRef::fence((fence > 0).then_some(fence))
}

/// Converts a delay as the original codeQ does: -1 means no delay; zero or any other negative value means the backoff
/// policy.
fn delay(seconds: i32) -> Option<u64> {
    match seconds {
        -1 => Some(0),
        seconds => u64::try_from(seconds).ok().filter(|seconds| *seconds > 0),
    }
}

fn result_ack(task_id: String, error: Option<&ServiceError>) -> ResultAck {
    let (error_message, code) = error.map(ack_error).unwrap_or_default();
    ResultAck { task_id, ok: error.is_none(), error_message, code }
}

/// Bytes that a result counts for until its answer is there.
fn weight(result: &Outcome) -> usize {
    BASE + result.result_json.len() + result.error.len()
}

fn result_answer(task_id: String, error: Option<&ServiceError>) -> ServerEvent {
    match error {
        Some(error) if is_denied(error) => refusal(error),
        error => answer(Answer::ResultAck(result_ack(task_id, error))),
    }
}

fn heartbeat_answer(
    app: &App,
    task_id: String,
    done: Result<Extended, ServiceError>,
) -> ServerEvent {
    answer(Answer::HeartbeatAck(match done {
        Ok(done) => HeartbeatAck {
            task_id,
            ok: true,
            lease_until: app.times.text(done.lease_until),
            cancel_requested: done.cancel_requested,
            ..HeartbeatAck::default()
        },
        Err(error) if is_denied(&error) => return refusal(&error),
        Err(error) => {
            let (error_message, code) = ack_error(&error);
            HeartbeatAck { task_id, error_message, code, ..HeartbeatAck::default() }
        }
    }))
}

fn nack_answer(task_id: String, done: Result<Returned, ServiceError>) -> ServerEvent {
    answer(Answer::NackAck(match done {
        Ok(done) => NackAck {
            task_id,
            ok: true,
            applied_delay_seconds: match done {
                Returned::Requeued { delay } => {
                    i32::try_from(delay.div_ceil(1_000)).unwrap_or(i32::MAX)
                }
                Returned::Dead | Returned::Cancelled => 0,
            },
            dlq: done == Returned::Dead,
            ..NackAck::default()
        },
        Err(error) if is_denied(&error) => return refusal(&error),
        Err(error) => {
            let (error_message, code) = ack_error(&error);
            NackAck { task_id, error_message, code, ..NackAck::default() }
        }
    }))
}

fn abandon_answer(task_id: String, done: Result<Returned, ServiceError>) -> ServerEvent {
    answer(Answer::AbandonAck(match done {
        Ok(_) => AbandonAck { task_id, ok: true, ..AbandonAck::default() },
        Err(error) if is_denied(&error) => return refusal(&error),
        Err(error) => {
            let (error_message, code) = ack_error(&error);
            AbandonAck { task_id, error_message, code, ..AbandonAck::default() }
        }
    }))
}

/// The error code and text for an ack.
fn ack_error(error: &ServiceError) -> (String, String) {
    (error.to_string(), error.code.text().to_owned())
}

fn answer_batch(acks: Vec<ResultAck>) -> ServerEvent {
    answer(Answer::ResultAckBatch(ResultAckBatch { acks }))
}

/// Whether the token lacks the permission. A task leased to another worker is a different error.
fn is_denied(error: &ServiceError) -> bool {
    error.code == Code::Forbidden
}

fn refusal(error: &ServiceError) -> ServerEvent {
    let code = convert::code_name(error.code.kind()).to_owned();
    answer(Answer::Error(ServerError { code, message: error.to_string() }))
}

fn mistake(message: &'static str) -> Begun<Worker> {
    let code = convert::code_name(Kind::Invalid).to_owned();
    Begun::Answered(answer(Answer::Error(ServerError { code, message: message.to_owned() })))
}

fn answer(event: Answer) -> ServerEvent {
    ServerEvent { event: Some(event) }
}
