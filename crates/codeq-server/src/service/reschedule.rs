//! Reschedule: a producer changes the priority of a waiting task, or when it becomes claimable.

use codeq_core::command::{Command, Millis, Reschedule, RunWhen};
use codeq_core::limits::PRIORITY_MAX;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::view::Task;

use super::permission::MayProduce;
use super::{Code, Service, ServiceError, seconds, task_id};

/// What to change. Absent fields stay as they are.
#[derive(Debug, Default)]
pub struct Changes {
    /// Values outside 0–9 are clamped.
    pub priority: Option<i64>,
    /// Earliest time the task can be claimed. Takes precedence over `delay_seconds`.
    pub run_at: Option<Millis>,
    /// Seconds before the task can be claimed, from now; 0 makes it claimable at once.
    pub delay_seconds: Option<i64>,
}

impl Service {
    /// Changes a task that is pending or delayed, and returns it.
    pub async fn reschedule(
        &self,
        caller: MayProduce<'_>,
        id: &str,
        changes: Changes,
    ) -> Result<Task, ServiceError> {
        let delay = match changes.delay_seconds.map(u64::try_from) {
            None => None,
            Some(Ok(delay)) => Some(seconds(delay)),
            Some(Err(_)) => {
                let text = "invalid 'delaySeconds' (must be >= 0)";
                return Err(ServiceError::new(Code::InvalidDelay, text).field("delaySeconds"));
            }
        };
        let when = changes.run_at.map(RunWhen::At).or(delay.map(RunWhen::After));
        let priority = changes.priority.map(|wanted| wanted.clamp(0, PRIORITY_MAX.into()) as i32);
        if when.is_none() && priority.is_none() {
            let detail = "nothing to change: send priority, delaySeconds or runAt";
            return Err(ServiceError::invalid_body().detail(detail));
        }
        let (tenant, by) = (caller.tenant.clone(), caller.subject.clone());
        let id = task_id(id, "not found")?;
        let command = Command::Reschedule(Reschedule { tenant, id, priority, when, by });
        match self.propose(command).await? {
            Reply::Rescheduled(task) => Ok(*task),
            Reply::Rejected(Rejection::NotFound) => Err(ServiceError::no_task("not found")),
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Err(ServiceError::unexpected()),
        }
    }
}
