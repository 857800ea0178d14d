//! All rows of a shard, decoded once for all structural checkers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::State;
use codeq_core::callback_retry::CallbackCounts;
use codeq_core::command::Millis;
use codeq_core::keys::{self, QueueId, Seq};
use codeq_core::kv::for_each;
use codeq_core::kv::{Key, KvError, KvRead, Table};
use codeq_core::record::RecordKind;
use codeq_core::rows::{BodyRow, IdempotencyRow, OutboxRow, QueueRow, RecordRow, TaskRow};
use codeq_core::usage::Usage;

/// What identifies a record: kind, tenant and name.
pub type RecordName = (RecordKind, Arc<str>, Arc<str>);

/// The rows of one shard, and its state in memory.
pub struct Rows {
    /// The mutable parts of the tasks.
    pub tasks: BTreeMap<Seq, TaskRow>,
    /// What the producers sent, as far as checkers need it.
    pub bodies: BTreeMap<Seq, Body>,
    /// The order of the pending tasks: key and task number.
    pub pending: BTreeMap<Key, Seq>,
    /// The lists.
    pub index: BTreeSet<Key>,
    /// The deadlines, with their values.
    pub timers: BTreeMap<Key, Bytes>,
    /// The idempotency keys by their hash.
    pub idempotency: BTreeMap<Key, IdempotencyRow>,
    /// The callbacks that are kept.
    pub outbox: BTreeMap<Seq, OutboxRow>,
    /// The records.
    pub records: BTreeMap<Seq, RecordRow>,
    /// The records in memory: number and expiry.
    pub known_records: BTreeMap<RecordName, (Seq, Option<Millis>)>,
    /// Number of records counted in memory.
    pub record_count: usize,
    /// The queues in memory.
    pub queues: BTreeMap<QueueId, QueueRow>,
    /// What tenants use, according to memory.
    pub usage: BTreeMap<Arc<str>, Usage>,
    /// The queues from which a claim would be served, according to memory.
    pub claimable: BTreeSet<QueueId>,
    /// Number of leases in memory.
    pub leases: usize,
    /// When the next sweep is due, according to memory.
    pub next_deadline: Option<Millis>,
    /// The next `runAt`, according to memory.
    pub next_run_at: Option<Millis>,
    /// When the next callback is due, according to memory.
    pub next_callback: Option<Millis>,
    /// Number of callbacks, according to memory.
    pub callbacks: CallbackCounts,
    /// The next task number.
    pub next_seq: Seq,
    /// The shard's clock.
    pub now: Millis,
}

/// The parts of a body that checkers need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// The command, in the letter case that the producer used.
    pub command: String,
    /// Whether it has a webhook.
    pub webhook: bool,
    /// The idempotency key.
    pub key: Option<String>,
    /// The length of the payload.
    pub size: usize,
}

impl Rows {
    /// Reads all rows.
    pub fn read<K: KvRead + ?Sized>(state: &State, kv: &K) -> Result<Rows, KvError> {
        let mut rows = Rows {
            tasks: BTreeMap::new(),
            bodies: BTreeMap::new(),
            pending: BTreeMap::new(),
            index: BTreeSet::new(),
            timers: BTreeMap::new(),
            idempotency: BTreeMap::new(),
            outbox: BTreeMap::new(),
            records: BTreeMap::new(),
            known_records: BTreeMap::new(),
            record_count: state.record_count(),
            queues: state.queues().map(|(id, row)| (id, row.clone())).collect(),
            usage: state.tenants().map(|name| (Arc::clone(name), state.usage(name))).collect(),
            claimable: BTreeSet::new(),
            leases: state.leases(),
            next_deadline: state.next_deadline(),
            next_run_at: state.next_run_at(),
            next_callback: state.next_callback(),
            callbacks: state.callbacks(),
            next_seq: state.meta().next_seq,
            now: state.now(),
        };
        rows.claimable = rows.queues.keys().copied().filter(|id| state.is_claimable(*id)).collect();
        each(kv, Table::Task, |key, value| {
            rows.tasks.insert(keys::seq_of(key), TaskRow::decode(key, value)?);
            Ok(())
        })?;
        each(kv, Table::Body, |key, value| {
            let seq = keys::seq_of(key);
            let body = BodyRow::decode(seq, value)?;
            let body = Body {
                command: body.command.to_owned(),
                webhook: body.webhook.is_some(),
                key: body.idempotency_key.map(str::to_owned),
                size: body.payload.len(),
            };
            rows.bodies.insert(seq, body);
            Ok(())
        })?;
        each(kv, Table::Pending, |key, value| {
            rows.pending.insert(key, keys::waiting_of(key, value).1);
            Ok(())
        })?;
        each(kv, Table::Index, |key, _| {
            rows.index.insert(key);
            Ok(())
        })?;
        each(kv, Table::Timer, |key, value| {
            rows.timers.insert(key, Bytes::copy_from_slice(value));
            Ok(())
        })?;
        each(kv, Table::Idempotency, |key, value| {
            rows.idempotency.insert(key, IdempotencyRow::decode(key, value)?);
            Ok(())
        })?;
        each(kv, Table::Outbox, |key, value| {
            rows.outbox.insert(keys::seq_of(key), OutboxRow::decode(key, value)?);
            Ok(())
        })?;
        each(kv, Table::Record, |key, value| {
            rows.records.insert(keys::seq_of(key), RecordRow::decode(key, value)?);
            Ok(())
        })?;
        for (kind, tenant, name, seq, expires_at) in state.records() {
            let name = (kind, Arc::clone(tenant), Arc::clone(name));
            rows.known_records.insert(name, (seq, expires_at));
        }
        Ok(rows)
    }

    /// A task's id and number, for messages.
    pub fn name(&self, seq: Seq) -> String {
        match self.tasks.get(&seq) {
            Some(row) => format!("task {} (number {seq})", row.id(seq)),
            None => format!("task number {seq}, which does not exist,"),
        }
    }

    /// The timers of a kind: key, deadline, number and value.
    pub fn timers_of(
        &self,
        kind: keys::TimerKind,
    ) -> impl Iterator<Item = (Key, Millis, Seq, &Bytes)> {
        self.timers.iter().filter_map(move |(key, value)| {
            let (code, deadline, seq) = keys::timer_parts(*key);
            (code == kind as u8).then_some((*key, deadline, seq, value))
        })
    }
}

fn each<K: KvRead + ?Sized>(
    kv: &K,
    table: Table,
    visit: impl FnMut(Key, &[u8]) -> Result<(), KvError>,
) -> Result<(), KvError> {
    for_each(kv, table, 0, Key::MAX, visit)
}
