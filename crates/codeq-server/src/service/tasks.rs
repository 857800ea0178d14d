//! Reads of tasks: one task, its result, its history, and lists.

use std::time::Duration;

use codeq_auth::Principal;
use codeq_core::history::History;
use codeq_core::read::ListQuery;
use codeq_core::view::{ResultRecord, Task};
use codeq_engine::read::{ListPage, Listing};
use tokio::time::Instant;

use super::cursor;
use super::permission::MayAdminister;
use super::scan::CALL_TIME;
use super::{Service, ServiceError, task_id};

/// Longest a result request may wait, in seconds.
pub const RESULT_WAIT_MAX: u64 = 60;
/// Default page size of lists.
pub const PAGE_DEFAULT: usize = 50;

/// One page of a task list.
pub struct TaskPage {
    /// The tasks, newest first.
    pub items: Vec<Task>,
    /// Cursor for the next page; `None` on the last one.
    pub next: Option<String>,
}

impl Service {
    /// Returns a task of the caller's tenant.
    pub async fn task(&self, caller: &Principal, id: &str) -> Result<Task, ServiceError> {
        let task = self.engine.task(&caller.tenant, task_id(id, "not found")?).await?;
        task.ok_or_else(|| ServiceError::no_task("not found"))
    }

    /// Returns a task's transitions.
    pub async fn history(&self, caller: &Principal, id: &str) -> Result<History, ServiceError> {
        let history = self.engine.history(&caller.tenant, task_id(id, "not found")?).await?;
        history.ok_or_else(|| ServiceError::no_task("not found"))
    }

    /// Returns a finished task with its result, waiting up to `wait_seconds` for it.
    pub async fn result(
        &self,
        caller: &Principal,
        id: &str,
        wait_seconds: u64,
    ) -> Result<(Task, ResultRecord), ServiceError> {
        let id = task_id(id, "task not found")?;
        let look = || async {
            match self.engine.result(&caller.tenant, id).await? {
                None => Err(ServiceError::no_task("task not found")),
                Some((task, result)) => Ok(result.map(|result| (task, result))),
            }
        };
        let missing = || {
            let detail =
                "the task is not finished: use ?waitSeconds= to wait for it, up to 60 seconds";
            ServiceError::not_found("result not found").detail(detail)
        };
        let wait = Duration::from_secs(wait_seconds.min(RESULT_WAIT_MAX));
        // Most results are ready on request and need no wait.
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if wait.is_zero() {
            return Err(missing());
        }
        let mut finished = std::pin::pin!(self.engine.finished(&caller.tenant, id));
        // Subscribe before looking, so that a task finishing in between is not missed.
        tokio::select! {
            biased;
            woken = &mut finished => woken?,
            found = look() => match found? {
                Some(found) => return Ok(found),
                None => tokio::select! {
                    woken = &mut finished => woken?,
                    () = tokio::time::sleep(wait) => {}
                    () = self.shutdown_begins() => {}
                },
            },
        }
        look().await?.ok_or_else(missing)
    }

    /// Lists the caller's tasks, newest first. Listing dead letters requires an admin.
    pub async fn list(
        &self,
        caller: &Principal,
        query: ListQuery,
        after: Option<&str>,
    ) -> Result<TaskPage, ServiceError> {
        if query.dead_only {
            MayAdminister::of(caller)?;
        }
        let query = ListQuery { tenant: caller.tenant.clone(), ..query };
        let below = match after {
            Some(text) => cursor::decode(text, &query, self.engine.shards())?,
            None => Vec::new(),
        };
        let began = Instant::now();
        let mut listing = Listing::new(query.clone(), &below, self.engine.shards());
        while let Some((shard, part)) = listing.next_slice() {
            let slice = self.scan(&caller.tenant, shard, move |reader| reader.list(&part)).await?;
            listing.add(shard, slice);
            if began.elapsed() >= CALL_TIME && listing.has_looked_everywhere() {
                break;
            }
        }
        let ListPage { items, next } = listing.page();
        let next = (!next.is_empty()).then(|| cursor::encode(&next, &query));
        Ok(TaskPage { items, next })
    }
}
