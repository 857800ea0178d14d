//! What must hold among the rows, and between the rows and the state in memory, after every command.

use std::collections::{BTreeMap, BTreeSet};

use codeq_core::callback_retry::CallbackCounts;
use codeq_core::digest::digest;
use codeq_core::id::ShardId;
use codeq_core::keys::{self, QueueId, Seq, TimerKind};
use codeq_core::kv::{Key, Kv, KvRead, Table};
use codeq_core::moment::Moment;
use codeq_core::place::Place;
use codeq_core::rows::{BodyRow, Counts, IdempotencyRow, OutboxRow, RecordRow, TaskRow};
use codeq_core::state::State;
use codeq_core::usage::Usage;

use crate::mem::Mem;

/// What the tables should hold, given the task rows.
#[derive(Default)]
struct Expected {
    pending: BTreeMap<Key, Seq>,
    index: BTreeSet<Key>,
    timers: BTreeSet<Key>,
    leases: Vec<u64>,
    counts: BTreeMap<QueueId, Counts>,
    with_key: BTreeSet<Seq>,
}

pub fn check(kv: &Mem, state: &State) {
    let mut expected = Expected::default();
    for (key, value) in kv.rows(Table::Task) {
        let row = TaskRow::decode(key, value).expect("task row");
        check_task(kv, state, keys::seq_of(key), &row, &mut expected);
    }
    let body: BTreeSet<Key> = kv.keys(Table::Body);
    assert_eq!(body, kv.keys(Table::Task), "a body for every task, and no other");
    let pending: BTreeMap<Key, Seq> = kv
        .rows(Table::Pending)
        .map(|(key, value)| {
            let order = keys::pending_parts(key).2;
            let seq = value[..].try_into().map_or(order.0, u64::from_le_bytes);
            (key, Seq(seq))
        })
        .collect();
    assert_eq!(pending, expected.pending, "pending rows");
    assert_eq!(state.leases(), expected.leases.len(), "lease set");
    check_outbox(kv, state, &mut expected);
    assert_eq!(kv.keys(Table::Index), expected.index, "index rows");
    check_keys(kv, &mut expected);
    check_records(kv, state, &mut expected);
    assert_eq!(kv.keys(Table::Timer), expected.timers, "timers");
    for tenant in state.tenants() {
        let counts = || state.queues_of(tenant).map(|(_, row)| row.counts);
        let sum = Usage {
            tasks: counts().map(|counts| counts.live()).sum(),
            bytes: counts().map(|counts| counts.live_bytes).sum(),
            stored_bytes: counts().map(|counts| counts.stored_bytes).sum(),
        };
        assert_eq!(state.usage(tenant), sum, "what {tenant} holds");
    }
    for (id, row) in state.queues() {
        let counts = expected.counts.remove(&id).unwrap_or_default();
        assert_eq!(row.counts, counts, "counters of {} / {}", row.tenant, row.name);
        let unused = counts.total() == 0 && row.topic.is_none() && !row.paused;
        assert!(!unused, "{} / {} should be forgotten", row.tenant, row.name);
    }
    assert!(expected.counts.is_empty(), "tasks without a queue");
    check_deadlines(state, &expected);
    check_reload(kv, state);
}

