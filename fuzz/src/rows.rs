//! Rows, as the store holds them.

use codeq_core::State;
use codeq_core::command::{Claim, Command, Enqueue, NewTask, Outcome, PutRecord, Selector, Submit};
use codeq_core::id::ShardId;
use codeq_core::keys::{self, Seq};
use codeq_core::kv::{Key, Table, for_each};
use codeq_core::moment::Moment;
use codeq_core::record::RecordKind;
use codeq_core::reply::Reply;
use codeq_core::rows::{BodyRow, IdempotencyRow, MetaRow, OutboxRow, QueueRow, RecordRow, TaskRow};
use codeq_store::MemStore;

/// The first byte chooses the table. A row that decodes is encoded to bytes that decode to the same row.
pub fn run(data: &[u8]) {
    let Some((table, row)) = data.split_first() else { return };
    let key = keys::task(Seq(7));
    macro_rules! read {
        ($row:ty, $key:expr) => {
            if let Ok(row) = <$row>::decode($key, row) {
                let written = row.encode();
                let again = <$row>::decode($key, &written).map(|row| row.encode());
                assert_eq!(again.as_ref().ok(), Some(&written), "{again:?}");
            }
        };
    }
    match Table::ALL.get(usize::from(*table) % Table::ALL.len()) {
        Some(Table::Body) => read!(BodyRow<'_>, Seq(7)),
        Some(Table::Task) => read!(TaskRow, key),
        Some(Table::Idempotency) => read!(IdempotencyRow, key),
        Some(Table::Queue) => read!(QueueRow, key),
        Some(Table::Outbox) => read!(OutboxRow, key),
        Some(Table::Meta) => read!(MetaRow, key),
        Some(Table::Record) => read!(RecordRow, key),
        // The values of the other tables are numbers of fixed length, or empty.
        _ => {}
    }
}

/// The rows of a shard in which tasks were created, claimed and completed.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut store = MemStore::new();
    let mut state = State::load(&store, ShardId(0), 1).expect("an empty shard");
    let mut now = 1_000;
    let mut apply = |command| {
        now += 1;
        let applied = state.apply(&mut store, Moment::agreed(now), &command, &mut Vec::new());
        applied.expect("memory does not fail").reply
    };
    let tenant = || "acme".into();
    for key in ["one", "two"] {
        let task = NewTask {
            command: "resize".into(),
            payload: "{}".into(),
            idempotency_key: Some(key.into()),
            webhook: Some("https://example.com".into()),
            max_run: Some(60_000),
            ..NewTask::default()
        };
        let tasks = vec![task];
        apply(Command::Enqueue(Enqueue { tenant: tenant(), tasks, atomic: false, seed: 7 }));
    }
    let from = Selector::Commands(vec!["resize".into()]);
    let claim = Claim { tenant: tenant(), worker: "w".into(), from, lease: 60_000, count: 1 };
    if let Reply::Claimed(tasks) = apply(Command::Claim(claim)) {
        for task in tasks {
            let outcome = Outcome::Completed("{}".into());
            let (tenant, id, worker) = (tenant(), task.id, "w".into());
            apply(Command::Submit(Submit { tenant, id, worker, outcome, artifacts: Vec::new() }));
        }
    }
    apply(Command::PutRecord(PutRecord {
        tenant: tenant(),
        kind: RecordKind::Subscription,
        name: "s".into(),
        value: "{}".into(),
        ttl: Some(60_000),
        expected: None,
    }));
    let mut seeds = Vec::new();
    for (number, table) in Table::ALL.into_iter().enumerate() {
        let visited = for_each(&store, table, 0, Key::MAX, |_, row| {
            seeds.push([&[number as u8], row].concat());
            Ok(())
        });
        visited.expect("memory does not fail");
    }
    seeds
}
