//! `/workerpb.WorkerStream/Stream`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use codeq_core::command::{Claim, Command, Millis};
use codeq_core::reply::{Reply, Returned};
use codeq_core::view::Task;
use codeq_engine::request::{Answer as EngineAnswer, ReplyTo, Request as EngineRequest};
use codeq_proto::worker::server_event::Event as Answer;
use codeq_proto::worker::worker_event::Event;
use codeq_proto::worker::{
    Abandon, AbandonAck, Heartbeat, HeartbeatAck, Hello, HelloAck, Nack, NackAck, Ready,
    Result as Outcome, ResultAck, ResultAckBatch, ResultBatch, ServerError, ServerEvent,
    TaskAssignment, TaskBatch, WorkerEvent,
};
use futures_util::future::BoxFuture;
use tokio::task::AbortHandle;
use tonic::Status;

use super::events::Events;
use super::hello;
use super::session::{After, Begun, Opened, Protocol, Slots, check_rate};
use super::{Call, convert};
use crate::app::App;
use crate::auth::{Principal, Role, Scope, shown};
use crate::limits::LimitScope;
use crate::service::claim::{CREDIT_WAIT, ClaimRequest, claimed};
use crate::service::lease::{LeaseNamed, identity};
use crate::service::payload::check_result;
use crate::service::permission::Permissions;
use crate::service::submit::{SubmitRequest, submitted};
use crate::service::{Code, Kind, Service, ServiceError};

/// Most tasks of one TaskBatch: with all that belongs to a task it stays under the 4 MiB that clients accept.
const TASKS_MAX: i32 = 256;
/// Pause before a credit tries again that the engine could not take.
const RETRY: Duration = Duration::from_secs(1);
/// Pause before a credit tries again whose tasks there was no room for.
const SHORT: Duration = Duration::from_millis(100);
/// What an event weighs besides what it carries.
const BASE: usize = 256;

/// Opens a stream: waits for its Hello.
pub(super) async fn open(
    app: Arc<App>,
    call: Arc<Call>,
    metadata: HeaderMap,
    mut events: Events<WorkerEvent>,
) -> Result<Opened<Worker>, Status> {
    let hello = hello::first(&app, &mut events, |event: WorkerEvent| match event.event {
        Some(Event::Hello(hello)) => Some(hello),
        _ => None,
    });
    let Hello { token, worker_id } = hello.await?;
    let token = hello::Token { hello: &token, metadata: &metadata };
    let (mut caller, withdrawn) = token.bearer(&app, &call, Worker::SERVICE, Role::Worker).await?;
    let invalid = |_| Status::invalid_argument("worker_id is too long or not printable");
    caller.subject = identity(&caller, &worker_id).map_err(invalid)?;
    let worker_id = shown(&caller.subject).into_owned();
    let ack = HelloAck { worker_id, tenant_id: caller.tenant.to_string() };
    let protocol = Worker { app, caller: Arc::new(caller), last: Arc::default() };
    Ok(Opened { protocol, events, ack: answer(Answer::HelloAck(ack)), withdrawn })
}

/// One worker at the other end of a stream.
pub(super) struct Worker {
    app: Arc<App>,
    caller: Arc<Principal>,
    /// What the last Ready asked for.
    last: Arc<ClaimRequest>,
}

impl Protocol for Worker {
    type In = WorkerEvent;
    type Out = ServerEvent;
    type Posted = Waiting;

    const SERVICE: &'static str = "worker";
    const OF_PRODUCERS: bool = false;

    fn caller(&self) -> &Principal {
        &self.caller
    }

    fn credit(&mut self, event: WorkerEvent) -> Result<(Waiting, usize), WorkerEvent> {
        let Some(Event::Ready(ready)) = event.event else {
            return Err(event);
        };
        let had = Arc::clone(&self.last);
        let request = self.request(ready);
        let bytes = credit_bytes(&request, Arc::ptr_eq(&had, &request));
        Ok((Waiting::Credit { request, drawn: false, _work: None }, bytes))
    }

