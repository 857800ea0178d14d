//! Everything that webhooks ask of the engine.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::{self, Command, DeleteRecord, Millis};
use codeq_core::keys::QueueId;
use codeq_core::read::{DueCallback, PendingCallback};
use codeq_core::record::{Record, RecordKind};
use codeq_engine::records::RecordCursor;
use codeq_engine::{Engine, EngineError};

/// The engine, as this crate sees it.
#[derive(Clone)]
pub struct EngineHandle(Arc<Engine>);

impl EngineHandle {
    /// Wraps a running engine.
    pub fn new(engine: Arc<Engine>) -> EngineHandle {
        EngineHandle(engine)
    }

    /// Engine time.
    pub(crate) fn now(&self) -> Millis {
        self.0.now().now
    }

    /// Wall time.
    pub(crate) fn wall(&self) -> Millis {
        self.0.wall()
    }

    /// How long until a moment of engine time.
    pub(crate) fn until(&self, at: Millis) -> Duration {
        self.0.until(at)
    }

    pub(crate) fn shards(&self) -> u16 {
        self.0.shards()
    }

    /// At most `limit` callbacks of a shard, in the order in which they are due.
    pub(crate) async fn callbacks_due(
        &self,
        shard: u16,
        from: (Millis, u64),
        limit: usize,
    ) -> Result<Vec<DueCallback>, EngineError> {
        self.0.callbacks_due(shard, from, limit).await
    }

    /// The callback of a task, if it still has to be delivered.
    pub(crate) async fn callback(&self, shard: u16, seq: u64) -> Option<PendingCallback> {
        let callback = self.0.callback(shard, seq).await.ok().flatten()?;
        callback.outbox.next_at.is_some().then_some(callback)
    }

    /// Records how a delivery ended. A callback that has moved on meanwhile stays as it is.
    pub(crate) async fn record_delivery(
        &self,
        delivery: command::Callback,
    ) -> Result<(), EngineError> {
        self.0.propose(Command::Callback(delivery)).await.map(drop)
    }

    pub(crate) async fn secrets(
        &self,
        tenant: &Arc<str>,
        name: &str,
    ) -> Result<Option<Record>, EngineError> {
        self.0.record(tenant, RecordKind::WebhookSecret, name).await
    }

    pub(crate) async fn subscription(
        &self,
        tenant: &Arc<str>,
        id: &str,
    ) -> Result<Option<Record>, EngineError> {
        self.0.record(tenant, RecordKind::Subscription, id).await
    }

    /// Calls `each` with the subscriptions of all tenants.
    pub(crate) async fn for_each_subscription(
        &self,
        mut each: impl FnMut(&Record),
    ) -> Result<(), EngineError> {
        let mut next = Some(RecordCursor::default());
        while let Some(from) = next {
            let page = self.0.all_records(RecordKind::Subscription, from).await?;
            page.records.iter().for_each(&mut each);
            next = page.next;
        }
        Ok(())
    }

    pub(crate) async fn delete_subscription(
        &self,
        tenant: Arc<str>,
        id: Arc<str>,
    ) -> Result<(), EngineError> {
        let kind = RecordKind::Subscription;
        let delete = DeleteRecord { tenant, kind, name: id, expected: None };
        self.0.delete_record(delete).await.map(drop)
    }

    /// How many tasks of a queue can be claimed now.
    pub(crate) fn claimable(&self, tenant: &str, command: &str) -> u64 {
        self.0.claimable(tenant, command)
    }

    /// The queues of a tenant that have tasks to claim.
    pub(crate) async fn ready_queues(&self, tenant: &str) -> Vec<Arc<str>> {
        let queues = self.0.queues(tenant).await.unwrap_or_default();
        let ready = queues.into_iter().filter(|queue| queue.counts.ready() > 0);
        ready.map(|queue| queue.name).collect()
    }

    /// The tenant and the name of a queue.
    pub(crate) fn queue_name(&self, shard: u16, queue: QueueId) -> Option<(Arc<str>, Arc<str>)> {
        let name = self.0.peek(shard, |state| {
            let row = state.queue_row(queue)?;
            Some((Arc::clone(&row.tenant), Arc::clone(&row.name)))
        });
        name.flatten()
    }
}
