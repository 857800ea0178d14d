//! Enqueue: a producer creates tasks.
//!
//! A request is checked in three places: `http/enqueue.rs` and `grpc/producer.rs` check its form, this file what the
//! server allows (payload size, webhook, quotas), and `codeq-core/src/enqueue.rs` the task itself.

use std::sync::Arc;

use bytes::Bytes;
use codeq_auth::Principal;
use codeq_core::command::{Command, Enqueue, Millis, NewTask};
use codeq_core::limits::{MAX_RUN_MS_MAX, MAX_RUN_MS_MIN, PAYLOAD_BYTES_MAX, TASK_ROWS_BYTES};
use codeq_core::names::check_command;
use codeq_core::reply::{Enqueued, Rejection, Reply};
use codeq_core::usage::Usage;
use codeq_core::view::Task;
use codeq_engine::{Answer, Call};

use super::permission::MayProduce;
use super::prepared_call::PreparedCall;
use super::trace::span_of;
use super::{Code, Service, ServiceError, seconds, seed, trimmed};

/// The outcome of enqueueing one task.
pub struct EnqueuedTask {
    /// The new task, or the existing one with the same idempotency key.
    pub task: Box<Task>,
    /// True if the idempotency key was already used and `task` is the earlier task.
    pub repeated: bool,
}

/// A task as a client requests it, in any protocol. Empty strings count as absent.
#[derive(Debug, Default)]
pub struct Draft {
    /// The kind of work. Trimmed.
    pub command: Arc<str>,
    /// JSON text.
    pub payload: Bytes,
    /// Values outside 0–9 are clamped.
    pub priority: i64,
    /// Zero or less means the default.
    pub max_attempts: i64,
    /// URL that receives the result.
    pub webhook: Option<Arc<str>>,
    /// Makes the enqueue safe to repeat.
    pub idempotency_key: Option<Arc<str>>,
    /// Earliest time the task can be claimed.
    pub run_at: Option<Millis>,
    /// Seconds before the task can be claimed.
    pub delay_seconds: Option<i64>,
    /// Seconds that an attempt may run; 0 means the policy's limit, or none.
    pub max_run_seconds: i64,
    /// W3C trace context, `traceparent`.
    pub trace_parent: Option<Arc<str>>,
    /// W3C trace context, `tracestate`.
    pub trace_state: Option<Arc<str>>,
}

impl Draft {
    /// Converts the draft to a task for the core, checking what the core does not check.
    pub fn into_task(self, service: &Service) -> Result<NewTask, ServiceError> {
        let command = trimmed(&self.command).unwrap_or_default();
        // The core checks this too. Checking it here reports a bad item before the engine is called.
        check_command(&command)?;
        let (destinations, max) = (&service.destinations, service.payload_max());
        if self.payload.len() > max {
            return Err(Rejection::InvalidPayload { max }.into());
        }
        let webhook = self.webhook.filter(|text| !text.is_empty());
        if let Some(Err(why)) = webhook.as_deref().map(|text| destinations.read(text)) {
            let error = ServiceError::new(Code::InvalidWebhook, "invalid webhook url");
            return Err(error.field("webhook").detail(why.to_string()));
        }
        let delay = match self.delay_seconds.map(u64::try_from) {
            None => None,
            Some(Ok(delay)) => Some(seconds(delay)),
            Some(Err(_)) => {
                let text = "invalid 'delaySeconds' (must be >= 0)";
                return Err(ServiceError::new(Code::InvalidDelay, text).field("delaySeconds"));
            }
        };
        let max_attempts = match self.max_attempts {
            n if n <= 0 => None,
            n => Some(u32::try_from(n).unwrap_or(u32::MAX)),
        };
        let max_run = u64::try_from(self.max_run_seconds)
            .map(seconds)
            .map_err(|_| Rejection::InvalidMaxRun { min: MAX_RUN_MS_MIN, max: MAX_RUN_MS_MAX })?;
        Ok(NewTask {
            command,
            payload: self.payload,
            priority: self.priority.clamp(0, 9) as i32,
            max_attempts,
            webhook,
            idempotency_key: self.idempotency_key.filter(|key| !key.is_empty()),
            run_at: self.run_at,
            delay,
            trace_parent: self.trace_parent,
            trace_state: self.trace_state,
            max_run: Some(max_run).filter(|max_run| *max_run > 0),
        })
    }
}

/// Tasks and bytes requested earlier in the same message, not yet counted for the tenant.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ahead {
    tasks: usize,
    bytes: usize,
}

/// One outcome per task of a batch.
pub type EnqueuedTasks = Vec<Result<EnqueuedTask, ServiceError>>;

impl Service {
    /// Creates one task.
    pub fn enqueue(
        &self,
        caller: MayProduce<'_>,
        draft: Draft,
    ) -> Result<PreparedCall<EnqueuedTask>, ServiceError> {
        let tasks = vec![draft.into_task(self)?];
        self.check_quota(&caller, &tasks, &mut Ahead::default())?;
        Ok(PreparedCall::new(enqueue(&caller, tasks, false), |answer| {
            enqueued(answer)?.pop().ok_or_else(ServiceError::unexpected)?
        }))
    }

