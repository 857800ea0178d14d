//! `/workerpb.WorkerStream/Stream`.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::names::check_worker;
use codeq_core::reply::Returned;
use codeq_core::view::Task;
use codeq_proto::worker::server_event::Event as Answer;
use codeq_proto::worker::worker_event::Event;
use codeq_proto::worker::worker_stream_server::WorkerStream;
use codeq_proto::worker::{
    Abandon, AbandonAck, Heartbeat, HeartbeatAck, Hello, HelloAck, Nack, NackAck, Ready,
    Result as Outcome, ResultAck, ResultAckBatch, ResultBatch, ServerError, ServerEvent,
    TaskAssignment, TaskBatch, WorkerEvent,
};
use futures_util::future::BoxFuture;
use tonic::{Request, Response, Status};

use super::convert;
use super::hello;
use super::session::{Begun, Opened, Protocol, Session, check_rate};
use crate::auth::{Principal, Role, Scope, instance, shown};
use crate::http::{App, json};
use crate::limits::LimitScope;
use crate::service::claim::{CREDIT_WAIT, ClaimRequest};
use crate::service::submit::SubmitRequest;
use crate::service::{Kind, ServiceError};

/// Most tasks of one TaskBatch: with all that belongs to a task it stays under the 4 MiB that clients accept.
const TASKS_MAX: i32 = 256;
/// Pause before a credit tries again that the engine could not take.
const RETRY: Duration = Duration::from_secs(1);
/// What an event weighs besides what it carries.
const BASE: usize = 256;

/// The service.
pub(super) struct Workers {
    pub(super) app: Arc<App>,
}

#[tonic::async_trait]
impl WorkerStream for Workers {
    type StreamStream = Session<Worker>;

    async fn stream(
        &self,
        request: Request<tonic::Streaming<WorkerEvent>>,
    ) -> Result<Response<Session<Worker>>, Status> {
        let (metadata, _, mut events) = request.into_parts();
        let app = Arc::clone(&self.app);
        let opening = async move {
            let hello = hello::first(&mut events, |event: WorkerEvent| match event.event {
                Some(Event::Hello(hello)) => Some(hello),
                _ => None,
            });
            let Hello { token, worker_id } = hello.await?;
            let mut caller = hello::authenticate(&app, &token, metadata, Role::Worker).await?;
            if !worker_id.is_empty() && *worker_id != *caller.subject {
                caller.subject = instance(&caller.subject, &worker_id).into();
                let invalid =
                    |_| Status::invalid_argument("worker_id is too long or not printable");
                check_worker(&caller.subject).map_err(invalid)?;
            }
            let worker_id = shown(&caller.subject).into_owned();
            let ack = HelloAck { worker_id, tenant_id: caller.tenant.to_string() };
            let protocol = Worker { app, caller: Arc::new(caller), commands: Vec::new() };
            Ok(Opened { protocol, events, ack: answer(Answer::HelloAck(ack)) })
        };
        Ok(Response::new(Session::new(Arc::clone(&self.app), opening)))
    }
}

/// One worker at the other end of a stream.
pub(super) struct Worker {
    app: Arc<App>,
    caller: Arc<Principal>,
    /// What the last Ready was for: most are for the same.
    commands: Vec<Arc<str>>,
}

impl Protocol for Worker {
    type In = WorkerEvent;
    type Out = ServerEvent;

    const SERVICE: &'static str = "worker";

    fn caller(&self) -> &Principal {
        &self.caller
    }

    fn begin(&mut self, event: WorkerEvent) -> Begun<ServerEvent> {
        match event.event {
            Some(Event::Ready(ready)) => self.ready(ready),
            Some(Event::Result(result)) => self.result(result),
            Some(Event::ResultBatch(batch)) => self.result_batch(batch),
            Some(Event::Heartbeat(heartbeat)) => self.heartbeat(heartbeat),
            Some(Event::Nack(nack)) => self.nack(nack),
            Some(Event::Abandon(abandon)) => self.abandon(abandon),
            Some(Event::Hello(_)) => mistake("Hello comes first, and once"),
            None => mistake("unknown event"),
        }
    }
}

