//! Enqueue: creates tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::{Enqueue, EnqueueByValue, Fence, NewTask};
use crate::history::{Event, History};
use crate::id::TaskId;
use crate::idempotency::{Fingerprint, Known, key_hash};
use crate::keys::{self, Order, QueueId};
use crate::kv::{Kv, KvError, Table};
use crate::limits::{
    ATTEMPTS_MAX, BATCH_MAX, DELAY_MS_MAX, ENQUEUE_PAYLOAD_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX,
    MAX_RUN_MS_MAX, MAX_RUN_MS_MIN, PAYLOAD_BYTES_MAX, PRIORITY_MAX, TRACE_PARENT_BYTES_MAX,
    TRACE_STATE_BYTES_MAX, WEBHOOK_BYTES_MAX,
};
use crate::moment::Millis;
use crate::names::{check_command, check_tenant};
use crate::place::Place;
use crate::reply::{Enqueued, Rejection, Reply};
use crate::rows::{BodyRow, IdempotencyRow, TaskRow};
use crate::step::{Cause, Step};
use crate::topic::is_max_run;
use crate::view::Task;

impl<K: Kv> Step<'_, K> {
    /// Creates tasks. `values` has a fingerprint of each task's JSON value; `None` compares payloads byte by byte.
    pub(crate) fn enqueue(
        &mut self,
        command: &Enqueue,
        values: Option<&[u128]>,
    ) -> Result<Reply, KvError> {
        if command.tasks.is_empty() || command.tasks.len() > BATCH_MAX {
            return Ok(Reply::Rejected(Rejection::InvalidBatch { max: BATCH_MAX }));
        }
        if let Err(rejection) = check_tenant(&command.tenant) {
            return Ok(Reply::Rejected(rejection));
        }
        if command.atomic
            && let Some(rejection) = self.first_refused(command, values)?
        {
            return Ok(Reply::Rejected(rejection));
        }
        let mut outcomes = Vec::with_capacity(command.tasks.len());
        for (index, task) in command.tasks.iter().enumerate() {
            let value = values.map(|values| values.get(index).copied().unwrap_or(0));
            outcomes.push(self.enqueue_one(command, task, value)?);
        }
        Ok(Reply::Enqueued(outcomes))
    }

    /// Same as [`Step::enqueue`]. Idempotency keys compare payloads as JSON values.
    pub(crate) fn enqueue_by_value(&mut self, command: &EnqueueByValue) -> Result<Reply, KvError> {
        self.enqueue(&command.enqueue, Some(&command.fingerprints))
    }

    fn enqueue_one(
        &mut self,
        command: &Enqueue,
        task: &NewTask,
        value: Option<u128>,
    ) -> Result<Enqueued, KvError> {
        if let Err(rejection) = check(task, self.wall, value.is_some()) {
            return Ok(Enqueued::Rejected(rejection));
        }
        if let Some(key) = &task.idempotency_key {
            match self.known(&command.tenant, key, task, fingerprint_of(task, value))? {
                Known::No => {}
                Known::Yes(task) => return Ok(Enqueued::Repeated(task)),
                Known::OtherWork => return Ok(Enqueued::Rejected(Rejection::IdempotencyConflict)),
            }
        }
        let queue = match self.queue_or_new(&command.tenant, &task.command) {
            Ok(queue) => queue,
            Err(rejection) => return Ok(Enqueued::Rejected(rejection)),
        };
        let created = self.create(queue, task, None, command.seed)?;
        if let Some(key) = &task.idempotency_key {
            let (fingerprint, by_value) = match fingerprint_of(task, value) {
                Fingerprint::Bytes(print) => (print, false),
                Fingerprint::Value(print) => (print, true),
            };
            let (id, created_at) = (created.id, self.wall);
            let row = IdempotencyRow { id, created_at, fingerprint, gone: None, by_value };
            self.kv.put(Table::Idempotency, key_hash(&command.tenant, key), row.encode());
        }
        Ok(Enqueued::Created(Box::new(created)))
    }

    /// The first task that makes an atomic batch fail, if any. Changes nothing.
    fn first_refused(
        &self,
        command: &Enqueue,
        values: Option<&[u128]>,
    ) -> Result<Option<Rejection>, KvError> {
        let tenant = self.state.tenants.get(&command.tenant);
        let mut new_queues = BTreeMap::new();
        let mut keys_here = BTreeMap::new();
        for (index, task) in command.tasks.iter().enumerate() {
            let refused = |reason| Some(Rejection::InBatch { index, reason: Box::new(reason) });
            let value = values.map(|values| values.get(index).copied().unwrap_or(0));
            if let Err(rejection) = check(task, self.wall, value.is_some()) {
                return Ok(refused(rejection));
            }
            if let Some(key) = &task.idempotency_key {
                let print = fingerprint_of(task, value);
                let conflict = match self.known(&command.tenant, key, task, print)? {
                    Known::OtherWork => true,
                    // A repeat creates nothing, so it needs no queue.
                    Known::Yes(_) => continue,
                    Known::No => *keys_here.entry(key).or_insert(print) != print,
                };
                if conflict {
                    return Ok(refused(Rejection::IdempotencyConflict));
                }
            }
            let name = crate::names::queue_name(&task.command);
            let known = tenant.is_some_and(|tenant| tenant.queues.contains_key(&*name));
            if !known {
                new_queues.insert(name, ());
            }
            let queues = tenant.map_or(0, |tenant| tenant.queues.len()) + new_queues.len();
            let max = crate::limits::QUEUES_PER_TENANT_MAX;
            if queues > max {
                return Ok(refused(Rejection::TooManyQueues { max }));
            }
        }
        Ok(None)
    }

    /// Creates a task that has passed every check.
    pub(crate) fn create(
        &mut self,
        queue: QueueId,
        task: &NewTask,
        origin: Option<TaskId>,
        seed: u64,
    ) -> Result<Task, KvError> {
        let seq = self.take_seq();
        let id = TaskId::mint(seq, seed, self.state.shard, self.state.shards);
        let topic = self.queue(queue)?.row.topic.as_ref();
        let wanted = task.priority.clamp(0, i32::from(PRIORITY_MAX)) as u8;
        let delay = task.delay.filter(|delay| *delay > 0 && task.run_at.is_none());
        let mut row = TaskRow {
            salt: id.salt(),
            queue,
            place: Place::Pending,
            priority: topic.map_or(wanted, |topic| topic.policy.tier(wanted)),
            attempts: 0,
            max_attempts: {
                let ceiling = topic.and_then(|topic| topic.policy.max_attempts);
                let default = ceiling.unwrap_or(self.state.meta.settings.max_attempts);
                let wanted = task.max_attempts.filter(|n| *n > 0).unwrap_or(default);
                wanted.min(ceiling.unwrap_or(ATTEMPTS_MAX))
            },
            fence: Fence(0),
            order: Order(0),
            size: task.payload.len() as u32,
            created_at: self.wall,
            updated_at: self.wall,
            visible_at: delay.map_or(0, |delay| self.now.saturating_add(delay)),
            lease: None,
            cancel_requested: false,
            error: None,
            finish: None,
            has_webhook: task.webhook.is_some(),
            has_key: task.idempotency_key.is_some(),
            history: History::default(),
            run_at: task.run_at.unwrap_or(0),
            created_at_engine: self.now,
            max_run: task.max_run.unwrap_or(0),
            run_limit: 0,
            run_until: 0,
        };
        let body = BodyRow {
            command: &task.command,
            webhook: task.webhook.as_deref(),
            idempotency_key: task.idempotency_key.as_deref(),
            trace_parent: trace(&task.trace_parent, TRACE_PARENT_BYTES_MAX),
            trace_state: trace(&task.trace_state, TRACE_STATE_BYTES_MAX),
            origin,
            payload: &task.payload,
        };
        self.kv.insert(Table::Body, keys::task(seq), body.encode());
        let place = if delay.is_some() { Place::Delayed } else { self.place_by_run_at(&row) };
        self.store_new(seq, &mut row, place, Cause::server(Event::Created))?;
        let payload = Bytes::clone(&task.payload);
        Ok(Task::from_parts(seq, &row, &self.queue(queue)?.row, &body, payload, self.moment()))
    }
}

