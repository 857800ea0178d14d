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
            // Perhaps a concurrent duplicate won and stored the same result.
            repeated_or(engine, &submit, &lease, rejection).await
        }
        Ok(_) => Err(ServiceError::unexpected()),
        // The task may or may not have finished. If it did not, the sweep removes the uploads.
        Err(error @ (EngineError::Failed(_) | EngineError::Closed | EngineError::Unknown)) => {
            Err(error.into())
        }
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use codeq_core::command::{Millis, Outcome};
    use codeq_core::id::TaskId;
    use codeq_core::keys::Seq;
    use codeq_core::moment::Moment;
    use codeq_core::place::Status;
    use codeq_disk::{RealDisk, SharedDisk};
    use codeq_engine::Options;
    use codeq_engine::driver::{CatchingUp, Driver};
    use codeq_engine::recover::OpenedDir;
    use codeq_engine::replica::Replica;
    use tokio::sync::Notify;

    use super::*;
    use crate::artifacts::content::Content;
    use crate::artifacts::upload::Source;
    use crate::config::{Config, Durability};
    use crate::observe::Metrics;

    const NOW: Millis = 1_000;

    struct Idle;

    impl Driver for Idle {
        fn now(&self) -> Moment {
            Moment::agreed(NOW)
        }

        fn catch_up(&self) -> Option<CatchingUp<'_>> {
            None
        }

        fn shutdown(&self) {}
    }

    /// An engine that answers every call with this error.
    fn refusing(dir: &Path, error: EngineError) -> Engine {
        let disk: SharedDisk = Arc::new(RealDisk);
        let options = Options { shards: Some(1), ..Options::default() };
        let opened = OpenedDir::open(&disk, dir, &options, 1).unwrap();
        let arrived = Arc::new(Notify::new());
        let mut replica = Replica::new(opened.shards, 0, &options, &arrived);
        let engine = replica.engine(Box::new(Idle), (disk, options, 1), |_| ()).unwrap();
        tokio::spawn(async move {
            loop {
                arrived.notified().await;
                replica.refuse(&error);
            }
        });
        engine
    }

    /// Whether the content of a submit is still stored after the engine answered with this error.
    async fn is_kept(error: EngineError) -> bool {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        let engine = refusing(&data_dir, error);
        let config = Config { data_dir, durability: Durability::Os, ..Config::default() };
        let artifacts = Artifacts::open(&config, "http://h".to_owned(), Metrics::new()).unwrap();
        let (artifacts, id) = (Arc::new(artifacts), TaskId::new(Seq(1), 1));
        let content = Content::new(Bytes::from_static(b"aGVsbG8="));
        let source = Source::Content { content, content_type: None };
        let sent = vec![NewArtifact { name: "a".into(), source }];
        let prepared = artifacts.prepare(id, sent).await.unwrap();
        let submit = Submit {
            tenant: "t".into(),
            id,
            worker: "w".into(),
            outcome: Outcome::Completed(Bytes::from_static(b"{}")),
            artifacts: prepared.artifacts.clone(),
        };
        let record = ResultRecord {
            id,
            status: Status::Completed,
            result: None,
            error: None,
            artifacts: prepared.artifacts.clone(),
            completed_at: NOW,
        };
        let (lease, one) = (LeaseRef::default(), Semaphore::new(1));
        let done = store(&artifacts, &engine, submit, lease, prepared, &one).await;
        assert!(done.is_err(), "{done:?}");
        artifacts.download(&record, "a").await.unwrap().is_some()
    }

    #[tokio::test]
    async fn content_is_kept_if_the_task_may_have_finished() {
        for error in [EngineError::Failed("disk".into()), EngineError::Closed, EngineError::Unknown]
        {
            assert!(is_kept(error.clone()).await, "{error}");
        }
        for error in [EngineError::Overloaded, EngineError::DiskFull, EngineError::NoLeader] {
            assert!(!is_kept(error.clone()).await, "{error}");
        }
    }
}
