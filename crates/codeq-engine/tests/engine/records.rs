//! Records of tenants: in one shard each, there after a restart, gone when they expire.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use codeq_core::command::{Command, DeleteRecord, PutRecord};
use codeq_core::effect::Effect;
use codeq_core::id::ShardId;
use codeq_core::record::{Record, RecordKind};
use codeq_core::reply::{Rejection, Reply};
use codeq_engine::records::RecordCursor;
use codeq_engine::route::record_shard;
use codeq_engine::{Engine, Observer, Options, SharedObserver};

use crate::harness::{block, small};
use crate::start::start;

const KIND: RecordKind = RecordKind::Subscription;

fn put(tenant: &str, name: &str) -> PutRecord {
    PutRecord {
        tenant: tenant.into(),
        kind: KIND,
        name: name.into(),
        value: Bytes::from(format!("{tenant}/{name}")),
        ttl: None,
        expected: Some(0),
    }
}

fn three(dir: &std::path::Path) -> Engine {
    start(dir, Options { shards: Some(3), ..small() }).unwrap()
}

fn all(engine: &Engine) -> BTreeSet<Bytes> {
    let mut seen = BTreeSet::new();
    let mut from = Some(RecordCursor::default());
    while let Some(cursor) = from {
        let page = block(engine.all_records(KIND, cursor)).unwrap();
        seen.extend(page.records.into_iter().map(|record: Record| record.value));
        from = page.next;
    }
    seen
}

#[test]
fn a_tenants_records_are_in_one_shard_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = three(dir.path());
    let tenants: Vec<Arc<str>> = (0..12).map(|n| Arc::from(format!("tenant-{n}"))).collect();
    let used: BTreeSet<ShardId> = tenants.iter().map(|tenant| record_shard(tenant, 3)).collect();
    assert_eq!(used, ShardId::all(3).collect());
    for tenant in &tenants {
        for name in ["a", "b"] {
            let reply = block(engine.propose(Command::PutRecord(put(tenant, name)))).unwrap();
            assert!(matches!(reply, Reply::Record(record) if record.revision == 1));
            let again = block(engine.propose(Command::PutRecord(put(tenant, name)))).unwrap();
            assert_eq!(again, Reply::Rejected(Rejection::RecordChanged));
        }
        let shard = record_shard(tenant, 3);
        assert_eq!(engine.peek(shard, |state| state.records_of(tenant, KIND).count()), Some(2));
    }
    assert_eq!(all(&engine).len(), 24);
    let gone = DeleteRecord {
        tenant: Arc::clone(&tenants[0]),
        kind: KIND,
        name: "a".into(),
        expected: Some(1),
    };
    assert_eq!(block(engine.propose(Command::DeleteRecord(gone))).unwrap(), Reply::Done);
    drop(engine);
    let engine = three(dir.path());
    assert_eq!(all(&engine).len(), 23);
    assert_eq!(block(engine.record(&tenants[0], KIND, "a")).unwrap(), None);
    let kept = block(engine.record(&tenants[1], KIND, "a")).unwrap().unwrap();
    assert_eq!((&*kept.name, kept.revision), ("a", 1));
    let listed = block(engine.records(&tenants[1], KIND)).unwrap();
    assert_eq!(listed.iter().map(|record| &*record.name).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(block(engine.records(&tenants[1], RecordKind::WebhookSecret)).unwrap(), []);
}

struct Told(mpsc::SyncSender<Arc<str>>);

impl Observer for Told {
    fn committed(&self, _shard: ShardId, effects: &[Effect]) {
        for effect in effects {
            if let Effect::RecordChanged { name, .. } = effect {
                self.0.send(Arc::clone(name)).unwrap();
            }
        }
    }
}

#[test]
fn an_expired_record_is_reported_to_the_observer() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, told) = mpsc::sync_channel(16);
    let observer = SharedObserver(Some(Arc::new(Told(sender))));
    let engine = start(dir.path(), Options { observer, ..small() }).unwrap();
    let short = PutRecord { ttl: Some(50), ..put("t", "short") };
    block(engine.propose(Command::PutRecord(short))).unwrap();
    let wait = std::time::Duration::from_secs(30);
    assert_eq!(&*told.recv_timeout(wait).unwrap(), "short", "the put");
    assert_eq!(&*told.recv_timeout(wait).unwrap(), "short", "the end");
    assert_eq!(block(engine.record(&"t".into(), KIND, "short")).unwrap(), None);
    assert_eq!(engine.peek(ShardId(0), |state| state.record_count()), Some(0));
}