fn check_task(kv: &Mem, state: &State, seq: Seq, row: &TaskRow, expected: &mut Expected) {
    let bytes = kv.get(Table::Body, keys::task(seq)).expect("reads");
    let bytes = bytes.expect("a task has a body");
    let body = BodyRow::decode(seq, &bytes).expect("body row");
    let queue = state.queue_row(row.queue).expect("a task has a queue");
    assert_eq!(*body.command.to_ascii_lowercase(), *queue.name);
    assert_eq!(body.payload.len(), row.size as usize);
    assert_eq!(body.idempotency_key.is_some(), row.has_key);
    assert_eq!(body.webhook.is_some(), row.has_webhook);
    assert_eq!(row.lease.is_some(), row.place == Place::InProgress);
    assert_eq!(row.finish.is_some(), row.place.is_terminal());
    assert_eq!(row.run_until > 0, row.run_limit > 0);
    assert!(row.run_until == 0 || row.lease.as_ref().is_some_and(|l| l.until <= row.run_until));
    assert!(row.visible_at == 0 || row.place == Place::Delayed, "a delay outside `Delayed`");
    assert!(row.place != Place::Delayed || row.visible_at + row.run_at > 0, "nothing to wait for");
    assert!(row.place != Place::Dead || row.attempts >= row.max_attempts);
    assert!(row.place.is_terminal() || row.attempts < row.max_attempts);
    assert!(!row.cancel_requested || !matches!(row.place, Place::Pending | Place::Delayed));
    if let Some(finish) = &row.finish {
        // A worker may send both.
        assert!(finish.result.is_some() || row.place != Place::Completed);
        assert!(finish.error.is_some() || row.place == Place::Completed);
        assert!(finish.result.is_none() || row.place != Place::Dead);
    }
    if row.has_key {
        expected.with_key.insert(seq);
    }
    expected.index.insert(keys::index(row.queue, row.place, seq));
    let counts = expected.counts.entry(row.queue).or_default();
    *counts.slot(row) += 1;
    counts.stored_bytes += row.stored_bytes();
    if !row.place.is_terminal() {
        counts.live_bytes += u64::from(row.size);
    }
    match row.place {
        Place::Pending => {
            let key = keys::pending(row.queue, row.priority, row.order);
            expected.pending.insert(key, seq);
            if row.run_at != 0 {
                expected.timers.insert(keys::timer(TimerKind::RunAtPassed, row.run_at, seq));
            }
        }
        Place::Delayed => {
            let key = match row.visible_at {
                0 => keys::timer(TimerKind::RunAt, row.run_at, seq),
                at => keys::timer(TimerKind::Delayed, at, seq),
            };
            expected.timers.insert(key);
        }
        Place::InProgress => expected.leases.extend(row.lease.as_ref().map(|l| l.until)),
        Place::Completed | Place::Failed | Place::Dead => {
            let at = row.finish.as_ref().map_or(0, |finish| finish.expires_at);
            expected.timers.insert(keys::timer(TimerKind::Retention, at, seq));
        }
    }
}

/// Only finished tasks with a webhook have callbacks.
fn check_outbox(kv: &Mem, state: &State, expected: &mut Expected) {
    let mut counts = CallbackCounts::default();
    for (key, value) in kv.rows(Table::Outbox) {
        let outbox = OutboxRow::decode(key, value).expect("outbox row");
        let task = TaskRow::load(kv, key).expect("reads").expect("callback without a task");
        assert!(task.has_webhook && task.place.is_terminal(), "callback of a live task");
        assert_eq!(outbox.id, task.id(keys::seq_of(key)));
        let failed = outbox.next_at.is_none();
        expected.index.insert(keys::callback(task.queue, failed, keys::seq_of(key)));
        if let Some(at) = outbox.next_at {
            let timer = keys::timer(TimerKind::Callback, at, keys::seq_of(key));
            expected.timers.insert(timer);
            counts.pending += 1;
        } else {
            counts.failed += 1;
        }
    }
    assert_eq!(state.callbacks(), counts);
}

/// A key belongs to a task, or outlived it and has a timer.
fn check_keys(kv: &Mem, expected: &mut Expected) {
    let mut owners = BTreeSet::new();
    for (key, value) in kv.rows(Table::Idempotency) {
        let row = IdempotencyRow::decode(key, value).expect("idempotency row");
        let seq = row.id.seq();
        let task = TaskRow::load(kv, keys::task(seq)).expect("reads");
        match row.gone {
            None => {
                assert_eq!(task.expect("the key's task").id(seq), row.id);
                assert!(owners.insert(seq), "two keys of one task");
            }
            Some(_) => {
                assert!(task.is_none(), "the key says that its task is removed, but it exists");
                let kind = TimerKind::Idempotency as u8;
                let own = |(timer, _): &(Key, &bytes::Bytes)| {
                    let (of, _, number) = keys::timer_parts(*timer);
                    of == kind && number == seq
                };
                let (timer, value) = kv.rows(Table::Timer).find(own).expect("a timer");
                expected.timers.insert(timer);
                assert_eq!(value[..], key.to_le_bytes(), "the timer names the key");
            }
        }
    }
    assert_eq!(owners, expected.with_key, "a key row for every task with a key");
}

