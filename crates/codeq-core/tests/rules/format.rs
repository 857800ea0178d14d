//! Data of older versions stays readable for ever: every command and every kind of row, stored as bytes.
//!
//! Run this module with `CODEQ_WRITE_FIXTURE=1` to write the fixtures of a new version. Existing files are never
//! overwritten. Do not remove the fixture of a released version: what older versions wrote cannot be written again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use codeq_core::State;
use codeq_core::codec::{RECORD_HEADER_BYTES, begin_record, push_command, read_record};
use codeq_core::command::*;
use codeq_core::id::{ShardId, TaskId};
use codeq_core::idempotency::fingerprint_by_value;
use codeq_core::keys;
use codeq_core::kv::{Key, Kv, Table};
use codeq_core::moment::Moment;
use codeq_core::record::RecordKind;
use codeq_core::rows::{IdempotencyRow, MetaRow, QueueRow, RecordRow, TaskRow};
use codeq_core::settings::{Settings, SettingsV1};
use codeq_core::task_backoff::{Backoff, Growth};
use codeq_core::topic::{Policy, PolicyV1, PolicyV2};

use crate::harness::*;
use crate::mem::Mem;

const AT: Moment = Moment { now: 1_700_000_000_123, wall: 1_800_000_000_456 };
/// Version 1 of a group had one clock.
const V1_HEADER: usize = 9;

fn path_of(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/fixtures", name].iter().collect()
}

