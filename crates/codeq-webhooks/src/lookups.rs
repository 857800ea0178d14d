//! Limits DNS lookups: one at a time for each name, and never all slots for one tenant.
//!
//! Tenants choose host names, and with them name servers that may never answer. A lookup that hangs uses up a slot of
//! its own tenant's share. A call that gets no slot within a moment is tried again later; that is not a failure.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::dns::Resolve;

/// A lookup that takes longer fails.
const TIME_MAX: Duration = Duration::from_secs(4);
/// How long a call waits for a slot.
const SLOT_TIME_MAX: Duration = Duration::from_secs(2);

/// Why there are no addresses.
#[derive(Debug, Clone)]
pub(crate) enum LookupError {
    /// There was no slot. The name was not looked up.
    Busy,
    /// The lookup failed, or took too long.
    Failed(Arc<io::Error>),
}

type Found = Result<Arc<[IpAddr]>, Arc<io::Error>>;

/// Looks up host names. Clones share the slots.
#[derive(Clone)]
pub(crate) struct Lookups(Arc<Inner>);

struct Inner {
    resolve: Arc<dyn Resolve>,
    slots: usize,
    state: Mutex<State>,
    /// Wakes those who wait for a slot.
    freed: Notify,
}

#[derive(Default)]
struct State {
    /// Running lookups by host name, each with the channel for its result.
    running: HashMap<Arc<str>, watch::Receiver<Option<Found>>>,
    /// Number of running lookups that each tenant started.
    tenants: HashMap<Arc<str>, usize>,
}

impl Lookups {
    pub fn new(resolve: Arc<dyn Resolve>, slots: usize) -> Lookups {
        let (state, freed) = (Mutex::default(), Notify::new());
        Lookups(Arc::new(Inner { resolve, slots, state, freed }))
    }

    /// The addresses of a host name, for a tenant.
    pub async fn find(
        &self,
        tenant: &Arc<str>,
        name: &str,
        until: Instant,
    ) -> Result<Arc<[IpAddr]>, LookupError> {
        let slot_until = until.min(Instant::now() + SLOT_TIME_MAX);
        let mut found = loop {
            // Registered before checking, so that a slot which becomes free in between is not missed.
            let freed = self.0.freed.notified();
            if let Some(found) = self.begin(tenant, name) {
                break found;
            }
            timeout_at(slot_until, freed).await.map_err(|_| LookupError::Busy)?;
        };
        let gone = |kind: io::ErrorKind| LookupError::Failed(Arc::new(kind.into()));
        match timeout_at(until, found.wait_for(Option::is_some)).await {
            Ok(Ok(found)) => match &*found {
                Some(found) => found.clone().map_err(LookupError::Failed),
                None => Err(gone(io::ErrorKind::NotFound)),
            },
            Ok(Err(_)) => Err(gone(io::ErrorKind::Interrupted)),
            Err(_) => Err(gone(io::ErrorKind::TimedOut)),
        }
    }

    /// Joins the lookup of a name that is running, or starts one. None if the tenant has used up its share of slots.
    fn begin(&self, tenant: &Arc<str>, name: &str) -> Option<watch::Receiver<Option<Found>>> {
        let mut state = self.0.state.lock();
        if let Some(running) = state.running.get(name) {
            return Some(running.clone());
        }
        let mine = state.tenants.get(tenant).copied().unwrap_or(0);
        let others = state.running.len().saturating_sub(mine);
        // Half of what the others leave, rounded up. One tenant leaves half of the slots to the others; it takes several
        // that use up their shares (seven, with 64 slots) to leave none.
        let share = self.0.slots.saturating_sub(others).div_ceil(2);
        if mine >= share {
            return None;
        }
        let name: Arc<str> = name.into();
        let (result, found) = watch::channel(None);
        state.running.insert(Arc::clone(&name), found.clone());
        *state.tenants.entry(Arc::clone(tenant)).or_default() += 1;
        drop(state);
        let slot = Slot { inner: Arc::clone(&self.0), tenant: Arc::clone(tenant), name };
        // In a task of its own, because several calls may wait for it, and some give up earlier.
        tokio::spawn(async move {
            let looked = timeout(TIME_MAX, slot.inner.resolve.resolve(&slot.name)).await;
            let looked = looked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            result.send_replace(Some(looked.map(Arc::from).map_err(Arc::new)));
        });
        Some(found)
    }
}

/// The slot of a running lookup.
struct Slot {
    inner: Arc<Inner>,
    tenant: Arc<str>,
    name: Arc<str>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        state.running.remove(&self.name);
        if let Some(mine) = state.tenants.get_mut(&self.tenant) {
            *mine = mine.saturating_sub(1);
            if *mine == 0 {
                state.tenants.remove(&self.tenant);
            }
        }
        drop(state);
        self.inner.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::BoxFuture;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Answers at once, except for names that begin with `silent`.
    #[derive(Default)]
    struct Names(AtomicUsize);

    impl Resolve for Names {
        fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            let silent = host.starts_with("silent");
            Box::pin(async move {
                if silent {
                    std::future::pending::<()>().await;
                }
                Ok(vec![HERE])
            })
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_whose_names_are_silent_leaves_slots_to_others() {
        let lookups = Lookups::new(Arc::new(Names::default()), 8);
        let hostile: Vec<Arc<str>> = ["a", "b", "c"].map(Arc::from).into();
        let mut waiting = tokio::task::JoinSet::new();
        for tenant in &hostile {
            for number in 0..100 {
                let (lookups, tenant) = (lookups.clone(), Arc::clone(tenant));
                let name = format!("silent{number}.{tenant}.test");
                waiting.spawn(async move { lookups.find(&tenant, &name, soon()).await });
            }
        }
        tokio::task::yield_now().await;
        let started = Instant::now();
        let found = lookups.find(&"good".into(), "name.test", soon()).await;
        assert_eq!(found.unwrap().as_ref(), [HERE]);
        assert_eq!(Instant::now(), started, "nobody had to wait for a lookup to end");
        // The lookups of silent names get no slot or time out, all within the limits.
        let (mut busy, mut failed) = (0, 0);
        while let Some(done) = waiting.join_next().await {
            match done.unwrap() {
                Err(LookupError::Busy) => busy += 1,
                Err(LookupError::Failed(_)) => failed += 1,
                Ok(found) => panic!("{found:?}"),
            }
        }
        assert_eq!(busy + failed, 300);
        assert!((3..=7).contains(&failed), "{failed} had one of 8 slots");
        assert!(started.elapsed() <= SLOT_TIME_MAX + TIME_MAX);
        let state = lookups.0.state.lock();
        assert!(state.running.is_empty() && state.tenants.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_for_the_same_name_share_one_lookup() {
        let names = Arc::new(Names::default());
        let lookups = Lookups::new(Arc::<Names>::clone(&names), 4);
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..50 {
            let (lookups, tenant) = (lookups.clone(), Arc::from(format!("t{number}")));
            waiting.spawn(async move { lookups.find(&tenant, "silent.test", soon()).await });
        }
        while let Some(done) = waiting.join_next().await {
            assert!(matches!(done.unwrap(), Err(LookupError::Failed(_))));
        }
        assert_eq!(names.0.load(Ordering::SeqCst), 1);
    }
}