/// The state knows exactly the records that have a row; those with an expiry have a timer.
fn check_records(kv: &Mem, state: &State, expected: &mut Expected) {
    let mut wanted = BTreeSet::new();
    for (key, value) in kv.rows(Table::Record) {
        let row = RecordRow::decode(key, value).expect("record row");
        let seq = keys::seq_of(key);
        if let Some(at) = row.expires_at {
            expected.timers.insert(keys::timer(TimerKind::Record, at, seq));
        }
        let new = wanted.insert((row.kind, row.tenant, row.name, seq, row.expires_at));
        assert!(new, "two rows of one record");
    }
    let known = state
        .records()
        .map(|(kind, tenant, name, seq, at)| (kind, tenant.clone(), name.clone(), seq, at));
    assert_eq!(known.collect::<BTreeSet<_>>(), wanted, "records");
    assert_eq!(state.record_count(), wanted.len(), "count of records");
}

/// The engine sleeps until these moments: too late misses a deadline, too early makes it spin.
fn check_deadlines(state: &State, expected: &Expected) {
    let of = |wanted: &'static [TimerKind]| {
        let parts = expected.timers.iter().map(|key| keys::timer_parts(*key));
        let wanted = parts.filter(|(kind, ..)| wanted.iter().any(|one| *one as u8 == *kind));
        wanted.map(|(_, deadline, _)| deadline)
    };
    let leases = expected.leases.iter().map(|until| until.saturating_add(1));
    use TimerKind::{Callback, Delayed, Idempotency, Record, Retention, RunAt, RunAtPassed};
    let lasting = of(&[Delayed, Retention, Idempotency, Record]).chain(leases);
    assert_eq!(state.next_deadline(), lasting.min(), "next deadline");
    assert_eq!(state.next_callback(), of(&[Callback]).min(), "next callback");
    assert_eq!(state.next_run_at(), of(&[RunAt]).min(), "next date");
    let at = state.moment();
    let waits = Moment { now: 0, wall: at.wall };
    let early = of(&[RunAtPassed]).any(|date| date > at.wall);
    let late = of(&[RunAt]).any(|date| date <= at.wall);
    assert!(!(early || late) || state.is_due(waits), "a date that no sweep looks at");
}

/// A restart produces the same state.
fn check_reload(kv: &Mem, state: &State) {
    let mut rows = Mem::clone(kv);
    // Between checkpoints the counters are only in memory: write them as a checkpoint would.
    for (id, row) in state.queues() {
        rows.put(Table::Queue, keys::queue(id), row.encode());
    }
    let live: BTreeSet<Key> = state.queues().map(|(id, _)| keys::queue(id)).collect();
    assert_eq!(rows.keys(Table::Queue), live, "a forgotten queue has a row");
    rows.put(Table::Meta, keys::META, state.meta().encode());
    let loaded = State::load(&rows, ShardId(0), 1).expect("loads");
    assert_eq!(digest(&loaded, &rows).expect("digest"), digest(state, kv).expect("digest"));
    assert_eq!(loaded.leases(), state.leases());
    assert_eq!(loaded.next_deadline(), state.next_deadline());
    assert_eq!(loaded.next_run_at(), state.next_run_at());
    assert_eq!(loaded.moment(), state.moment());
    assert!(loaded.records().eq(state.records()), "records");
    for (id, _) in state.queues() {
        assert_eq!(loaded.is_claimable(id), state.is_claimable(id), "head of queue {id}");
    }
}