/// Reads a fixture, and never writes one: what older versions wrote cannot be written again.
fn read_stored(name: &str) -> Vec<u8> {
    let path = path_of(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads a fixture that this version can still write. If it is missing, `CODEQ_WRITE_FIXTURE=1` writes `bytes` first.
fn stored(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = path_of(name);
    if std::env::var_os("CODEQ_WRITE_FIXTURE").is_some() && !path.exists() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    read_stored(name)
}

fn old_settings() -> SettingsV1 {
    SettingsV1 {
        max_attempts: 5,
        backoff: Backoff { growth: Growth::Linear, base: 1, max: 2 },
        retention: DAY,
        callback_attempts: 5,
        callback_base: 2_000,
        callback_max: 60_000,
    }
}

fn every_command() -> Vec<Command> {
    let (tenant, worker, by, id) =
        (text("acme"), text("w1"), text("ops"), TaskId::new(Seq(77), 123_456));
    let task = NewTaskV1 {
        command: text("Résumé"),
        payload: Bytes::from_static(br#"{"n":9007199254740993}"#),
        priority: -3,
        max_attempts: Some(7),
        webhook: Some(text("https://example.com/h")),
        idempotency_key: Some(text("k")),
        run_at: Some(1_700_000_000_000),
        delay: Some(5),
        trace_parent: Some(text("00-a-b-01")),
        trace_state: Some(text("x=y")),
    };
    let policy = PolicyV1 {
        priority_tiers: vec![0, 5],
        max_attempts: Some(3),
        dead_letter_topic: Some(text("dead")),
        retention: 60_000,
        max_consumers: 4,
    };
    let settings = old_settings();
    let (t, w) = (|| tenant.clone(), || worker.clone());
    let callback = |completed_at, delivery| {
        Command::Callback(Callback { tenant: t(), id, completed_at, delivery })
    };
    let artifacts = vec![Artifact { name: text("a"), url: text("u") }];
    let submit = |outcome, artifacts| {
        Command::Submit(Submit { tenant: t(), id, worker: w(), outcome, artifacts })
    };
    let replay = |target| Command::Replay(Replay { tenant: t(), target, by: by.clone() });
    let purge = |target| {
        Command::Purge(Purge { tenant: t(), command: text("c"), target, limit: 9, by: by.clone() })
    };
    let claim =
        |from| Command::Claim(Claim { tenant: t(), worker: w(), from, lease: 1_000, count: 3 });
    vec![
        Command::ConfigureV1(settings),
        Command::EnqueueV1(EnqueueV1 {
            tenant: t(),
            tasks: vec![task],
            atomic: true,
            seed: u64::MAX,
        }),
        claim(Selector::Any),
        claim(Selector::Commands(vec![text("a"), text("b")])),
        Command::Heartbeat(Heartbeat { tenant: t(), id, worker: w(), extend: 30_000 }),
        submit(Outcome::Completed(Bytes::from_static(b"{}")), artifacts),
        submit(Outcome::Failed(text("no")), Vec::new()),
        Command::Nack(Nack {
            tenant: t(),
            id,
            worker: w(),
            delay: Some(0),
            reason: Some(text("later")),
            seed: 1,
        }),
        Command::Abandon(Abandon {
            tenant: t(),
            id,
            worker: w(),
            penalty: true,
            fence: Some(Fence(2)),
        }),
        Command::Cancel(Cancel { tenant: t(), id, by: by.clone() }),
        replay(ReplayTarget::One(id)),
        replay(ReplayTarget::Queue {
            command: text("c"),
            error_contains: Some(text("e")),
            after: Seq(4),
            limit: 5,
        }),
        purge(PurgeTarget::Dead),
        purge(PurgeTarget::Waiting),
        Command::Pause(Pause { tenant: t(), command: text("c"), paused: true }),
        Command::PutTopicV1(PutTopicV1 { tenant: t(), name: text("c"), policy }),
        Command::DeleteTopic(DeleteTopic { tenant: t(), name: text("c") }),
        Command::Cleanup(Cleanup { tenant: t(), before: 8, limit: 9 }),
        Command::Sweep(Sweep { limit: 512, seed: 3 }),
        callback(None, Delivery::Delivered),
        callback(Some(5), Delivery::Resend),
        callback(
            Some(6),
            Delivery::Failed { status: Some(503), error: text("busy"), retry_after: Some(7) },
        ),
    ]
}

#[test]
fn commands_of_version_1_are_read() {
    let commands = every_command();
    let mut bytes = Vec::new();
    begin_record(AT, &mut bytes);
    commands.iter().for_each(|command| push_command(command, &mut bytes));
    let old = read_stored("commands-v1");
    assert_eq!(read_record(&old), Ok((Moment::agreed(AT.now), commands.clone())));
    assert_eq!(old[V1_HEADER..], bytes[RECORD_HEADER_BYTES..], "still written the same way");
    let new = stored("commands-v2", &bytes);
    assert_eq!(read_record(&new), Ok((AT, commands)));
    assert_eq!(new, bytes, "and so is the group");
}

#[test]
fn record_commands_are_read() {
    let (tenant, name) = (text("acme"), text("s1"));
    let commands = vec![
        Command::PutRecord(PutRecord {
            tenant: tenant.clone(),
            kind: RecordKind::Subscription,
            name: name.clone(),
            value: Bytes::from_static(b"{}"),
            ttl: Some(300_000),
            expected: Some(2),
        }),
        Command::DeleteRecord(DeleteRecord {
            tenant,
            kind: RecordKind::WebhookSecret,
            name,
            expected: None,
        }),
    ];
    let mut bytes = Vec::new();
    begin_record(AT, &mut bytes);
    commands.iter().for_each(|command| push_command(command, &mut bytes));
    let stored = read_stored("record-commands-v1");
    assert_eq!(read_record(&stored), Ok((Moment::agreed(AT.now), commands)));
    assert_eq!(stored[V1_HEADER..], bytes[RECORD_HEADER_BYTES..], "still written the same way");
}

#[test]
fn bulk_commands_are_read() {
    let part = |work, from| {
        let (tenant, by) = (text("acme"), text("ops"));
        Command::BulkPartV1(BulkPartV1 { tenant, work, from, take: 3, look: 400, by })
    };
    let (command, error_contains) = (text("c"), Some(text("e")));
    let commands = vec![
        part(
            BulkWorkV1::Cleanup { before: 8 },
            BulkFrom { queue: Some(command.clone()), list: 2, after: Seq(9) },
        ),
        part(BulkWorkV1::PurgeDead { command: command.clone() }, BulkFrom::default()),
        part(BulkWorkV1::PurgeWaiting { command: command.clone() }, BulkFrom::default()),
        part(BulkWorkV1::Replay { command, error_contains }, BulkFrom::default()),
    ];
    let mut bytes = Vec::new();
    begin_record(AT, &mut bytes);
    commands.iter().for_each(|command| push_command(command, &mut bytes));
    let stored = stored("bulk-commands-v1", &bytes);
    assert_eq!(read_record(&stored), Ok((AT, commands)));
    assert_eq!(stored, bytes, "and are still written the same way");
}

/// What the filter of bulk operations and the retention of dead letters added.
#[test]
fn commands_with_filters_and_retention_of_dead_letters_are_read() {
    let part = |work, filter| {
        let (tenant, by, from) = (text("acme"), text("ops"), BulkFrom::default());
        Command::BulkPart(Box::new(BulkPart { tenant, work, filter, from, take: 3, look: 400, by }))
    };
    let command = || text("c");
    let filter = BulkFilter {
        error_contains: Some(text("e")),
        before: Some(8),
        after: Some(7),
        worker: Some(text("w1")),
    };
    let replay = |from| part(BulkWork::Replay { command: command(), from }, BulkFilter::default());
    let policy = PolicyV2 { retention: 5, dead_letter_retention: 6, ..PolicyV2::default() };
    let commands = vec![
        Command::Configure(Settings { dead_letter_retention: 9, ..Settings::default() }),
        Command::PutTopicV2(PutTopicV2 { tenant: text("acme"), name: command(), policy }),
        part(BulkWork::Cleanup { expired: true }, filter),
        part(BulkWork::PurgeDead { command: command() }, BulkFilter::default()),
        part(BulkWork::PurgeWaiting { command: command() }, BulkFilter::default()),
        replay(ReplayFrom::DeadLetters),
        replay(ReplayFrom::Failed),
        replay(ReplayFrom::Cancelled),
    ];
    let mut bytes = Vec::new();
    begin_record(AT, &mut bytes);
    commands.iter().for_each(|command| push_command(command, &mut bytes));
    let stored = stored("bulk-commands-v2", &bytes);
    assert_eq!(read_record(&stored), Ok((AT, commands)));
    assert_eq!(stored, bytes, "and are still written the same way");
}

#[test]
fn commands_that_reschedule_and_cancel_are_read() {
    let (tenant, by, id) = (text("acme"), text("ops"), TaskId::new(Seq(77), 123_456));
    let reschedule = |priority, when| {
        let (tenant, by) = (tenant.clone(), by.clone());
        Command::Reschedule(Reschedule { tenant, id, priority, when, by })
    };
    let cancel = |running| {
        let work = BulkWork::Cancel { command: text("c"), running };
        let (tenant, by, filter) = (tenant.clone(), by.clone(), BulkFilter::default());
        let from = BulkFrom { queue: None, list: 1, after: Seq(9) };
        Command::BulkPart(Box::new(BulkPart { tenant, work, filter, from, take: 3, look: 400, by }))
    };
    let commands = vec![
        reschedule(Some(-1), None),
        reschedule(None, Some(RunWhen::After(5))),
        reschedule(Some(9), Some(RunWhen::At(1_700_000_000_000))),
        cancel(false),
        cancel(true),
    ];
    let mut bytes = Vec::new();
    begin_record(AT, &mut bytes);
    commands.iter().for_each(|command| push_command(command, &mut bytes));
    let stored = stored("operator-commands-v1", &bytes);
    assert_eq!(read_record(&stored), Ok((AT, commands)));
    assert_eq!(stored, bytes, "and are still written the same way");
}

/// A log of version 1 that never sets its settings kept dead letters for a day, and still does.
#[test]
fn an_old_log_gives_the_old_outcome() {
    let (settings, policy) = (|h: &Harness| h.state.settings().clone(), PolicyV1::default());
    let expires = |h: &Harness, id: TaskId| {
        let row = TaskRow::load(&h.kv, keys::task(id.seq())).unwrap().unwrap();
        row.finish.unwrap().expires_at - h.now
    };
    let mut h = Harness::new();
    let dead = h.dead(task("a"));
    assert_eq!(expires(&h, dead.id), DAY);
    let SettingsV1 { backoff, .. } = old_settings();
    h.apply(Command::ConfigureV1(SettingsV1 { retention: HOUR, ..old_settings() }));
    assert_eq!((settings(&h).backoff, settings(&h).dead_letter_retention), (backoff, HOUR));
    let dead = h.dead(task("a"));
    assert_eq!(expires(&h, dead.id), HOUR);
    let policy = PolicyV1 { retention: 2 * HOUR, ..policy };
    h.apply(Command::PutTopicV1(PutTopicV1 { tenant: text(T), name: text("a"), policy }));
    let dead = h.dead(task("a"));
    assert_eq!(expires(&h, dead.id), 2 * HOUR);
    h.finish();
}

#[test]
fn commands_under_a_named_lease_are_read() {
    let (tenant, worker, id) = (text("acme"), text("w1"), TaskId::new(Seq(77), 123_456));
    let (t, w) = (|| tenant.clone(), || worker.clone());
    let actions = [
        LeaseAction::Heartbeat(Heartbeat { tenant: t(), id, worker: w(), extend: 30_000 }),
        LeaseAction::Submit(Submit {
            tenant: t(),
            id,
            worker: w(),
            outcome: Outcome::Both {
                completed: true,
                result: Bytes::from_static(b"{}"),
                error: text("half"),
            },
            artifacts: Vec::new(),
        }),
        LeaseAction::Nack(Nack {
            tenant: t(),
            id,
            worker: w(),
            delay: None,
            reason: None,
            seed: 1,
        }),
        LeaseAction::Abandon(Abandon { tenant: t(), id, worker: w(), penalty: true, fence: None }),
    ];
    let of = |(n, action)| {
        let (fence, instance) = (Some(Fence(n)), Some(text("w1/a")));
        Command::UnderLease(UnderLease { fence, instance, action: Box::new(action) })
    };
    let commands: Vec<Command> = (7..).zip(actions).map(of).collect();
    let mut bytes = Vec::new();
    begin_record(AT, &mut bytes);
    commands.iter().for_each(|command| push_command(command, &mut bytes));
    let stored = stored("lease-commands-v1", &bytes);
    assert_eq!(read_record(&stored), Ok((AT, commands)));
    assert_eq!(stored, bytes, "and are still written the same way");
}

#[test]
fn commands_and_keys_that_compare_values_are_read() {
    let task = NewTaskV1 {
        command: text("c"),
        payload: Bytes::from_static(b"{\"n\":1}"),
        idempotency_key: Some(text("k")),
        ..NewTaskV1::default()
    };
    let fingerprints = vec![fingerprint_by_value(&task.command, &task.payload)];
    let enqueue = EnqueueV1 { tenant: text("acme"), tasks: vec![task], atomic: true, seed: 5 };
    let commands = vec![Command::EnqueueByValueV1(EnqueueByValueV1 { enqueue, fingerprints })];
    let mut bytes = Vec::new();
    begin_record(AT, &mut bytes);
    commands.iter().for_each(|command| push_command(command, &mut bytes));
    let group = stored("enqueue-by-value-v1", &bytes);
    assert_eq!(read_record(&group), Ok((AT, commands)));
    assert_eq!(group, bytes, "and are still written the same way");
    for (name, by_value) in [("idempotency-row-v1", false), ("idempotency-row-v2", true)] {
        let (id, created_at) = (TaskId::new(Seq(77), 123_456), AT.wall);
        let gone = Some(codeq_core::place::Place::Completed);
        let row = IdempotencyRow { id, created_at, fingerprint: u128::MAX / 3, gone, by_value };
        let stored = stored(name, &row.encode());
        assert_eq!(IdempotencyRow::decode(1, &stored).unwrap(), row);
        assert_eq!(stored, row.encode(), "and is still written the same way");
    }
}

/// What the maximum run time added.
#[test]
fn commands_and_rows_with_a_maximum_run_time_are_read() {
    let limited = NewTask { max_run: Some(60_000), ..keyed("c", "k") };
    let enqueue = |task| Enqueue { tenant: text("acme"), tasks: vec![task], atomic: true, seed: 5 };
    let policy = Policy { retention: 5, max_run: 9_000, ..Policy::default() };
    let commands = vec![
        Command::Enqueue(enqueue(task("c"))),
        Command::Enqueue(enqueue(limited)).current(),
        Command::PutTopic(PutTopic { tenant: text("acme"), name: text("c"), policy }),
    ];
    let mut bytes = Vec::new();
    begin_record(AT, &mut bytes);
    commands.iter().for_each(|command| push_command(command, &mut bytes));
    let group = stored("max-run-commands-v1", &bytes);
    assert_eq!(read_record(&group), Ok((AT, commands)));
    assert_eq!(group, bytes, "and are still written the same way");
    let mut h = Harness::new();
    let run = h.running(NewTask { max_run: Some(60_000), ..task("a") });
    let row = TaskRow::load(&h.kv, keys::task(run.id.seq())).unwrap().unwrap();
    assert_eq!((row.max_run, row.run_limit, row.run_until), (60_000, 60_000, h.now + 60_000));
    let stored = stored("task-row-v3", &row.encode());
    assert_eq!(TaskRow::decode(1, &stored).unwrap(), row);
    assert_eq!(stored, row.encode(), "and is still written the same way");
    let newer = [&[4], &stored[1..]].concat();
    let refused = TaskRow::decode(1, &newer).unwrap_err().to_string();
    assert!(refused.contains("version 4"), "{refused}");
}

/// Enqueues of older logs give the tasks that they always gave.
#[test]
fn an_old_enqueue_creates_the_same_task() {
    let old = NewTaskV1 {
        command: text("a"),
        payload: Bytes::from_static(b"{}"),
        idempotency_key: Some(text("k")),
        max_attempts: Some(2),
        ..NewTaskV1::default()
    };
    let enqueue = EnqueueV1 { tenant: text(T), tasks: vec![old], atomic: false, seed: 5 };
    let fingerprints = vec![fingerprint_by_value("a", b"{}")];
    let by_value = EnqueueByValueV1 { enqueue: enqueue.clone(), fingerprints };
    let new = Enqueue::from(enqueue.clone());
    let pairs = [
        (Command::EnqueueV1(enqueue), Command::Enqueue(new.clone())),
        (Command::EnqueueByValueV1(by_value), Command::Enqueue(new).current()),
    ];
    for (old, new) in pairs {
        let (mut first, mut second) = (Harness::new(), Harness::new());
        assert_eq!(first.apply(old), second.apply(new));
        assert_eq!(first.digest(), second.digest());
        first.finish();
    }
}

#[test]
fn record_rows_are_read() {
    let row = RecordRow {
        kind: RecordKind::WebhookSecret,
        tenant: text("acme"),
        name: text("current"),
        value: Bytes::from_static(b"value"),
        revision: 3,
        created_at: 1_700_000_000_000,
        updated_at: 1_700_000_000_123,
        expires_at: Some(1_800_000_000_000),
    };
    let stored = stored("record-row-v1", &row.encode());
    assert_eq!(RecordRow::decode(1, &stored).unwrap(), row);
    assert_eq!(stored, row.encode(), "and is still written the same way");
}

/// A small shard with a task in every place except `Failed`.
fn small_shard() -> Harness {
    let mut h = Harness::new();
    h.put_topic("topic", Policy { max_consumers: 2, ..Policy::default() });
    h.add(keyed("a", "k"));
    h.add(late("a", 60_000));
    h.running(task("b"));
    h.done(hooked("c"));
    h.dead(tries("d", 1));
    h.state.write_back(&mut h.kv);
    h
}

/// The rows, table by table.
fn all_rows(kv: &Mem) -> Vec<u8> {
    let mut bytes = Vec::new();
    for table in Table::ALL {
        for (key, value) in kv.rows(table) {
            bytes.push(table as u8);
            bytes.extend_from_slice(&key.to_le_bytes());
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(value);
        }
    }
    bytes
}

/// The rows of an older version's fixture.
fn kv_of(name: &str) -> Mem {
    let bytes = read_stored(name);
    let mut kv = Mem::default();
    let mut rest = &bytes[..];
    while let Some((table, tail)) = rest.split_first() {
        let (key, tail) = tail.split_first_chunk::<16>().unwrap();
        let (length, tail) = tail.split_first_chunk::<4>().unwrap();
        let (value, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
        let table = Table::ALL[usize::from(*table)];
        kv.put(table, Key::from_le_bytes(*key), Bytes::copy_from_slice(value));
        rest = tail;
    }
    kv
}

#[test]
fn rows_are_written_as_before() {
    // The same history produces the same rows; a changed row format shows here first.
    let bytes = all_rows(&small_shard().kv);
    assert_eq!(stored("rows-v4", &bytes), bytes);
}

/// Versions before 4 counted cancelled tasks as failed.
#[test]
fn cancelled_tasks_of_version_3_are_counted() {
    let mut h = Harness::new();
    for _ in 0..2 {
        let cancelled = h.add(task("a")).id;
        h.cancel(cancelled);
    }
    let failed = h.running(task("a")).id;
    h.submit(failed, Outcome::Failed(text("no")));
    h.state.write_back(&mut h.kv);
    let counts = h.stats("a").unwrap().counts;
    assert_eq!((counts.failed, counts.cancelled, counts.total()), (1, 2, 3));
    let rows: Vec<_> = h.kv.rows(Table::Queue).map(|(key, row)| (key, row.clone())).collect();
    for (key, row) in rows {
        let mut old = QueueRow::decode(key, &row).unwrap();
        old.counts.failed += std::mem::take(&mut old.counts.cancelled);
        // The counter of cancelled tasks is the last field, and 0 takes one byte.
        let mut bytes = old.encode().to_vec();
        bytes[0] = 3;
        assert_eq!(bytes.pop(), Some(0));
        h.kv.put(Table::Queue, key, bytes.into());
    }
    let mut state = State::load(&h.kv, ShardId(0), 1).unwrap();
    let counted = |state: &State| state.queues_of(T).map(|(_, row)| row.counts).next();
    assert_eq!(counted(&state), Some(counts));
    state.write_back(&mut h.kv);
    let state = State::load(&h.kv, ShardId(0), 1).unwrap();
    assert_eq!(counted(&state), Some(counts), "and stored that way");
}

/// Version 3 had no maximum run time, neither in task rows nor in the policies of queue rows.
#[test]
fn rows_of_version_3_are_read() {
    let mut kv = kv_of("rows-v3");
    let mut state = State::load(&kv, ShardId(0), 1).unwrap();
    state.upgrade(&mut kv).unwrap();
    let fresh = small_shard().kv;
    for table in Table::ALL {
        let (old, new): (Vec<_>, Vec<_>) = (kv.rows(table).collect(), fresh.rows(table).collect());
        assert_eq!(old.len(), new.len(), "{table:?}");
        for ((key, old), (same, new)) in old.into_iter().zip(new) {
            assert_eq!(key, same);
            match table {
                Table::Task => {
                    let row = TaskRow::decode(key, old).unwrap();
                    assert_eq!(row, TaskRow::decode(key, new).unwrap());
                    assert_eq!((row.max_run, row.run_limit, row.run_until), (0, 0, 0));
                }
                Table::Queue => assert_eq!(
                    QueueRow::decode(key, old).unwrap(),
                    QueueRow::decode(key, new).unwrap()
                ),
                _ => assert_eq!(old, new, "{table:?}"),
            }
        }
    }
}

/// Version 2 had no retention of dead letters, neither in the shard's own row nor in queue rows.
#[test]
fn rows_of_version_2_are_read() {
    let mut kv = kv_of("rows-v2");
    let mut state = State::load(&kv, ShardId(0), 1).unwrap();
    state.upgrade(&mut kv).unwrap();
    assert_eq!(state.settings(), &Settings::of_empty_shard());
    let fresh = small_shard().kv;
    let new = fresh.rows(Table::Queue);
    let new: BTreeMap<_, _> =
        new.map(|(key, bytes)| (key, QueueRow::decode(key, bytes).unwrap())).collect();
    for (key, bytes) in kv.rows(Table::Queue) {
        assert_eq!(Some(&QueueRow::decode(key, bytes).unwrap()), new.get(&key));
    }
    assert_eq!(kv.len(Table::Queue), new.len());
    state.write_back(&mut kv);
    assert_eq!(MetaRow::load(&kv, keys::META).unwrap(), MetaRow::load(&fresh, keys::META).unwrap());
}

/// Version 1 had one clock, did not count the bytes of finished tasks, and had no lists of callbacks.
#[test]
fn rows_of_version_1_are_read_and_brought_up_to_date() {
    let mut kv = kv_of("rows-v1");
    let mut state = State::load(&kv, ShardId(0), 1).unwrap();
    state.upgrade(&mut kv).unwrap();
    state.write_back(&mut kv);
    let new = small_shard().kv;
    for table in Table::ALL {
        let (old, new): (Vec<_>, Vec<_>) = (kv.rows(table).collect(), new.rows(table).collect());
        if table == Table::Timer {
            // The value of a callback's timer begins with a number of its receiver, which only decides whose turn it is.
            // Old timers keep the number that they had.
            let without_receiver =
                |(key, value): &(Key, &Bytes)| (*key, value.slice(8.min(value.len())..));
            let of = |rows: &[(Key, &Bytes)]| rows.iter().map(without_receiver).collect::<Vec<_>>();
            assert_eq!(of(&old), of(&new));
            continue;
        }
        if table != Table::Task {
            assert_eq!(old, new, "{table:?}");
            continue;
        }
        // Rows of tasks stay as they are until they change.
        assert_eq!(old.len(), new.len());
        for ((key, old), (same, new)) in old.into_iter().zip(new) {
            let row = TaskRow::decode(key, old).unwrap();
            assert_eq!((key, &row), (same, &TaskRow::decode(key, new).unwrap()));
            assert_eq!((row.run_at, row.created_at_engine), (0, row.created_at));
        }
    }
    assert_eq!(state.meta().moment(), Moment::agreed(state.now()));
}
