//! Dead letters: look at them, give them a second life, or throw them away.

use codeq_core::command::{PurgeTarget, Replay, ReplayTarget};
use codeq_core::names::check_command;
use codeq_core::read::ListQuery;
use codeq_core::reply::{Bulk, Rejection, Reply};
use codeq_core::view::Task;

use super::cursor;
use super::queues::bulk_limit;
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
        match self.engine.replay(Replay { tenant, target, by }).await? {
            Reply::Replayed(task) => Ok(*task),
            Reply::Rejected(Rejection::NotFound) => Err(ServiceError::not_found("not found")),
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
        let limit = bulk_limit(limit)?;
        // The cursor is bound to what this call is about, as that of a list is.
        let query = ListQuery {
            tenant: caller.tenant.clone(),
            command: Some(command.into()),
            dead_only: true,
            error_contains: error_contains.clone().map(Into::into),
            ..ListQuery::default()
        };
        let after = match after {
            Some(text) => cursor::decode(text, &query, self.engine.shards())?,
            None => Vec::new(),
        };
        let target = ReplayTarget::Queue {
            command: command.into(),
            error_contains: error_contains.map(Into::into),
            after: 0,
            limit,
        };
        let replay = Replay { tenant: caller.tenant.clone(), target, by: caller.subject.clone() };
        let (sum, reached) = self.engine.replay_from(replay, &after).await?;
        let moved = reached != after && reached.iter().any(|at| *at > 0);
        let next = (sum.remaining > 0 && moved).then(|| cursor::encode(&reached, &query));
        Ok(Replayed { replayed: sum.done, remaining: sum.remaining, next })
    }

    /// Removes dead letters of a queue, a bounded number at a time.
    pub async fn purge_dead_letters(
        &self,
        caller: &Principal,
        command: &str,
        limit: Option<u32>,
    ) -> Result<Bulk, ServiceError> {
        self.purge_some(caller, command, PurgeTarget::Dead, limit).await
    }
}