    fn post_credit(
        &mut self,
        credit: Waiting,
        slots: &mut Slots<'_>,
    ) -> Result<Waiting, ServerEvent> {
        let Waiting::Credit { request, drawn, .. } = credit else {
            return Ok(credit);
        };
        let service = &self.app.service;
        let (claim, wait) =
            service.claim_command(&self.caller, &request).map_err(|error| refusal(&error))?;
        // A credit is never refused for its rate: it waits a little longer.
        let limited = !drawn && check_worker_rate(&self.app, &self.caller, "claimTask").is_err();
        let reply = slots.reply.reply(0);
        let _work = if limited || service.engine.shards() > 1 {
            Some(self.claim(claim, wait, limited, reply))
        } else {
            slots.out.push(EngineRequest::with(Command::Claim(claim), reply, wait));
            None
        };
        Ok(Waiting::Credit { request, drawn: true, _work })
    }

    fn begin(&mut self, event: WorkerEvent, slots: &mut Slots<'_>) -> Begun<Worker> {
        match event.event {
            Some(Event::Result(result)) => self.result(result, slots),
            Some(Event::ResultBatch(batch)) => self.result_batch(batch, slots),
            Some(Event::Heartbeat(heartbeat)) => self.heartbeat(heartbeat),
            Some(Event::Nack(nack)) => self.nack(nack),
            Some(Event::Abandon(abandon)) => self.abandon(abandon),
            Some(Event::Hello(_)) => mistake("Hello comes first, and once"),
            // Readys are credits.
            Some(Event::Ready(_)) | None => mistake("unknown event"),
        }
    }

    fn answered(
        &mut self,
        event: &mut Waiting,
        index: u16,
        answer: EngineAnswer,
    ) -> After<ServerEvent> {
        match event {
            Waiting::Credit { request, .. } => self.claimed(request.count <= 1, claimed(answer)),
            Waiting::Result(id) => {
                let error = submitted(answer).err();
                After::Answer(result_answer(std::mem::take(id), error.as_ref()))
            }
            Waiting::Batch { acks, missing } => {
                if let Some(ack) = acks.get_mut(usize::from(index)) {
                    refuse(ack, submitted(answer).err().as_ref());
                }
                *missing -= 1;
                if *missing > 0 {
                    return After::More;
                }
                After::Answer(answer_batch(std::mem::take(acks)))
            }
        }
    }
}

/// What is remembered of events that were posted.
pub(super) enum Waiting {
    /// What a Ready asked for, whether it has drawn its token of the tenant's rate, and what claims for it.
    Credit { request: Arc<ClaimRequest>, drawn: bool, _work: Option<Running> },
    /// The task of a result.
    Result(String),
    /// The acknowledgements of a batch, as far as they are there.
    Batch { acks: Vec<ResultAck>, missing: usize },
}

