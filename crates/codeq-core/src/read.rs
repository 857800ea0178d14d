//! Reads: tasks, results, histories, lists and counters. Nothing here changes state.

use crate::command::Artifact;
use crate::history::History;
use crate::id::TaskId;
use crate::keys::{self, Seq};
use crate::kv::{KvError, KvRead};
use crate::moment::Millis;
use crate::rows::{QueueRow, TaskRow};
use crate::state::State;
use crate::view::{ResultRecord, Task};

mod callbacks;
mod leases;
mod list;
mod queues;
mod records;
mod standing;

pub use callbacks::{CallbackPage, DueCallback, PendingCallback};
pub use leases::LeasePage;
pub use list::{ListQuery, Page};
pub use queues::QueueStats;
pub use standing::{Ahead, Standing};

/// Reads one shard, as of the latest applied command.
pub struct Reader<'a, K: KvRead + ?Sized> {
    /// The shard's state.
    pub state: &'a State,
    /// The shard's rows.
    pub kv: &'a K,
}

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// The task with this id, if the tenant owns it.
    pub fn task(&self, tenant: &str, id: TaskId) -> Result<Option<Task>, KvError> {
        let Some((row, queue)) = self.find(tenant, id)? else {
            return Ok(None);
        };
        Task::from_rows(self.kv, id.seq(), &row, queue, self.state.moment()).map(Some)
    }

    /// When the task with this number was created.
    pub fn created_at(&self, seq: Seq) -> Result<Option<Millis>, KvError> {
        Ok(TaskRow::load(self.kv, keys::task(seq))?.map(|row| row.created_at))
    }

    /// A task, with its result once it is finished.
    pub fn result(
        &self,
        tenant: &str,
        id: TaskId,
    ) -> Result<Option<(Task, Option<ResultRecord>)>, KvError> {
        let Some((row, queue)) = self.find(tenant, id)? else {
            return Ok(None);
        };
        let task = Task::from_rows(self.kv, id.seq(), &row, queue, self.state.moment())?;
        Ok(Some((task, ResultRecord::from_row(id.seq(), &row))))
    }

    /// The artifacts that a task's result names, for any tenant: used to clean up storage. `None` if the task does not
    /// exist or is not finished.
    pub fn artifacts(&self, id: TaskId) -> Result<Option<Vec<Artifact>>, KvError> {
        let row = TaskRow::load(self.kv, keys::task(id.seq()))?;
        let finish = row.filter(|row| row.salt == id.salt()).and_then(|row| row.finish);
        Ok(finish.map(|finish| finish.artifacts))
    }

    /// A task's history, if the tenant owns the task.
    pub fn history(&self, tenant: &str, id: TaskId) -> Result<Option<History>, KvError> {
        Ok(self.find(tenant, id)?.map(|(row, _)| row.history))
    }

    pub(crate) fn find(
        &self,
        tenant: &str,
        id: TaskId,
    ) -> Result<Option<(TaskRow, &QueueRow)>, KvError> {
        let Some(row) = TaskRow::load(self.kv, keys::task(id.seq()))? else {
            return Ok(None);
        };
        let queue = self.state.queue_row(row.queue);
        let ours = |queue: &&QueueRow| *queue.tenant == *tenant && row.salt == id.salt();
        Ok(queue.filter(ours).map(|queue| (row, queue)))
    }
}
