//! Dead letters: look at them, give them a second life, or throw them away.

use codeq_core::command::{BulkWork, Command, Replay, ReplayTarget};
use codeq_core::names::check_command;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::view::Task;

use super::bulk::bulk_limit;
use super::queues::Purged;
use super::{Service, ServiceError, task_id};
use crate::auth::Principal;

/// What a replay of some dead letters came to.
pub struct Replayed {
    /// Tasks that are back in their queue.
    pub replayed: u64,
    /// Dead letters that are left in the queue.
    pub remaining: u64,
    /// Where to go on, if the filter has not seen all of them.
    pub next: Option<String>,
}

impl Service {
    /// Returns one dead letter to its queue.
    pub async fn replay(&self, caller: &Principal, id: &str) -> Result<Task, ServiceError> {
        let target = ReplayTarget::One(task_id(id, "not found")?);
        let (tenant, by) = (caller.tenant.clone(), caller.subject.clone());
        let replay = Command::Replay(Replay { tenant, target, by });
        match self.engine.propose(replay).await? {
            Reply::Replayed(task) => Ok(*task),
            Reply::Rejected(Rejection::NotFound) => Err(ServiceError::no_task("not found")),
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Err(ServiceError::unexpected()),
        }
    }

    /// Returns dead letters of a queue to it, a bounded number at a time, oldest first.
    pub async fn replay_queue(
        &self,
        caller: &Principal,
        command: &str,
        error_contains: Option<String>,
        limit: Option<u32>,
        after: Option<&str>,
    ) -> Result<Replayed, ServiceError> {
        check_command(command)?;
        let error_contains = error_contains.map(Into::into);
        let work = BulkWork::Replay { command: command.into(), error_contains };
        let did = self.bulk(caller, work, bulk_limit(limit)?, after).await?;
        let queue = self.engine.queue(&caller.tenant, command).await?;
        let remaining = queue.map_or(0, |queue| queue.counts.dead);
        let next = did.next.filter(|_| remaining > 0);
        Ok(Replayed { replayed: did.done, remaining, next })
    }

    /// Removes dead letters of a queue, a bounded number at a time.
    pub async fn purge_dead_letters(
        &self,
        caller: &Principal,
        command: &str,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Purged, ServiceError> {
        let work = BulkWork::PurgeDead { command: command.into() };
        self.purge_some(caller, command, work, limit, cursor, |counts| counts.dead).await
    }
}
