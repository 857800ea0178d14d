//! Artifacts: submits with content, and downloads.

use std::sync::Arc;

use codeq_auth::Principal;
use codeq_core::command::{LeaseAction, Submit};
use codeq_core::place::Place;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::submit::check;
use codeq_core::view::ResultRecord;
use codeq_engine::{Engine, EngineError};
use tokio::sync::Semaphore;
use tracing::{Instrument, Span};

use super::lease::LeaseRef;
use super::{Code, Service, ServiceError, task_id};
use crate::artifacts::upload::{NewArtifact, Prepared, is_same};
use crate::artifacts::{Artifacts, Download};

/// Retry hint after a storage failure, in seconds.
const STORE_RETRY_SECONDS: u64 = 5;

impl Service {
    /// Downloads the artifact stored under `name` for a task.
    pub async fn artifact(
        &self,
        caller: &Principal,
        id: &str,
        name: &str,
    ) -> Result<Download, ServiceError> {
        const MISSING: &str = "artifact not found";
        let id = task_id(id, MISSING)?;
        let Some((_, Some(record))) = self.engine.result(&caller.tenant, id).await? else {
            return Err(ServiceError::not_found(MISSING));
        };
        match self.artifacts.download(&record, name).await {
            Ok(Some(download)) => Ok(download),
            Ok(None) => Err(ServiceError::not_found(MISSING)),
            Err(_) => Err(unavailable(Code::ArtifactUnavailable, "artifact unavailable")),
        }
    }

    /// Finishes a task whose result carries content. `submit` arrives without its artifacts.
    pub(super) async fn submit_with_content(
        &self,
        caller: &Principal,
        submit: Submit,
        lease: LeaseRef,
        artifacts: Vec<NewArtifact>,
        at_once: Arc<Semaphore>,
    ) -> Result<ResultRecord, ServiceError> {
        let Some(task) = self.engine.task(&submit.tenant, submit.id).await? else {
            return Err(ServiceError::not_found("task not found"));
        };
        let running = task.place == Place::InProgress;
        let holder = lease.holder(&submit.worker);
        if !holder.is_current(task.fence) {
            return Err(Rejection::LeaseLost.into());
        }
        if running && !task.worker.as_deref().is_some_and(|owner| holder.is(owner)) {
            return Err(Rejection::NotOwner.into());
        }
        let prepared = self.artifacts.prepare(submit.id, artifacts).await;
        if !running {
            // May be a retry of the submit that finished the task, sent because its answer was lost.
            let Ok(prepared) = prepared else { return Err(Rejection::NotInProgress.into()) };
            let submit = Submit { artifacts: prepared.artifacts, ..submit };
            return repeated_or(&self.engine, &submit, &lease, Rejection::NotInProgress).await;
        }
        let prepared = prepared.map_err(|why| invalid(&why))?;
        let submit = Submit { artifacts: prepared.artifacts.clone(), ..submit };
        check(&submit.outcome, &submit.artifacts)?;
        let span = self.span("submit", caller, submit.id).unwrap_or_else(Span::none);
        let (artifacts, engine) = (Arc::clone(&self.artifacts), Arc::clone(&self.engine));
        let work =
            async move { store(&artifacts, &engine, submit, lease, prepared, &at_once).await };
        // Runs to the end even if the client disconnects: stopping halfway would leave unreferenced objects.
        let done = tokio::spawn(work.instrument(span)).await;
        done.unwrap_or_else(|_| Err(ServiceError::unexpected()))
    }
}

/// Uploads, then submits. Removes the uploaded objects if the submit is refused.
async fn store(
    artifacts: &Artifacts,
    engine: &Engine,
    submit: Submit,
    lease: LeaseRef,
    prepared: Prepared,
    at_once: &Semaphore,
) -> Result<ResultRecord, ServiceError> {
    let uploaded = artifacts.upload(&prepared, at_once).await;
    uploaded.map_err(|_| unavailable(Code::ArtifactUploadFailed, "artifact upload failed"))?;
    match engine.propose(lease.clone().command(LeaseAction::Submit(submit.clone()))).await {
        Ok(Reply::Submitted(record)) => Ok(*record),
        Ok(Reply::Rejected(rejection)) => {
            artifacts.discard(&prepared).await;
            // A concurrent duplicate won and stored the same result.
            repeated_or(engine, &submit, &lease, rejection).await
        }
        Ok(_) => Err(ServiceError::unexpected()),
        // The task may or may not have finished. If it did not, the sweep removes the uploads.
        Err(error @ (EngineError::Failed(_) | EngineError::Closed)) => Err(error.into()),
        Err(error) => {
            artifacts.discard(&prepared).await;
            Err(error.into())
        }
    }
}

/// Returns the stored result if this exact submit was already applied, else the refusal.
async fn repeated_or(
    engine: &Engine,
    submit: &Submit,
    lease: &LeaseRef,
    rejection: Rejection,
) -> Result<ResultRecord, ServiceError> {
    let shard = submit.id.shard(engine.shards());
    let same = |stored: &_, sent: &_| is_same(submit.id, stored, sent);
    let record = engine
        .read(shard, |reader| reader.repeated(submit, lease.holder(&submit.worker), same))
        .await?;
    match (record, rejection) {
        (Some(record), _) => Ok(record),
        (None, Rejection::NotFound) => Err(ServiceError::not_found("task not found")),
        (None, rejection) => Err(rejection.into()),
    }
}

/// The `ServiceError` for artifacts that fail validation.
pub(crate) fn invalid(why: &str) -> ServiceError {
    let refused = ServiceError::new(Code::InvalidArtifacts, "invalid artifacts");
    refused.field("artifacts").detail(why)
}

fn unavailable(code: Code, error: &'static str) -> ServiceError {
    ServiceError::new(code, error).retry_after(STORE_RETRY_SECONDS)
}
