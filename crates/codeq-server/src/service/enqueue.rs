//! Enqueue: a producer makes tasks.

use codeq_core::command::{Enqueue, NewTask};
use codeq_core::reply::{Enqueued, Reply};
use codeq_core::view::Task;
use url::Url;

use super::trace::span_of;
use super::{Kind, Service, ServiceError, seed};
use crate::auth::Principal;

/// What became of one task.
pub struct Made {
    /// The task.
    pub task: Box<Task>,
    /// Its key was used before: this is the task that was made then.
    pub repeated: bool,
}

impl Service {
    /// Makes one task.
    pub async fn enqueue(&self, caller: &Principal, task: NewTask) -> Result<Made, ServiceError> {
        let mut made = self.enqueue_all(caller, vec![task], false).await?;
        made.pop().ok_or_else(ServiceError::unexpected)?
    }

    /// Makes up to the configured number of tasks; each stands for itself unless the batch is atomic.
    pub async fn enqueue_batch(
        &self,
        caller: &Principal,
        tasks: Vec<NewTask>,
        atomic: bool,
    ) -> Result<Vec<Result<Made, ServiceError>>, ServiceError> {
        self.check_batch(tasks.len())?;
        self.enqueue_all(caller, tasks, atomic).await
    }

    /// Whether a batch of this length is allowed.
    pub fn check_batch(&self, len: usize) -> Result<(), ServiceError> {
        let max = self.defaults.batch_max;
        if len == 0 {
            return Err(ServiceError::invalid_body().detail("the batch has no items"));
        }
        if len > max { Err(ServiceError::batch_too_long(max)) } else { Ok(()) }
    }

    async fn enqueue_all(
        &self,
        caller: &Principal,
        tasks: Vec<NewTask>,
        atomic: bool,
    ) -> Result<Vec<Result<Made, ServiceError>>, ServiceError> {
        self.check_quota(caller, &tasks).await?;
        let enqueue = Enqueue { tenant: caller.tenant.clone(), tasks, atomic, seed: seed() };
        match self.engine.enqueue(enqueue).await? {
            Reply::Enqueued(outcomes) => Ok(outcomes.into_iter().map(made).collect()),
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Err(ServiceError::unexpected()),
        }
    }

    /// Whether the tenant may hold so much more. Requests that run side by side may together go a little
    /// beyond the limit: it protects the disk, it is not an account.
    async fn check_quota(&self, caller: &Principal, new: &[NewTask]) -> Result<(), ServiceError> {
        let limits = &self.defaults.tenant;
        if limits.max_pending_tasks.is_none() && limits.max_pending_bytes.is_none() {
            return Ok(());
        }
        let held = self.engine.held(&caller.tenant).await?;
        let bytes: usize = new.iter().map(|task| task.payload.len()).sum();
        let over = |max: Option<u64>, held: u64, more: usize| {
            max.is_some_and(|max| held.saturating_add(more as u64) > max)
        };
        if over(limits.max_pending_tasks, held.tasks, new.len()) {
            return Err(quota("the tenant holds as many unfinished tasks as it may"));
        }
        if over(limits.max_pending_bytes, held.bytes, bytes) {
            return Err(quota("the tenant's unfinished tasks hold as many bytes as they may"));
        }
        Ok(())
    }
}

fn made(outcome: Enqueued) -> Result<Made, ServiceError> {
    match outcome {
        Enqueued::Created(task) => {
            drop(span_of("enqueue", &task));
            Ok(Made { task, repeated: false })
        }
        Enqueued::Repeated(task) => Ok(Made { task, repeated: true }),
        Enqueued::Rejected(rejection) => Err(rejection.into()),
    }
}

fn quota(text: &'static str) -> ServiceError {
    let refused = ServiceError::new(Kind::TooMany, "quota_exceeded", text);
    // Finished tasks make room: soon enough to ask again in a few seconds.
    ServiceError { retry_after: Some(5), scope: Some("tenant"), ..refused }
}

/// Whether a text can be the address of a result callback: http or https, with a host. Whether the server
/// may go there is decided when it does.
pub fn is_webhook(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}