    /// Creates up to the configured number of tasks. Each succeeds or fails on its own unless the batch is atomic.
    pub fn enqueue_batch(
        &self,
        caller: MayProduce<'_>,
        tasks: Vec<NewTask>,
        atomic: bool,
        ahead: &mut Ahead,
    ) -> Result<PreparedCall<EnqueuedTasks>, ServiceError> {
        self.check_batch(tasks.len())?;
        self.check_quota(&caller, &tasks, ahead)?;
        Ok(PreparedCall::new(enqueue(&caller, tasks, atomic), enqueued))
    }

    /// Checks the length of a batch.
    pub fn check_batch(&self, len: usize) -> Result<(), ServiceError> {
        let max = self.defaults.load().batch_max;
        if len == 0 {
            return Err(ServiceError::invalid_body().detail("the batch has no items"));
        }
        if len > max { Err(ServiceError::batch_too_long(max)) } else { Ok(()) }
    }

    /// Maximum number of tasks or results per batch.
    pub fn batch_max(&self) -> usize {
        self.defaults.load().batch_max.max(1)
    }

    /// Whether any limit of [`TenantLimits`](crate::config::TenantLimits) is set.
    pub(super) fn has_quota(&self) -> bool {
        let limits = &self.defaults.load().tenant;
        limits.max_pending_tasks.is_some()
            || limits.max_pending_bytes.is_some()
            || limits.max_stored_bytes.is_some()
    }

    /// Checks the tenant's quota. Concurrent requests may together exceed it slightly: it protects the disk and need not
    /// be exact.
    fn check_quota(
        &self,
        caller: &Principal,
        new: &[NewTask],
        ahead: &mut Ahead,
    ) -> Result<(), ServiceError> {
        if !self.has_quota() {
            return Ok(());
        }
        let bytes: usize = new.iter().map(|task| task.payload.len()).sum();
        let tasks = ahead.tasks.saturating_add(new.len());
        let bytes = ahead.bytes.saturating_add(bytes);
        let used = self.check_pending(caller, tasks, bytes)?;
        let with_rows = bytes.saturating_add(tasks * TASK_ROWS_BYTES as usize);
        if over(self.defaults.load().tenant.max_stored_bytes, used.stored_bytes, with_rows) {
            let text = "the tenant has reached its limit of bytes in all its tasks, including finished ones";
            return Err(quota(text));
        }
        *ahead = Ahead { tasks, bytes };
        Ok(())
    }

    /// Checks the tenant's limits on unfinished tasks and their bytes.
    pub(super) fn check_pending(
        &self,
        caller: &Principal,
        tasks: usize,
        bytes: usize,
    ) -> Result<Usage, ServiceError> {
        let defaults = self.defaults.load();
        let limits = &defaults.tenant;
        let used = self.engine.usage(&caller.tenant);
        if over(limits.max_pending_tasks, used.tasks, tasks) {
            return Err(quota("the tenant has reached its limit of unfinished tasks"));
        }
        if over(limits.max_pending_bytes, used.bytes, bytes) {
            return Err(quota("the tenant has reached its limit of bytes in unfinished tasks"));
        }
        Ok(used)
    }

    /// How many of `wanted` tasks may return to their queue within the tenant's limits. Ignores the
    /// bytes of finished tasks, because a replay reduces those.
    pub(super) fn replay_room(&self, caller: &Principal, wanted: u32) -> Result<u32, ServiceError> {
        let defaults = self.defaults.load();
        let limits = &defaults.tenant;
        if limits.max_pending_tasks.is_none() && limits.max_pending_bytes.is_none() {
            return Ok(wanted);
        }
        let used = self.check_pending(caller, 1, 1)?;
        let room = |max: Option<u64>, used: u64, each: u64| {
            max.map_or(u64::MAX, |max| max.saturating_sub(used) / each).max(1)
        };
        let tasks = room(limits.max_pending_tasks, used.tasks, 1);
        let bytes = room(limits.max_pending_bytes, used.bytes, PAYLOAD_BYTES_MAX as u64);
        Ok(tasks.min(bytes).min(wanted.into()) as u32)
    }
}

fn over(max: Option<u64>, used: u64, more: usize) -> bool {
    max.is_some_and(|max| used.saturating_add(more as u64) > max)
}

fn enqueue(caller: &Principal, tasks: Vec<NewTask>, atomic: bool) -> Call {
    let tenant = Arc::clone(&caller.tenant);
    Call::Propose(Command::Enqueue(Enqueue { tenant, tasks, atomic, seed: seed() }))
}

fn enqueued(answer: Answer) -> Result<EnqueuedTasks, ServiceError> {
    match answer? {
        Reply::Enqueued(outcomes) => Ok(outcomes.into_iter().map(made).collect()),
        Reply::Rejected(rejection) => Err(rejection.into()),
        _ => Err(ServiceError::unexpected()),
    }
}

fn made(outcome: Enqueued) -> Result<EnqueuedTask, ServiceError> {
    match outcome {
        Enqueued::Created(task) => {
            drop(span_of("enqueue", &task));
            Ok(EnqueuedTask { task, repeated: false })
        }
        Enqueued::Repeated(task) => Ok(EnqueuedTask { task, repeated: true }),
        Enqueued::Rejected(rejection) => Err(rejection.into()),
    }
}

fn quota(text: &'static str) -> ServiceError {
    // Tasks finish all the time, so room may appear within seconds.
    ServiceError::new(Code::QuotaExceeded, text).scope("tenant").retry_after(5)
}
