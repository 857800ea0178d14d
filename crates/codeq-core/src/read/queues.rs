//! Statistics of queues.

use std::ops::Bound;
use std::sync::Arc;

use crate::keys::QueueId;
use crate::kv::{KvError, KvRead};
use crate::limits::QUEUES_SLICE_MAX;
use crate::moment::Millis;
use crate::read::Reader;
use crate::rows::Counts;
use crate::topic::Topic;

/// Statistics of a queue.
#[derive(Debug, Clone)]
pub struct QueueStats {
    /// The tenant that owns it.
    pub tenant: Arc<str>,
    /// The queue's name.
    pub name: Arc<str>,
    /// Number of tasks in each place.
    pub counts: Counts,
    /// Whether claims are paused.
    pub paused: bool,
    /// The queue's policy, if an operator set one.
    pub topic: Option<Topic>,
    /// Creation time of the oldest task among the first tasks of each priority.
    pub oldest_ready_created_at: Option<Millis>,
}

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// Statistics of one queue.
    pub fn queue(&self, tenant: &str, command: &str) -> Result<Option<QueueStats>, KvError> {
        let Some(id) = self.state.queue_id(tenant, command) else {
            return Ok(None);
        };
        self.stats(id)
    }

    /// Statistics of a tenant's queues after the name `after`, ordered by name. [`QUEUES_SLICE_MAX`] results mean that
    /// there may be more.
    pub fn queues(&self, tenant: &str, after: Option<&str>) -> Result<Vec<QueueStats>, KvError> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let queues = self.state.queues_from(tenant, start).take(QUEUES_SLICE_MAX);
        queues.filter_map(|(_, id)| self.stats(id).transpose()).collect()
    }

    pub(super) fn stats(&self, id: QueueId) -> Result<Option<QueueStats>, KvError> {
        let Some(queue) = self.state.queues.get(&id) else {
            return Ok(None);
        };
        let mut oldest_ready_created_at = None;
        for seq in queue.fronts() {
            oldest_ready_created_at =
                oldest_ready_created_at.into_iter().chain(self.created_at(seq)?).min();
        }
        Ok(Some(QueueStats {
            tenant: Arc::clone(&queue.row.tenant),
            name: Arc::clone(&queue.row.name),
            counts: queue.row.counts,
            paused: queue.row.paused,
            topic: queue.row.topic.clone(),
            oldest_ready_created_at,
        }))
    }
}
