//! Workers seen lately.

use std::collections::HashMap;
use std::sync::Arc;

use codeq_core::id::ShardId;
use tokio::time::Instant;

use super::activity::WorkerSeen;
use super::permission::MayAdminister;
use super::scan::CALL_TIME;
use super::{Service, ServiceError};

/// A tenant's workers.
pub struct WorkerList {
    /// The latest claim first, then workers that hold tasks and are not listed otherwise: no claim of theirs within the
    /// last hour is known.
    pub items: Vec<WorkerView>,
    /// Number of workers, including those beyond the limit.
    pub total: usize,
    /// False if counting leases took too long, so that workers may hold more tasks than shown.
    pub exact: bool,
}

/// One worker.
pub struct WorkerView {
    /// What it asked for, as far as the server has seen.
    pub seen: WorkerSeen,
    /// Tasks whose lease it holds.
    pub held: u64,
}

impl Service {
    /// At most `limit` of the tenant's workers.
    pub async fn workers(
        &self,
        caller: MayAdminister<'_>,
        limit: usize,
    ) -> Result<WorkerList, ServiceError> {
        let (mut held, exact) = self.leases(&caller.tenant).await?;
        let seen = self.activity.workers(&caller.tenant, self.now().now);
        let view = |seen: WorkerSeen| {
            let held = held.remove(&seen.id).unwrap_or(0);
            WorkerView { seen, held }
        };
        let mut items: Vec<WorkerView> = seen.into_iter().map(view).collect();
        let mut silent: Vec<(Arc<str>, u64)> = held.into_iter().collect();
        silent.sort_unstable();
        let unseen = |(id, held)| WorkerView { seen: WorkerSeen::unseen(id), held };
        items.extend(silent.into_iter().map(unseen));
        let total = items.len();
        items.truncate(limit);
        Ok(WorkerList { items, total, exact })
    }

    /// The number of leases of each worker of a tenant, and whether all leases were counted.
    async fn leases(
        &self,
        tenant: &Arc<str>,
    ) -> Result<(HashMap<Arc<str>, u64>, bool), ServiceError> {
        let began = Instant::now();
        let mut held = HashMap::new();
        for shard in ShardId::all(self.engine.shards()) {
            let mut from = None;
            loop {
                let whose = Arc::clone(tenant);
                let look =
                    self.scan(tenant, shard, move |reader| reader.leases(&whose, from.as_ref()));
                let page = look.await?;
                page.workers.into_iter().for_each(|worker| *held.entry(worker).or_default() += 1);
                from = page.next;
                if from.is_none() {
                    break;
                }
                if began.elapsed() >= CALL_TIME {
                    return Ok((held, false));
                }
            }
        }
        Ok((held, true))
    }
}