/// A claim that runs by itself until nobody waits for it.
pub(super) struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Worker {
    /// A future that has all it needs: the service, and who calls.
    fn start<F>(
        &self,
        bytes: usize,
        work: impl FnOnce(Arc<App>, Arc<Principal>) -> F,
    ) -> Begun<Worker>
    where
        F: Future<Output = ServerEvent> + Send + 'static,
    {
        let work: BoxFuture<'static, ServerEvent> =
            Box::pin(work(Arc::clone(&self.app), Arc::clone(&self.caller)));
        Begun::Acknowledged(work, BASE + bytes)
    }

    /// What a Ready asks for: most ask for the same as the one before.
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
                wait_seconds: CREDIT_WAIT,
                count,
                worker_id: None,
            });
        }
        Arc::clone(&self.last)
    }

    /// What a posted credit comes to. One that the engine could not keep begins anew.
    fn claimed(&self, single: bool, tasks: Result<Vec<Task>, ServiceError>) -> After<ServerEvent> {
        match tasks {
            Ok(tasks) if !tasks.is_empty() => After::Answer(assignment(&self.app, tasks, single)),
            _ if self.app.service.is_draining() => After::Nothing,
            Ok(_) => After::Again(SHORT),
            Err(error) if error.code.kind() == Kind::Unavailable => {
                if let Some(what) = error.code.refused() {
                    self.app.metrics.refused(&self.caller.tenant, what);
                }
                After::Again(RETRY)
            }
            Err(error) => After::Answer(refusal(&error)),
        }
    }

    /// Claims where more has to be done than to post it: in several shards, or not before the tenant may ask again.
    fn claim(&self, claim: Claim, wait: Millis, limited: bool, reply: ReplyTo) -> Running {
        let (app, caller) = (Arc::clone(&self.app), Arc::clone(&self.caller));
        let work = tokio::spawn(async move {
            if limited {
                tokio::time::sleep(RETRY).await;
                wait_for_rate(&app, &caller).await;
            }
            let answer = app.service.engine.claim(claim, wait).await;
            if let Err(Ok(Reply::Claimed(tasks))) = reply.send(answer) {
                app.service.engine.give_back(tasks);
            }
        });
        Running(work.abort_handle())
    }

    fn result(&self, result: Outcome, slots: &mut Slots<'_>) -> Begun<Worker> {
        let bytes = BASE + result.result_json.len();
        let (id, request) = submit_request(&self.app.service, result);
        if let Err(error) = check_worker_rate(&self.app, &self.caller, "submitResult") {
            return Begun::Answered(result_answer(id, Some(&error)));
        }
        if !request.is_plain() {
            return self.start(bytes, |app, caller| async move {
                let done = app.service.submit(&caller, &id, request).await;
                result_answer(id, done.err().as_ref())
            });
        }
        match self.app.service.submit_request(&self.caller, &id, request, slots.reply.reply(0)) {
            Ok(submit) => {
                slots.out.push(submit);
                Begun::Posted(Waiting::Result(id), bytes)
            }
            Err(error) => Begun::Answered(result_answer(id, Some(&error))),
        }
    }

    fn result_batch(&self, batch: ResultBatch, slots: &mut Slots<'_>) -> Begun<Worker> {
        if batch.results.is_empty() {
            return Begun::Answered(answer_batch(Vec::new()));
        }
        if let Err(error) = self.caller.needs(Scope::Result) {
            return Begun::Answered(refusal(&error));
        }
        let bytes = batch.results.iter().map(|result| BASE + result.result_json.len()).sum();
        let service = &self.app.service;
        let requests = batch.results.into_iter().map(|result| submit_request(service, result));
        let requests: Vec<_> = requests.collect();
        let plain = requests.iter().all(|(_, request)| request.is_plain());
        if !plain || requests.len() > service.batch_max() {
            return self.start(bytes, |app, caller| submit_in_parts(app, caller, requests));
        }
        if let Err(error) = check_worker_rate(&self.app, &self.caller, "submitResults") {
            let acks = requests.into_iter().map(|(id, _)| result_ack(id, Some(&error)));
            return Begun::Answered(answer_batch(acks.collect()));
        }
        let mut acks = Vec::with_capacity(requests.len());
        let mut missing = 0;
        for (index, (id, request)) in (0..).zip(requests) {
            let reply = slots.reply.reply(index);
            let error = match service.submit_request(&self.caller, &id, request, reply) {
                Ok(submit) => {
                    slots.out.push(submit);
                    missing += 1;
                    None
                }
                Err(error) => Some(error),
            };
            acks.push(result_ack(id, error.as_ref()));
        }
        if missing == 0 {
            return Begun::Answered(answer_batch(acks));
        }
        Begun::Posted(Waiting::Batch { acks, missing }, bytes)
    }

    fn heartbeat(&self, heartbeat: Heartbeat) -> Begun<Worker> {
        self.start(0, |app, caller| async move {
            let Heartbeat { task_id, extend_seconds, fence } = heartbeat;
            let extend = Some(i64::from(extend_seconds));
            let done = match check_worker_rate(&app, &caller, "heartbeat") {
                Ok(()) => app.service.heartbeat(&caller, &task_id, extend, lease(fence)).await,
                Err(error) => Err(error),
            };
            let ack = match done {
                Ok(done) => HeartbeatAck {
                    task_id,
                    ok: true,
                    lease_until: app.times.text(done.lease_until),
                    cancel_requested: done.cancel_requested,
                    ..HeartbeatAck::default()
                },
                Err(error) if is_denied(&error) => return refusal(&error),
                Err(error) => HeartbeatAck {
                    task_id,
                    error_message: error.to_string(),
                    code: error.code.text().to_owned(),
                    ..HeartbeatAck::default()
                },
            };
            answer(Answer::HeartbeatAck(ack))
        })
    }

    fn nack(&self, nack: Nack) -> Begun<Worker> {
        self.start(nack.reason.len(), |app, caller| async move {
            let Nack { task_id, delay_seconds, reason, fence } = nack;
            let reason = (!reason.is_empty()).then(|| reason.into());
            let delay = delay(delay_seconds);
            let done = match check_worker_rate(&app, &caller, "nack") {
                Ok(()) => app.service.nack(&caller, &task_id, delay, reason, lease(fence)).await,
                Err(error) => Err(error),
            };
            let ack = match done {
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
                Err(error) => NackAck {
                    task_id,
                    error_message: error.to_string(),
                    code: error.code.text().to_owned(),
                    ..NackAck::default()
                },
            };
            answer(Answer::NackAck(ack))
        })
    }

    fn abandon(&self, abandon: Abandon) -> Begun<Worker> {
        self.start(0, |app, caller| async move {
            let Abandon { task_id, no_penalty, fence } = abandon;
            let done = match check_worker_rate(&app, &caller, "abandon") {
                Ok(()) => app.service.abandon(&caller, &task_id, !no_penalty, lease(fence)).await,
                Err(error) => Err(error),
            };
            let ack = match done {
                Ok(_) => AbandonAck { task_id, ok: true, ..AbandonAck::default() },
                Err(error) if is_denied(&error) => return refusal(&error),
                Err(error) => AbandonAck {
                    task_id,
                    error_message: error.to_string(),
                    code: error.code.text().to_owned(),
                    ..AbandonAck::default()
                },
            };
            answer(Answer::AbandonAck(ack))
        })
    }
}