impl Worker {
    /// A future that has all it needs: the service, and who calls.
    fn start<F>(
        &self,
        bytes: usize,
        work: impl FnOnce(Arc<App>, Arc<Principal>) -> F,
    ) -> Begun<ServerEvent>
    where
        F: Future<Output = ServerEvent> + Send + 'static,
    {
        let work: BoxFuture<'static, ServerEvent> =
            Box::pin(work(Arc::clone(&self.app), Arc::clone(&self.caller)));
        Begun::Acknowledged(work, BASE + bytes)
    }

    fn ready(&mut self, ready: Ready) -> Begun<ServerEvent> {
        let same = self.commands.len() == ready.commands.len()
            && self.commands.iter().zip(&ready.commands).all(|(had, new)| **had == **new);
        if !same {
            self.commands = ready.commands.into_iter().map(Into::into).collect();
        }
        let single = ready.count <= 1;
        let request = ClaimRequest {
            commands: self.commands.clone(),
            lease_seconds: Some(i64::from(ready.lease_seconds)),
            wait_seconds: CREDIT_WAIT,
            count: ready.count.clamp(1, TASKS_MAX).unsigned_abs(),
        };
        let (app, caller) = (Arc::clone(&self.app), Arc::clone(&self.caller));
        Begun::Credit(Box::pin(async move {
            match claim(&app, &caller, request).await {
                Ok(tasks) if tasks.is_empty() => None,
                Ok(tasks) => Some(assignment(&app, tasks, single)),
                Err(error) => Some(refusal(&error)),
            }
        }))
    }

    fn result(&self, result: Outcome) -> Begun<ServerEvent> {
        let bytes = result.result_json.len();
        self.start(bytes, |app, caller| async move {
            let (task_id, request) = submit_request(result);
            let done = match check_worker_rate(&app, &caller, "submitResult") {
                Ok(()) => app.service.submit(&caller, &task_id, request).await,
                Err(error) => Err(error),
            };
            match done {
                Ok(_) => answer(Answer::ResultAck(result_ack(task_id, None))),
                Err(error) if is_denied(&error) => refusal(&error),
                Err(error) => answer(Answer::ResultAck(result_ack(task_id, Some(&error)))),
            }
        })
    }

    fn result_batch(&self, batch: ResultBatch) -> Begun<ServerEvent> {
        if batch.results.is_empty() {
            return Begun::Answered(answer(Answer::ResultAckBatch(ResultAckBatch::default())));
        }
        let bytes = batch.results.iter().map(|result| BASE + result.result_json.len()).sum();
        self.start(bytes, |app, caller| async move {
            let requests: Vec<_> = batch.results.into_iter().map(submit_request).collect();
            let ids: Vec<String> = requests.iter().map(|(id, _)| id.clone()).collect();
            // The scope for all of them at once: each result would be told of it in its own acknowledgement.
            let allowed = check_worker_rate(&app, &caller, "submitResults")
                .and_then(|()| caller.needs(Scope::Result));
            let done = match allowed {
                Ok(()) => app.service.submit_batch(&caller, requests).await,
                Err(error) => Err(error),
            };
            let acks = match done {
                Ok(done) => {
                    done.into_iter().map(|(id, done)| result_ack(id, done.err().as_ref())).collect()
                }
                Err(error) if is_denied(&error) => return refusal(&error),
                Err(error) => ids.into_iter().map(|id| result_ack(id, Some(&error))).collect(),
            };
            answer(Answer::ResultAckBatch(ResultAckBatch { acks }))
        })
    }

