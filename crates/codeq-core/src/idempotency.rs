//! Idempotency keys: one task per (tenant, key), for as long as the task exists and at least a day.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::command::{Command, EnqueueByValue, Fence, NewTask};
use crate::json_value;
use crate::keys::{self, Seq, TimerKind};
use crate::kv::{Key, Kv, KvError, Table};
use crate::limits::{ENQUEUE_PAYLOAD_BYTES_MAX, IDEMPOTENCY_MS_MIN};
use crate::names::queue_name;
use crate::place::Place;
use crate::rows::{BodyRow, IdempotencyRow, TaskRow};
use crate::step::Step;
use crate::view::Task;

/// Identifies the work of a task. An enqueue that uses a key again repeats the first one if the fingerprints are equal;
/// otherwise it is a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fingerprint {
    /// Same command and same payload bytes, as [`Enqueue`](crate::command::Enqueue) compares them.
    Bytes(u128),
    /// Same command and same JSON value.
    Value(u128),
}

impl Fingerprint {
    pub(crate) fn of_bytes(task: &NewTask) -> Fingerprint {
        Fingerprint::Bytes(fingerprint(&task.command, &task.payload))
    }

    fn of_value(task: &NewTask) -> Fingerprint {
        Fingerprint::Value(fingerprint_by_value(&task.command, &task.payload))
    }
}

/// Result of looking up an idempotency key.
pub(crate) enum Known {
    No,
    Yes(Box<Task>),
    OtherWork,
}

impl<K: Kv> Step<'_, K> {
    /// Looks up a key. Lookup and insert happen in one command, so nothing can come between them.
    pub(crate) fn known(
        &self,
        tenant: &str,
        key: &str,
        task: &NewTask,
        print: Fingerprint,
    ) -> Result<Known, KvError> {
        let Some(row) = IdempotencyRow::load(self.kv, key_hash(tenant, key))? else {
            return Ok(Known::No);
        };
        let stored = match row.by_value {
            true => Fingerprint::Value(row.fingerprint),
            false => Fingerprint::Bytes(row.fingerprint),
        };
        // A key stored by an older version has only a fingerprint of the payload's bytes.
        let sent = match (stored, print) {
            (Fingerprint::Bytes(_), Fingerprint::Value(_)) => Fingerprint::of_bytes(task),
            (Fingerprint::Value(_), Fingerprint::Bytes(_)) => Fingerprint::of_value(task),
            _ => print,
        };
        if stored != sent {
            return Ok(Known::OtherWork);
        }
        let seq = row.id.seq();
        let view = match self.find(tenant, row.id)? {
            Some(task_row) => self.view(seq, &task_row)?,
            None => gone(&row, tenant, task),
        };
        Ok(Known::Yes(Box::new(view)))
    }

    /// Releases the key of a task that is being removed; a key younger than a day stays until it is a day old.
    pub(crate) fn release_key(&mut self, seq: Seq, row: &TaskRow) -> Result<(), KvError> {
        if !row.has_key {
            return Ok(());
        }
        let Some(bytes) = self.kv.borrow(Table::Body, keys::task(seq))? else {
            return Ok(());
        };
        let body = BodyRow::decode(seq, &bytes)?;
        let tenant = &self.queue(row.queue)?.row.tenant;
        let Some(hash) = body.idempotency_key.map(|key| key_hash(tenant, key)) else {
            return Ok(());
        };
        let until = row.created_at_engine.saturating_add(IDEMPOTENCY_MS_MIN);
        if until <= self.now {
            self.kv.delete(Table::Idempotency, hash);
        } else if let Some(mut known) = IdempotencyRow::load(self.kv, hash)? {
            known.gone = Some(row.place);
            self.kv.put(Table::Idempotency, hash, known.encode());
            let value = Bytes::copy_from_slice(&hash.to_le_bytes());
            self.state.timers.arm(self.kv, TimerKind::Idempotency, until, seq, value);
        }
        Ok(())
    }
}

/// Stands in for a task that was removed before its key: only its identity and how it ended are known.
fn gone(row: &IdempotencyRow, tenant: &str, task: &NewTask) -> Task {
    Task {
        id: row.id,
        tenant: tenant.into(),
        command: task.command.clone(),
        payload: task.payload.clone(),
        priority: 0,
        webhook: None,
        trace_parent: None,
        trace_state: None,
        origin: None,
        place: row.gone.unwrap_or(Place::Completed),
        worker: None,
        lease_until: None,
        fence: Fence(0),
        attempts: 0,
        max_attempts: 0,
        error: None,
        cancel_requested: false,
        created_at: row.created_at,
        updated_at: row.created_at,
        visible_at: None,
        max_run: None,
        run_until: None,
    }
}

/// The row key of an idempotency key. The tenant's length comes first, so that no two pairs collide.
pub(crate) fn key_hash(tenant: &str, key: &str) -> Key {
    hash([tenant.as_bytes(), key.as_bytes()])
}

/// Hashes a command and a payload; equal for all spellings of the same JSON value.
pub fn fingerprint_by_value(command: &str, payload: &[u8]) -> u128 {
    fingerprint(command, &json_value::canonical(payload))
}

fn fingerprint(command: &str, payload: &[u8]) -> u128 {
    hash([queue_name(command).as_bytes(), payload])
}

fn hash(parts: [&[u8]; 2]) -> u128 {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let digest: [u8; 32] = hasher.finalize().into();
    digest.first_chunk::<16>().map_or(0, |half| u128::from_le_bytes(*half))
}

impl Command {
    /// The newest form of the command, which new proposals use. Logged commands of older forms keep their old rules.
    /// Hashes the payloads of tasks with a key, so call it on the client's thread and not on the shard's.
    pub fn current(self) -> Command {
        match self {
            Command::Enqueue(enqueue) if enqueue.tasks.iter().any(needs_value) => {
                let print = |task: &NewTask| match task.idempotency_key {
                    Some(_) => fingerprint_by_value(&task.command, &task.payload),
                    None => 0,
                };
                let fingerprints = enqueue.tasks.iter().map(print).collect();
                Command::EnqueueByValue(EnqueueByValue { enqueue, fingerprints })
            }
            other => other,
        }
    }
}

fn needs_value(task: &NewTask) -> bool {
    task.idempotency_key.is_some() || task.payload.len() > ENQUEUE_PAYLOAD_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_and_key_do_not_run_together() {
        assert_ne!(key_hash("a", "bc"), key_hash("ab", "c"));
        assert_ne!(key_hash("", "a"), key_hash("a", ""));
    }

    #[test]
    fn the_same_queue_is_the_same_work() {
        assert_eq!(fingerprint("Work", b"1"), fingerprint("work", b"1"));
        assert_ne!(fingerprint("work", b"1"), fingerprint("work", b"1 "));
    }
}
