//! Reads many rows for one tenant without blocking the other tenants.
//!
//! A scan runs in slices. Each slice holds the shard for well under a millisecond and runs on a
//! blocking thread instead of the async runtime. A tenant runs one slice at a time, however many
//! calls it makes, and only a few slices run across all tenants.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use codeq_core::id::ShardId;
use codeq_core::kv::KvError;
use codeq_engine::read::ShardReader;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Service, ServiceError};

/// How long one call scans before it answers with what it found and a cursor.
pub const CALL_TIME: Duration = Duration::from_millis(250);
/// Concurrent slices. Each keeps a core busy.
const SLICES_MAX: usize = 2;

/// Limits concurrent slices, per tenant and overall.
pub struct Scans {
    slices: Arc<Semaphore>,
    /// Holds only tenants with a call in progress.
    tenants: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

/// A permit for one slice.
pub struct SlicePermit {
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Scans {
    fn default() -> Scans {
        let slices = Arc::new(Semaphore::new(SLICES_MAX));
        Scans { slices, tenants: Mutex::default() }
    }
}

impl Scans {
    /// Waits for a permit for the tenant.
    pub async fn permit(&self, tenant: &Arc<str>) -> Result<SlicePermit, ServiceError> {
        let mine = {
            let mut tenants = self.tenants.lock();
            // A semaphore held by this map alone belongs to a tenant with no call in progress.
            if !tenants.contains_key(tenant) {
                tenants.retain(|_, known| Arc::strong_count(known) > 1);
            }
            let one = || Arc::new(Semaphore::new(1));
            Arc::clone(tenants.entry(Arc::clone(tenant)).or_insert_with(one))
        };
        // The semaphores are never closed.
        let closed = |_| ServiceError::unexpected();
        let of_tenant = mine.acquire_owned().await.map_err(closed)?;
        let of_all = Arc::clone(&self.slices).acquire_owned().await.map_err(closed)?;
        Ok(SlicePermit { _of_tenant: of_tenant, _of_all: of_all })
    }

    /// Does work for the tenant once it has a permit, and keeps the permit until the work is done: if the caller
    /// disconnects, the next slice still waits for this one.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: &Arc<str>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let permit = self.permit(tenant).await?;
        let running = tokio::spawn(async move {
            let done = work.await;
            drop(permit);
            done
        });
        running.await.map_err(|_| ServiceError::unexpected())
    }

    /// Same as [`Scans::run`], for work that blocks.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        tenant: &Arc<str>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ServiceError> {
        let permit = self.permit(tenant).await?;
        let running = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(permit);
            done
        });
        running.await.map_err(|_| ServiceError::unexpected())
    }
}

impl Service {
    /// Scans a slice of a shard's rows for a tenant, once it has a permit.
    pub(super) async fn scan<T: Send + 'static>(
        &self,
        tenant: &Arc<str>,
        shard: ShardId,
        look: impl FnOnce(&ShardReader<'_>) -> Result<T, KvError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let engine = Arc::clone(&self.engine);
        engine.catch_up().await?;
        let applied =
            self.scans.run_blocking(tenant, move || engine.read_applied(shard, look)).await?;
        Ok(self.engine.once_durable(shard, applied?).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_slice_of_a_tenant_at_a_time() {
        let scans = Scans::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let first = scans.permit(&a).await.unwrap();
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(scans.permit(&a))).collect();
        for permit in &mut waiting {
            assert!(futures_util::poll!(permit.as_mut()).is_pending());
        }
        let other = scans.permit(&b).await.expect("another tenant does not wait");
        drop((first, other));
        assert!(futures_util::poll!(waiting[0].as_mut()).is_ready());
        drop(waiting);
        drop(scans.permit(&"c".into()).await.unwrap());
        drop(scans.permit(&"d".into()).await.unwrap());
        assert_eq!(scans.tenants.lock().len(), 1, "idle tenants are dropped");
    }

    #[tokio::test]
    async fn a_slice_outlives_its_caller() {
        let (scans, tenant) = (Scans::default(), "a".into());
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let mut caller = Box::pin(scans.run(&tenant, async move { drop(ended.await) }));
        assert!(futures_util::poll!(caller.as_mut()).is_pending());
        drop(caller);
        let mut next = Box::pin(scans.permit(&tenant));
        tokio::task::yield_now().await;
        assert!(futures_util::poll!(next.as_mut()).is_pending(), "the slice goes on");
        end.send(()).unwrap();
        next.await.unwrap();
    }
}