    fn heartbeat(&self, heartbeat: Heartbeat) -> Begun<ServerEvent> {
        self.start(0, |app, caller| async move {
            let Heartbeat { task_id, extend_seconds } = heartbeat;
            let extend = Some(i64::from(extend_seconds));
            let done = match check_worker_rate(&app, &caller, "heartbeat") {
                Ok(()) => app.service.heartbeat(&caller, &task_id, extend).await,
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
                    code: error.code.to_owned(),
                    ..HeartbeatAck::default()
                },
            };
            answer(Answer::HeartbeatAck(ack))
        })
    }

    fn nack(&self, nack: Nack) -> Begun<ServerEvent> {
        self.start(nack.reason.len(), |app, caller| async move {
            let Nack { task_id, delay_seconds, reason } = nack;
            let reason = (!reason.is_empty()).then(|| reason.into());
            let done = match (check_worker_rate(&app, &caller, "nack"), delay(delay_seconds)) {
                (Ok(()), Ok(delay)) => app.service.nack(&caller, &task_id, delay, reason).await,
                (Err(error), _) | (_, Err(error)) => Err(error),
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
                    code: error.code.to_owned(),
                    ..NackAck::default()
                },
            };
            answer(Answer::NackAck(ack))
        })
    }

    fn abandon(&self, abandon: Abandon) -> Begun<ServerEvent> {
        self.start(0, |app, caller| async move {
            let Abandon { task_id, no_penalty } = abandon;
            let done = match check_worker_rate(&app, &caller, "abandon") {
                Ok(()) => app.service.abandon(&caller, &task_id, !no_penalty).await,
                Err(error) => Err(error),
            };
            let ack = match done {
                Ok(_) => AbandonAck { task_id, ok: true, ..AbandonAck::default() },
                Err(error) if is_denied(&error) => return refusal(&error),
                Err(error) => AbandonAck {
                    task_id,
                    error_message: error.to_string(),
                    code: error.code.to_owned(),
                    ..AbandonAck::default()
                },
            };
            answer(Answer::AbandonAck(ack))
        })
    }
}

/// Holds a credit until there is a task, however long. None at all only when the server stops.
async fn claim(
    app: &App,
    caller: &Principal,
    request: ClaimRequest,
) -> Result<Vec<Task>, ServiceError> {
    while let Err(limited) = check_worker_rate(app, caller, "claimTask") {
        tokio::time::sleep(Duration::from_secs(limited.retry_after.unwrap_or(1))).await;
    }
    loop {
        match app.service.claim(caller, request.clone()).await {
            Ok(tasks) if tasks.is_empty() && !app.service.is_draining() => {}
            Err(error) if error.kind == Kind::Unavailable && !app.service.is_draining() => {
                tokio::time::sleep(RETRY).await;
            }
            Err(error) if error.kind == Kind::Unavailable => return Ok(Vec::new()),
            done => return done,
        }
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

fn submit_request(result: Outcome) -> (String, SubmitRequest) {
    let Outcome { task_id, status, result_json, error } = result;
    let flaw =
        (!result_json.is_empty()).then(|| json::check_result(&result_json)).and_then(Result::err);
    let request = SubmitRequest {
        status,
        result: (!result_json.is_empty()).then_some(result_json),
        error: (!error.is_empty()).then(|| error.into()),
        artifacts: Vec::new(),
        flaw,
    };
    (task_id, request)
}

/// Zero means the backoff policy, as in codeQ; -1 means at once.
fn delay(seconds: i32) -> Result<Option<u64>, ServiceError> {
    match seconds {
        0 => Ok(None),
        -1 => Ok(Some(0)),
        seconds => u64::try_from(seconds).map(Some).map_err(|_| {
            ServiceError::invalid("invalid_delay", "invalid 'delay_seconds' (must be >= -1)")
        }),
    }
}

fn result_ack(task_id: String, error: Option<&ServiceError>) -> ResultAck {
    ResultAck {
        task_id,
        ok: error.is_none(),
        error_message: error.map_or_else(String::new, ToString::to_string),
        code: error.map_or_else(String::new, |error| error.code.to_owned()),
    }
}

/// Whether the token does not allow this at all; a task of somebody else's is another matter.
fn is_denied(error: &ServiceError) -> bool {
    error.kind == Kind::Forbidden && error.code == "forbidden"
}

fn refusal(error: &ServiceError) -> ServerEvent {
    let code = convert::code_name(error.kind).to_owned();
    answer(Answer::Error(ServerError { code, message: error.to_string() }))
}

fn mistake(message: &'static str) -> Begun<ServerEvent> {
    Begun::Answered(refusal(&ServiceError::invalid("invalid_event", message)))
}

fn answer(event: Answer) -> ServerEvent {
    ServerEvent { event: Some(event) }
}
