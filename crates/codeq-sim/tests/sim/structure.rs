//! The structural checkers accept intact rows and notice every single row that is lost or misplaced.

use bytes::Bytes;
use codeq_core::State;
use codeq_core::command::{
    Abandon, Claim, Command, Enqueue, Heartbeat, Millis, NewTask, Outcome, PutRecord, Selector,
    Submit,
};
use codeq_core::id::ShardId;
use codeq_core::keys;
use codeq_core::kv::for_each;
use codeq_core::kv::{Key, Kv, Table};
use codeq_core::moment::Moment;
use codeq_core::place::Place;
use codeq_core::record::RecordKind;
use codeq_core::reply::Reply;
use codeq_core::rows::TaskRow;
use codeq_core::view::Task;
use codeq_sim::invariants::check_all;
use codeq_store::MemStore;

struct Shard {
    state: State,
    store: MemStore,
    now: Millis,
}

impl Shard {
    fn apply(&mut self, command: Command) -> Reply {
        self.now += 1;
        let applied =
            self.state.apply(&mut self.store, Moment::agreed(self.now), &command, &mut Vec::new());
        applied.unwrap().reply
    }

    fn enqueue(&mut self, task: NewTask) {
        let tasks =
            vec![NewTask { command: "work".into(), payload: Bytes::from_static(b"{}"), ..task }];
        self.apply(Command::Enqueue(Enqueue { tenant: "a".into(), tasks, atomic: false, seed: 7 }));
    }

    fn claim(&mut self) -> Task {
        let claim = Claim {
            tenant: "a".into(),
            worker: "w".into(),
            from: Selector::Any,
            lease: 60_000,
            count: 1,
        };
        match self.apply(Command::Claim(claim)) {
            Reply::Claimed(mut tasks) => tasks.remove(0),
            other => panic!("{other:?}"),
        }
    }
}

/// A shard with a task in every place except `Failed`, with and without a key, a webhook and a history.
fn shard() -> Shard {
    let store = MemStore::new();
    let state = State::load(&store, ShardId(0), 1).unwrap();
    let mut shard = Shard { state, store, now: 1_000 };
    let hook = || Some("https://example.com".into());
    for (key, max_attempts) in [("done", 5), ("dead", 1), ("back", 5), ("running", 5)] {
        shard.enqueue(NewTask {
            idempotency_key: Some(key.into()),
            webhook: hook(),
            max_attempts: Some(max_attempts),
            max_run: Some(70_000),
            ..NewTask::default()
        });
    }
    let (tenant, worker) = ("a".into(), "w".into());
    let id = shard.claim().id;
    let outcome = Outcome::Completed(Bytes::from_static(b"{}"));
    shard.apply(Command::Submit(Submit { tenant, id, worker, outcome, artifacts: Vec::new() }));
    for _ in 0..2 {
        let (tenant, worker) = ("a".into(), "w".into());
        let id = shard.claim().id;
        shard.apply(Command::Abandon(Abandon { tenant, id, worker, penalty: true, fence: None }));
    }
    let (tenant, worker) = ("a".into(), "w".into());
    let id = shard.claim().id;
    shard.apply(Command::Heartbeat(Heartbeat { tenant, id, worker, extend: 90_000 }));
    shard.enqueue(NewTask { delay: Some(5_000), ..NewTask::default() });
    shard.enqueue(NewTask { run_at: Some(500), ..NewTask::default() });
    shard.enqueue(NewTask { run_at: Some(90_000), ..NewTask::default() });
    shard.enqueue(NewTask { priority: 9, ..NewTask::default() });
    for (name, ttl) in [("stays", None), ("goes", Some(60_000))] {
        shard.apply(Command::PutRecord(PutRecord {
            tenant: "a".into(),
            kind: RecordKind::Subscription,
            name: name.into(),
            value: Bytes::from_static(b"{}"),
            ttl,
            expected: None,
        }));
    }
    shard
}

fn rows(store: &MemStore, table: Table) -> Vec<(Key, Bytes)> {
    let mut rows = Vec::new();
    for_each(store, table, 0, Key::MAX, |key, value| {
        rows.push((key, Bytes::copy_from_slice(value)));
        Ok(())
    })
    .unwrap();
    rows
}

fn is_noticed(shard: &Shard, store: &MemStore) -> bool {
    check_all(&shard.state, store).map_or(true, |found| !found.is_empty())
}

#[test]
fn intact_rows_have_no_violations() {
    let shard = shard();
    let places: Vec<Place> = rows(&shard.store, Table::Task)
        .iter()
        .map(|(key, value)| TaskRow::decode(*key, value).unwrap().place)
        .collect();
    for place in [Place::Pending, Place::Delayed, Place::InProgress, Place::Completed, Place::Dead]
    {
        assert!(places.contains(&place), "{place:?}");
    }
    assert_eq!(check_all(&shard.state, &shard.store).unwrap(), []);
}

#[test]
fn every_lost_row_is_noticed() {
    let shard = shard();
    for table in Table::ALL {
        if matches!(table, Table::Queue | Table::Meta) {
            continue; // Only in memory between checkpoints.
        }
        let rows = rows(&shard.store, table);
        assert!(!rows.is_empty(), "{table:?}");
        for (key, _) in rows {
            let mut store = shard.store.clone();
            store.delete(table, key);
            assert!(is_noticed(&shard, &store), "{table:?} without {key:#x}");
        }
    }
}

#[test]
fn every_additional_row_is_noticed() {
    let shard = shard();
    for table in [
        Table::Body,
        Table::Task,
        Table::Pending,
        Table::Index,
        Table::Timer,
        Table::Outbox,
        Table::Record,
    ] {
        for (key, value) in rows(&shard.store, table) {
            let mut store = shard.store.clone();
            store.put(table, key + 100, value);
            assert!(is_noticed(&shard, &store), "{table:?} with a copy of {key:#x}");
        }
    }
}

#[test]
fn every_wrong_field_is_noticed() {
    type Change = fn(&mut TaskRow);
    let changes: [(&str, Change); 14] = [
        ("place", |row| {
            row.place = if row.place == Place::Failed { Place::Dead } else { Place::Failed }
        }),
        ("priority", |row| row.priority = (row.priority + 1) % 10),
        ("attempts", |row| row.attempts = row.max_attempts + 1),
        ("fence", |row| row.fence.0 += 1),
        ("size", |row| row.size += 1),
        ("visible_at", |row| row.visible_at += 1),
        ("run_at", |row| row.run_at += u64::from(row.run_at > 0)),
        ("lease", |row| row.lease = None),
        ("finish", |row| row.finish = None),
        ("has_webhook", |row| row.has_webhook = !row.has_webhook),
        ("has_key", |row| row.has_key = !row.has_key),
        ("max_run", |row| row.max_run += u64::from(row.run_limit > 0)),
        ("run_limit", |row| row.run_limit += 1),
        ("run_until", |row| row.run_until = if row.run_until > 0 { 1 } else { 0 }),
    ];
    let shard = shard();
    for (name, change) in changes {
        for (key, value) in rows(&shard.store, Table::Task) {
            let was = TaskRow::decode(key, &value).unwrap();
            let mut row = was.clone();
            change(&mut row);
            // The priority of a finished task is in no index.
            if row == was || (name == "priority" && was.place != Place::Pending) {
                continue;
            }
            let mut store = shard.store.clone();
            store.put(Table::Task, key, row.encode());
            assert!(
                is_noticed(&shard, &store),
                "{name} of {:?} task {}",
                was.place,
                keys::seq_of(key)
            );
        }
    }
}
