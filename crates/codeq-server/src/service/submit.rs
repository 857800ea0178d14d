//! Submit: a worker ends a task.

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::{Artifact, Deed, Outcome, Submit};
use codeq_core::id::TaskId;
use codeq_core::place::{Place, Status};
use codeq_core::reply::{Rejection, Reply};
use codeq_core::view::ResultRecord;
use codeq_engine::request::{Answer, ReplyTo, Request};
use tokio::sync::Semaphore;
use tracing::Instrument;

use super::artifacts::invalid;
use super::lease::LeaseNamed;
use super::permission::Permissions;
use super::{Code, Service, ServiceError, task_id};
use crate::artifacts::UPLOADS_AT_ONCE;
use crate::artifacts::upload::{self, NewArtifact, Source};
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
    /// Outputs.
    pub artifacts: Vec<NewArtifact>,
    /// The lease that it is sent under.
    pub lease: LeaseNamed,
    /// What is wrong with the request beyond its status; told only to the owner of the task.
    pub flaw: Option<ServiceError>,
}

impl SubmitRequest {
    /// Whether nothing is wrong with it in itself, and it leaves no trace.
    pub fn is_plain(&self) -> bool {
        outcome(self).is_ok() && !brings_content(&self.artifacts) && !trace::is_on()
    }
}

fn brings_content(artifacts: &[NewArtifact]) -> bool {
    artifacts.iter().any(|artifact| matches!(artifact.source, Source::Content { .. }))
}

impl Service {
    /// Ends a task, once. The same submit again answers the same.
    pub async fn submit(
        &self,
        caller: &Principal,
        id: &str,
        request: SubmitRequest,
    ) -> Result<ResultRecord, ServiceError> {
        self.submit_one(caller, id, request, &uploads_at_once()).await
    }

    async fn submit_one(
        &self,
        caller: &Principal,
        id: &str,
        request: SubmitRequest,
        at_once: &Arc<Semaphore>,
    ) -> Result<ResultRecord, ServiceError> {
        caller.needs(Scope::Result)?;
        let id = task_id(id, "task not found")?;
        let outcome = match outcome(&request) {
            Ok(outcome) => outcome,
            Err(flaw) => return Err(self.refusal(caller, id, &request.lease, flaw).await?),
        };
        let SubmitRequest { artifacts, lease, .. } = request;
        if brings_content(&artifacts) {
            let submit = submit(caller, id, outcome, Vec::new());
            let at_once = Arc::clone(at_once);
            return self.submit_with_content(caller, submit, lease, artifacts, at_once).await;
        }
        let span = self.span("submit", caller, id).await;
        let submit = submit(caller, id, outcome, elsewhere(artifacts));
        let command = lease.command(Deed::Submit(submit));
        submitted(self.engine.propose(command).instrument(span).await)
    }

    /// What to post so that a task ends; the answer goes to `reply`, and [`submitted`] reads it. For requests
    /// that are plain; the others need a look at the task first.
    pub fn submit_request(
        &self,
        caller: &Principal,
        id: &str,
        request: SubmitRequest,
        reply: ReplyTo,
    ) -> Result<Request, ServiceError> {
        caller.needs(Scope::Result)?;
        let id = task_id(id, "task not found")?;
        let submit = submit(caller, id, outcome(&request)?, elsewhere(request.artifacts));
        Ok(Request::with(request.lease.command(Deed::Submit(submit)), reply, 0))
    }

    /// Ends up to the configured number of tasks; each stands for itself. They share a commit.
    pub async fn submit_batch(
        &self,
        caller: &Principal,
        requests: Vec<(String, SubmitRequest)>,
    ) -> Result<Vec<(String, Result<ResultRecord, ServiceError>)>, ServiceError> {
        self.check_batch(requests.len())?;
        Ok(self.submit_all(caller, requests).await)
    }

