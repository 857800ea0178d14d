//! Submit: a worker ends a task.

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::{Artifact, Command, Outcome, Submit};
use codeq_core::id::TaskId;
use codeq_core::place::Place;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::view::ResultRecord;
use codeq_engine::request::{Answer, ReplyTo};
use tracing::Instrument;

use super::{Service, ServiceError, task_id};
use crate::auth::{Principal, Scope};
use crate::observe::trace;

/// How a worker says that a task ended.
#[derive(Debug, Clone, Default)]
pub struct SubmitRequest {
    /// `COMPLETED` or `FAILED`.
    pub status: String,
    /// A JSON object as text; none counts as `{}`.
    pub result: Option<Bytes>,
    /// Required with `FAILED`.
    pub error: Option<Arc<str>>,
    /// Outputs that lie elsewhere.
    pub artifacts: Vec<Artifact>,
    /// What is wrong with the request beyond its status; told only to the owner of the task.
    pub flaw: Option<ServiceError>,
}

impl SubmitRequest {
    /// Whether nothing is wrong with it in itself, and it leaves no trace.
    pub fn is_plain(&self) -> bool {
        outcome(self).is_ok() && !trace::is_on()
    }
}

impl Service {
    /// Ends a task, once. The same submit again answers the same.
    pub async fn submit(
        &self,
        caller: &Principal,
        id: &str,
        request: SubmitRequest,
    ) -> Result<ResultRecord, ServiceError> {
        caller.needs(Scope::Result)?;
        let id = task_id(id, "task not found")?;
        let outcome = match outcome(&request) {
            Ok(outcome) => outcome,
            Err(flaw) => return Err(self.refusal(caller, id, flaw).await?),
        };
        let span = self.span("submit", caller, id).await;
        let command = command(caller, id, outcome, request.artifacts);
        submitted(self.engine.propose(command).instrument(span).await)
    }

    /// Ends a task without waiting: the answer goes to `reply`, and [`submitted`] reads it. For requests that
    /// are plain; the others need a look at the task first.
    pub fn post_submit(
        &self,
        caller: &Principal,
        id: &str,
        request: SubmitRequest,
        reply: ReplyTo,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::Result)?;
        let id = task_id(id, "task not found")?;
        let command = command(caller, id, outcome(&request)?, request.artifacts);
        Ok(self.engine.post(command, reply, 0)?)
    }

    /// Ends up to the configured number of tasks; each stands for itself. They share a commit.
    pub async fn submit_batch(
        &self,
        caller: &Principal,
        requests: Vec<(String, SubmitRequest)>,
    ) -> Result<Vec<(String, Result<ResultRecord, ServiceError>)>, ServiceError> {
        self.check_batch(requests.len())?;
        let submits = requests.into_iter().map(|(id, request)| async move {
            let done = self.submit(caller, &id, request).await;
            (id, done)
        });
        Ok(futures_util::future::join_all(submits).await)
    }

    /// What to tell about a submit that is wrong in itself: first whether the task is the caller's at all.
    async fn refusal(
        &self,
        caller: &Principal,
        id: TaskId,
        flaw: ServiceError,
    ) -> Result<ServiceError, ServiceError> {
        let Some(task) = self.engine.task(&caller.tenant, id).await? else {
            return Ok(ServiceError::not_found("task not found"));
        };
        Ok(if task.place != Place::InProgress {
            Rejection::NotInProgress.into()
        } else if task.worker.as_ref() != Some(&caller.subject) {
            Rejection::NotOwner.into()
        } else {
            flaw
        })
    }
}

fn command(caller: &Principal, id: TaskId, outcome: Outcome, artifacts: Vec<Artifact>) -> Command {
    let (tenant, worker) = (caller.tenant.clone(), caller.subject.clone());
    Command::Submit(Submit { tenant, id, worker, outcome, artifacts })
}

/// The result of a task that was submitted.
pub fn submitted(answer: Answer) -> Result<ResultRecord, ServiceError> {
    match answer? {
        Reply::Submitted(record) => Ok(*record),
        Reply::Rejected(Rejection::NotFound) => Err(ServiceError::not_found("task not found")),
        Reply::Rejected(rejection) => Err(rejection.into()),
        _ => Err(ServiceError::unexpected()),
    }
}

fn outcome(request: &SubmitRequest) -> Result<Outcome, ServiceError> {
    let outcome = match &*request.status {
        "COMPLETED" => {
            Outcome::Completed(request.result.clone().unwrap_or(Bytes::from_static(b"{}")))
        }
        "FAILED" => match &request.error {
            Some(error) if !error.is_empty() => Outcome::Failed(error.clone()),
            _ => return Err(Rejection::ErrorRequired.into()),
        },
        _ => {
            let refused = ServiceError::invalid("invalid_status", "invalid status");
            return Err(refused.field("status").detail("status must be COMPLETED or FAILED"));
        }
    };
    match &request.flaw {
        Some(flaw) => Err(flaw.clone()),
        None => Ok(outcome),
    }
}
