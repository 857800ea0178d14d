//! Submit: a worker finishes a task.

use std::sync::Arc;

use bytes::Bytes;
use codeq_auth::Principal;
use codeq_core::command::{Artifact, LeaseAction, Outcome, Submit};
use codeq_core::id::TaskId;
use codeq_core::place::Status;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::view::ResultRecord;
use codeq_engine::Answer;
use futures_util::future::{join, join_all};
use tokio::sync::Semaphore;

use super::artifacts::invalid;
use super::lease::LeaseRef;
use super::permission::MaySubmit;
use super::prepared_call::PreparedCall;
use super::{Code, Service, ServiceError, task_id};
use crate::artifacts::UPLOADS_AT_ONCE;
use crate::artifacts::upload::{self, NewArtifact, Source};

/// A submit as a worker sends it.
#[derive(Debug, Clone, Default)]
pub struct SubmitRequest {
    /// `COMPLETED` or `FAILED`.
    pub status: String,
    /// A JSON object as text; absent means `{}`.
    pub result: Option<Bytes>,
    /// Required with `FAILED`.
    pub error: Option<Arc<str>>,
    /// Task outputs, by URL or with content.
    pub artifacts: Vec<NewArtifact>,
    /// The lease the worker acts under.
    pub lease: LeaseRef,
    /// What is wrong with the request apart from its status; revealed only to the worker that holds the lease.
    pub flaw: Option<ServiceError>,
}

impl Service {
    /// Finishes a task once; repeating the same submit gives the same answer. Refuses artifacts
    /// with content: [`Service::submit_and_store`] takes those.
    pub fn submit(
        &self,
        caller: MaySubmit<'_>,
        id: &str,
        request: SubmitRequest,
    ) -> Result<PreparedCall<ResultRecord>, ServiceError> {
        let id = task_id(id, "task not found")?;
        if request.status == Status::Failed.as_str()
            && let Some(error) = &request.error
        {
            self.worker_failed(&caller, request.lease.instance.as_ref(), error);
        }
        let (outcome, artifacts, flaw) = match outcome(&request) {
            Ok(outcome) => match without_content(request.artifacts) {
                Ok(artifacts) => (outcome, artifacts, None),
                Err(flaw) => (rejected_last(), Vec::new(), Some(flaw)),
            },
            Err(flaw) => (rejected_last(), Vec::new(), Some(flaw)),
        };
        let submit = submit(&caller, id, outcome, artifacts);
        let command = request.lease.command(LeaseAction::Submit(submit));
        Ok(self.under_lease("submit", &caller, id, command, submitted).flawed(flaw))
    }

    /// Finishes a task once, after storing any content its result carries.
    pub async fn submit_and_store(
        &self,
        caller: MaySubmit<'_>,
        id: &str,
        request: SubmitRequest,
    ) -> Result<ResultRecord, ServiceError> {
        self.submit_one(caller, id, request, &uploads_at_once()).await
    }

    /// Finishes up to the configured number of tasks, all at the same time. Each succeeds or fails on its own.
    pub async fn submit_batch(
        &self,
        caller: MaySubmit<'_>,
        requests: Vec<(String, SubmitRequest)>,
    ) -> Result<Vec<(String, Result<ResultRecord, ServiceError>)>, ServiceError> {
        self.check_batch(requests.len())?;
        let at_once = &uploads_at_once();
        let (mut calls, mut uploads) = (Vec::with_capacity(requests.len()), Vec::new());
        let mut outcomes = Vec::with_capacity(requests.len());
        for (index, (id, request)) in requests.into_iter().enumerate() {
            let mut refused = None;
            if brings_content(&request.artifacts) {
                let id = id.clone();
                uploads.push(async move {
                    (index, self.submit_one(caller, &id, request, at_once).await)
                });
            } else {
                match self.submit(caller, &id, request) {
                    Ok(call) => calls.push((index, call)),
                    Err(error) => refused = Some(Err(error)),
                }
            }
            outcomes.push((id, refused));
        }
        let (posted, calls): (Vec<usize>, Vec<_>) = calls.into_iter().unzip();
        let (answers, uploaded) = join(self.call_all(calls), join_all(uploads)).await;
        for (index, outcome) in posted.into_iter().zip(answers).chain(uploaded) {
            if let Some((_, place)) = outcomes.get_mut(index) {
                *place = Some(outcome);
            }
        }
        let outcome = |(id, outcome): (String, Option<_>)| {
            (id, outcome.unwrap_or_else(|| Err(ServiceError::unexpected())))
        };
        Ok(outcomes.into_iter().map(outcome).collect())
    }

    async fn submit_one(
        &self,
        caller: MaySubmit<'_>,
        id: &str,
        request: SubmitRequest,
        at_once: &Arc<Semaphore>,
    ) -> Result<ResultRecord, ServiceError> {
        if brings_content(&request.artifacts)
            && let Ok(outcome) = outcome(&request)
        {
            let submit = submit(&caller, task_id(id, "task not found")?, outcome, Vec::new());
            let SubmitRequest { lease, artifacts, .. } = request;
            let at_once = Arc::clone(at_once);
            return self.submit_with_content(&caller, submit, lease, artifacts, at_once).await;
        }
        self.call(self.submit(caller, id, request)?).await
    }

    /// The error for a result above the size limit; `None` if it is within the limit.
    pub fn too_long(&self, result: &[u8]) -> Option<ServiceError> {
        let max = self.payload_max();
        (result.len() > max).then(|| Rejection::InvalidResult { max }.into())
    }
}

fn brings_content(artifacts: &[NewArtifact]) -> bool {
    artifacts.iter().any(|artifact| matches!(artifact.source, Source::Content { .. }))
}

fn submit(caller: &Principal, id: TaskId, outcome: Outcome, artifacts: Vec<Artifact>) -> Submit {
    let (tenant, worker) = (caller.tenant.clone(), caller.subject.clone());
    Submit { tenant, id, worker, outcome, artifacts }
}

/// An outcome the engine rejects with [`Rejection::ErrorRequired`], and only after every other
/// check. It stands in for a malformed request, so that only the worker that holds the lease learns what is wrong.
fn rejected_last() -> Outcome {
    Outcome::Failed("".into())
}

/// Upload permits of one request.
fn uploads_at_once() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(UPLOADS_AT_ONCE))
}

/// Converts artifacts that carry no content.
fn without_content(artifacts: Vec<NewArtifact>) -> Result<Vec<Artifact>, ServiceError> {
    let of = |NewArtifact { name, source }| match source {
        Source::Url(url) => Ok(Artifact { name, url }),
        Source::Content { .. } => Err(invalid("artifact content can only be sent over HTTP")),
    };
    artifacts.into_iter().map(of).collect()
}

fn submitted(answer: Answer) -> Result<ResultRecord, ServiceError> {
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