/// The identity of the task's work, by value if the command says so.
fn fingerprint_of(task: &NewTask, value: Option<u128>) -> Fingerprint {
    value.map_or_else(|| Fingerprint::of_bytes(task), Fingerprint::Value)
}

/// Checks everything that does not depend on the state.
fn check(task: &NewTask, wall: Millis, by_value: bool) -> Result<(), Rejection> {
    check_command(&task.command)?;
    let max = if by_value { PAYLOAD_BYTES_MAX } else { ENQUEUE_PAYLOAD_BYTES_MAX };
    if task.payload.is_empty() || task.payload.len() > max {
        return Err(Rejection::InvalidPayload { max });
    }
    if let Some(url) = &task.webhook
        && (url.is_empty() || url.len() > WEBHOOK_BYTES_MAX || url.chars().any(char::is_control))
    {
        return Err(Rejection::InvalidWebhook);
    }
    if let Some(key) = &task.idempotency_key
        && !(1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len())
    {
        return Err(Rejection::InvalidIdempotencyKey { max: IDEMPOTENCY_KEY_BYTES_MAX });
    }
    let wait = task.run_at.map(|date| date.saturating_sub(wall)).or(task.delay);
    if wait.is_some_and(|wait| wait > DELAY_MS_MAX) {
        return Err(Rejection::InvalidDelay { max: DELAY_MS_MAX });
    }
    if task.max_run.is_some_and(|max_run| max_run > 0 && !is_max_run(max_run)) {
        return Err(Rejection::InvalidMaxRun { min: MAX_RUN_MS_MIN, max: MAX_RUN_MS_MAX });
    }
    Ok(())
}

/// Drops a trace context that is too long, instead of refusing the task.
fn trace(text: &Option<Arc<str>>, max: usize) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty() && text.len() <= max)
}