    /// Ends these tasks at the same time; each stands for itself.
    pub async fn submit_all(
        &self,
        caller: &Principal,
        requests: Vec<(String, SubmitRequest)>,
    ) -> Vec<(String, Result<ResultRecord, ServiceError>)> {
        let at_once = &uploads_at_once();
        let submits = requests.into_iter().map(|(id, request)| async move {
            let done = self.submit_one(caller, &id, request, at_once).await;
            (id, done)
        });
        futures_util::future::join_all(submits).await
    }

    /// What to tell about a submit that is wrong in itself: first whether the task is the caller's at all.
    async fn refusal(
        &self,
        caller: &Principal,
        id: TaskId,
        lease: &LeaseNamed,
        flaw: ServiceError,
    ) -> Result<ServiceError, ServiceError> {
        let Some(task) = self.engine.task(&caller.tenant, id).await? else {
            return Ok(ServiceError::no_task("task not found"));
        };
        let holder = lease.holder(&caller.subject);
        Ok(if !holder.is_current(task.fence) {
            Rejection::LeaseLost.into()
        } else if task.place != Place::InProgress {
            Rejection::NotInProgress.into()
        } else if !task.worker.as_deref().is_some_and(|owner| holder.is(owner)) {
            Rejection::NotOwner.into()
        } else {
            flaw
        })
    }
}

fn submit(caller: &Principal, id: TaskId, outcome: Outcome, artifacts: Vec<Artifact>) -> Submit {
    let (tenant, worker) = (caller.tenant.clone(), caller.subject.clone());
    Submit { tenant, id, worker, outcome, artifacts }
}

impl Service {
    /// What is wrong with the length of a result, if anything is.
    pub fn too_long(&self, result: &[u8]) -> Option<ServiceError> {
        let max = self.payload_max();
        (result.len() > max).then(|| Rejection::InvalidResult { max }.into())
    }
}

/// Permits for the uploads of one request.
fn uploads_at_once() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(UPLOADS_AT_ONCE))
}

/// Artifacts of a result that brings no content.
fn elsewhere(artifacts: Vec<NewArtifact>) -> Vec<Artifact> {
    let of = |NewArtifact { name, source }| match source {
        Source::Url(url) => Some(Artifact { name, url }),
        Source::Content { .. } => None,
    };
    artifacts.into_iter().filter_map(of).collect()
}

/// The result of a task that was submitted.
pub fn submitted(answer: Answer) -> Result<ResultRecord, ServiceError> {
    match answer? {
        Reply::Submitted(record) => Ok(*record),
        Reply::Rejected(Rejection::NotFound) => Err(ServiceError::no_task("task not found")),
        Reply::Rejected(rejection) => Err(rejection.into()),
        _ => Err(ServiceError::unexpected()),
    }
}

fn outcome(request: &SubmitRequest) -> Result<Outcome, ServiceError> {
    let error = request.error.clone().filter(|error| !error.trim().is_empty());
    let both = |completed, result, error| Outcome::Both { completed, result, error };
    let ends = [Status::Completed, Status::Failed];
    let status = ends.into_iter().find(|status| status.as_str() == &*request.status);
    let outcome = match (status, request.result.clone(), error) {
        (Some(Status::Completed), result, None) => {
            Outcome::Completed(result.unwrap_or(Bytes::from_static(b"{}")))
        }
        (Some(Status::Completed), result, Some(error)) => {
            both(true, result.unwrap_or(Bytes::from_static(b"{}")), error)
        }
        (Some(_), _, None) => return Err(Rejection::ErrorRequired.into()),
        (Some(_), None, Some(error)) => Outcome::Failed(error),
        (Some(_), Some(result), Some(error)) => both(false, result, error),
        (None, ..) => {
            let refused = ServiceError::new(Code::InvalidStatus, "invalid status");
            return Err(refused
                .field("status")
                .detail("status must be COMPLETED or FAILED, in capitals"));
        }
    };
    if let Some(flaw) = &request.flaw {
        return Err(flaw.clone());
    }
    upload::check(&request.artifacts).map_err(|why| invalid(&why))?;
    Ok(outcome)
}
