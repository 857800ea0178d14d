//! Dead letters and other failed or cancelled tasks: replay them or remove them.

use codeq_core::command::{BulkWork, Command, Replay, ReplayFrom, ReplayTarget};
use codeq_core::place::Place;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::rows::Counts;
use codeq_core::view::Task;

use super::bulk::{BulkOptions, QueueBulk};
use super::permission::MayAdminister;
use super::{Service, ServiceError, task_id};

impl Service {
    /// Returns one dead-lettered, failed or cancelled task to its queue.
    pub async fn replay(&self, caller: MayAdminister<'_>, id: &str) -> Result<Task, ServiceError> {
        let id = task_id(id, "not found")?;
        if self.has_quota()
            && let Some(task) = self.engine.task(&caller.tenant, id).await?
            && matches!(task.place, Place::Dead | Place::Failed)
        {
            self.check_pending(&caller, 1, task.payload.len())?;
        }
        let target = ReplayTarget::One(id);
        let (tenant, by) = (caller.tenant.clone(), caller.subject.clone());
        let replay = Command::Replay(Replay { tenant, target, by });
        match self.propose(replay).await? {
            Reply::Replayed(task) => Ok(*task),
            Reply::Rejected(Rejection::NotFound) => Err(ServiceError::no_task("not found")),
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Err(ServiceError::unexpected()),
        }
    }

    /// Returns dead-lettered, failed or cancelled tasks to their queue, a bounded number at a time, oldest first.
    pub async fn replay_queue(
        &self,
        caller: MayAdminister<'_>,
        command: &str,
        from: ReplayFrom,
        options: &BulkOptions,
    ) -> Result<QueueBulk, ServiceError> {
        let work = BulkWork::Replay { command: command.into(), from };
        let left = |counts: &Counts| match from {
            ReplayFrom::DeadLetters => counts.dead,
            ReplayFrom::Failed => counts.failed,
            ReplayFrom::Cancelled => counts.cancelled,
        };
        self.bulk_in_queue(caller, command, work, options, left).await
    }

    /// Removes dead letters of a queue, a bounded number at a time.
    pub async fn purge_dead_letters(
        &self,
        caller: MayAdminister<'_>,
        command: &str,
        options: &BulkOptions,
    ) -> Result<QueueBulk, ServiceError> {
        let work = BulkWork::PurgeDead { command: command.into() };
        self.bulk_in_queue(caller, command, work, options, |counts| counts.dead).await
    }
}