/// Submits in parts that are no longer than a batch over HTTP may be, one after the other; each draws one token of the
/// tenant's rate.
async fn submit_in_parts(
    app: Arc<App>,
    caller: Arc<Principal>,
    requests: Vec<(String, SubmitRequest)>,
) -> ServerEvent {
    let max = app.service.batch_max();
    let mut acks = Vec::with_capacity(requests.len());
    let mut requests = requests.into_iter();
    while requests.len() > 0 {
        let part: Vec<_> = requests.by_ref().take(max).collect();
        if let Err(error) = check_worker_rate(&app, &caller, "submitResults") {
            acks.extend(part.into_iter().map(|(id, _)| result_ack(id, Some(&error))));
            continue;
        }
        let done = app.service.submit_all(&caller, part).await;
        acks.extend(done.into_iter().map(|(id, done)| result_ack(id, done.err().as_ref())));
    }
    answer_batch(acks)
}

/// Returns when the tenant may ask again.
async fn wait_for_rate(app: &App, caller: &Principal) {
    while let Err(limited) = check_worker_rate(app, caller, "claimTask") {
        tokio::time::sleep(Duration::from_secs(limited.retry_after.unwrap_or(1))).await;
    }
}

fn check_worker_rate(
    app: &App,
    caller: &Principal,
    operation: &'static str,
) -> Result<(), ServiceError> {
    check_rate(app, caller, LimitScope::Worker, operation)
}

fn assignment(app: &App, tasks: Vec<Task>, single: bool) -> ServerEvent {
    let mut tasks = tasks.into_iter().map(|task| convert::task(task, &app.times));
    if single {
        answer(Answer::Task(TaskAssignment { task: tasks.next() }))
    } else {
        answer(Answer::TaskBatch(TaskBatch { tasks: tasks.collect() }))
    }
}

/// About how many bytes a wait for work takes, here and in the engine, which keeps a line for each command.
fn credit_bytes(request: &ClaimRequest, shared: bool) -> usize {
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

/// The lease that a message names; fences begin at 1.
fn lease(fence: u64) -> LeaseNamed {
    LeaseNamed::fence((fence > 0).then_some(fence))
}

/// Zero means the backoff policy, as in codeQ, and so does what is negative; but -1 means at once.
fn delay(seconds: i32) -> Option<u64> {
    match seconds {
        -1 => Some(0),
        seconds => u64::try_from(seconds).ok().filter(|seconds| *seconds > 0),
    }
}

fn result_ack(task_id: String, error: Option<&ServiceError>) -> ResultAck {
    ResultAck {
        task_id,
        ok: error.is_none(),
        error_message: error.map_or_else(String::new, ToString::to_string),
        code: error.map_or_else(String::new, |error| error.code.text().to_owned()),
    }
}

/// Writes into an acknowledgement what was wrong, if anything was.
fn refuse(ack: &mut ResultAck, error: Option<&ServiceError>) {
    *ack = result_ack(std::mem::take(&mut ack.task_id), error);
}

fn result_answer(task_id: String, error: Option<&ServiceError>) -> ServerEvent {
    match error {
        Some(error) if is_denied(error) => refusal(error),
        error => answer(Answer::ResultAck(result_ack(task_id, error))),
    }
}

fn answer_batch(acks: Vec<ResultAck>) -> ServerEvent {
    answer(Answer::ResultAckBatch(ResultAckBatch { acks }))
}

/// Whether the token does not allow this at all; a task of somebody else's is another matter.
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
