//! Enqueues, as logs encoded them before tasks had a maximum run time.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Enqueue, EnqueueByValue, Millis, NewTask};

/// Creates tasks, as version 1 encoded it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Enqueue`")]
pub struct EnqueueV1 {
    pub tenant: Arc<str>,
    pub tasks: Vec<NewTaskV1>,
    pub atomic: bool,
    pub seed: u64,
}

/// A task to create, as version 1 encoded it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `NewTask`")]
pub struct NewTaskV1 {
    pub command: Arc<str>,
    pub payload: Bytes,
    pub priority: i32,
    pub max_attempts: Option<u32>,
    pub webhook: Option<Arc<str>>,
    pub idempotency_key: Option<Arc<str>>,
    pub run_at: Option<Millis>,
    pub delay: Option<Millis>,
    pub trace_parent: Option<Arc<str>>,
    pub trace_state: Option<Arc<str>>,
}

/// Creates tasks by value, as version 1 encoded it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `EnqueueByValue`")]
pub struct EnqueueByValueV1 {
    pub enqueue: EnqueueV1,
    pub fingerprints: Vec<u128>,
}

impl From<EnqueueV1> for Enqueue {
    fn from(old: EnqueueV1) -> Enqueue {
        let EnqueueV1 { tenant, tasks, atomic, seed } = old;
        Enqueue { tenant, tasks: tasks.into_iter().map(NewTask::from).collect(), atomic, seed }
    }
}

impl From<EnqueueByValueV1> for EnqueueByValue {
    fn from(old: EnqueueByValueV1) -> EnqueueByValue {
        EnqueueByValue { enqueue: old.enqueue.into(), fingerprints: old.fingerprints }
    }
}

impl From<NewTaskV1> for NewTask {
    fn from(old: NewTaskV1) -> NewTask {
        NewTask {
            command: old.command,
            payload: old.payload,
            priority: old.priority,
            max_attempts: old.max_attempts,
            webhook: old.webhook,
            idempotency_key: old.idempotency_key,
            run_at: old.run_at,
            delay: old.delay,
            trace_parent: old.trace_parent,
            trace_state: old.trace_state,
            max_run: None,
        }
    }
}
