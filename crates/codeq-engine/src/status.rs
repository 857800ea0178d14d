//! What callers see of an engine while its shards work: which batches are durable, who waits for results, statistics,
//! and whether the engine has failed or refuses writes. The same for every [`Driver`](crate::driver::Driver).

use std::collections::BTreeMap;
use std::sync::Arc;

use codeq_core::id::ShardId;
use tokio::sync::{Notify, watch};

use crate::error::EngineError;
use crate::group::Batch;
use crate::locks::Mutex;
use crate::locks::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::observer::SharedObserver;
use crate::request::{Inbox, Inboxes, Request};
use crate::result_waiters::ResultWaiters;

/// What callers see of an engine.
pub struct Status {
    pub(crate) shards: Vec<ShardChannels>,
    pub(crate) observer: SharedObserver,
    failed: AtomicBool,
    error: Mutex<Option<EngineError>>,
    /// The same as `failed`, for those that wait for a failure.
    pub(crate) failure: watch::Sender<bool>,
    /// The log is short of something.
    short: AtomicBool,
    /// Shards that refuse writes, and why.
    refusing: Mutex<BTreeMap<ShardId, EngineError>>,
    /// Free bytes in the log.
    pub room: AtomicU64,
    /// Bytes appended to the log since it was opened.
    pub appended: AtomicU64,
    /// Syncs since the log was opened.
    pub syncs: AtomicU64,
    /// Bytes of rows verified since the start.
    pub(crate) scrubbed: AtomicU64,
}

/// What callers see of a shard, and how they reach it.
pub(crate) struct ShardChannels {
    pub inbox: Arc<Inbox>,
    /// Number of the last durable batch.
    pub durable: watch::Sender<Batch>,
    pub waiters: ResultWaiters,
}

impl Status {
    /// For shards that start, each with a thread that waits for its inbox.
    pub(crate) fn new(shards: usize, observer: SharedObserver) -> Arc<Status> {
        Status::with_inboxes((0..shards).map(|_| Inbox::default()), observer)
    }

    /// The same, but whoever reads the inboxes waits for `arrived`.
    pub(crate) fn notifying(
        shards: usize,
        observer: SharedObserver,
        arrived: &Arc<Notify>,
    ) -> Arc<Status> {
        let inboxes = (0..shards).map(|_| Inbox::notifying(Arc::clone(arrived)));
        Status::with_inboxes(inboxes, observer)
    }

    fn with_inboxes(inboxes: impl Iterator<Item = Inbox>, observer: SharedObserver) -> Arc<Status> {
        let channels = |inbox| ShardChannels {
            inbox: Arc::new(inbox),
            durable: watch::Sender::new(Batch(0)),
            waiters: ResultWaiters::default(),
        };
        Arc::new(Status {
            shards: inboxes.map(channels).collect(),
            observer,
            failed: AtomicBool::new(false),
            error: Mutex::default(),
            failure: watch::Sender::new(false),
            short: AtomicBool::new(false),
            refusing: Mutex::default(),
            room: AtomicU64::new(0),
            appended: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            scrubbed: AtomicU64::new(0),
        })
    }

    /// The inboxes of all shards.
    pub(crate) fn inboxes(&self) -> Inboxes {
        self.shards.iter().map(|shard| Arc::clone(&shard.inbox)).collect()
    }

    /// Passes a request to a shard. If the shard refuses it, the answer says so.
    pub fn push(&self, shard: ShardId, request: Request) {
        match self.shards.get(usize::from(shard)) {
            Some(channels) => channels.inbox.push(request),
            None => request.refuse(EngineError::Closed),
        }
    }

    /// Notes that the log is short of something, or no longer. Notifies the observer if that changes.
    pub fn set_short(&self, why: Option<&str>) {
        if self.short.swap(why.is_some(), Ordering::AcqRel) != why.is_some()
            && let Some(observer) = &self.observer.0
        {
            observer.shortage(why);
        }
    }

    /// Notes that a shard refuses writes, or accepts them again. Notifies the observer if that changes for the engine
    /// as a whole.
    pub fn set_refusing(&self, shard: ShardId, why: Option<EngineError>) {
        let mut refusing = self.refusing.lock();
        let before = refusing.values().next().cloned();
        match why {
            Some(why) => drop(refusing.insert(shard, why)),
            None => drop(refusing.remove(&shard)),
        }
        let now = refusing.values().next();
        if before.as_ref() != now
            && let Some(observer) = &self.observer.0
        {
            observer.refusing(now);
        }
    }

    /// Why at least one shard currently refuses writes.
    pub fn refusing(&self) -> Option<EngineError> {
        self.refusing.lock().values().next().cloned()
    }

    /// The engine has failed: nothing is acknowledged from now on, and nobody waits any longer.
    pub fn fail(&self, error: &EngineError) {
        self.set_failed(error);
        self.close(error);
    }

    /// Records the failure, before anybody is answered.
    pub(crate) fn set_failed(&self, error: &EngineError) {
        self.error.lock().get_or_insert_with(|| error.clone());
        self.failed.store(true, Ordering::Release);
        self.failure.send_replace(true);
    }

    /// Answers whatever waits in the inboxes, and ends all waits.
    pub fn close(&self, error: &EngineError) {
        for shard in &self.shards {
            shard.inbox.close(error);
            // Readers that wait for a batch which will never be durable check again, and see the failure.
            shard.durable.send_replace(Batch(u64::MAX));
            shard.waiters.close();
        }
    }

    /// Whether the engine has stopped after a failure.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Why the engine stopped.
    pub fn error(&self) -> EngineError {
        self.error.lock().clone().unwrap_or(EngineError::Closed)
    }
}
