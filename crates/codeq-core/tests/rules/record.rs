//! Records: revisions, limits, expiry, and a model of them for the differential tests.

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::*;
use codeq_core::effect::Effect;
use codeq_core::kv::Table;
use codeq_core::limits::*;
use codeq_core::moment::Moment;
use codeq_core::record::{Record, RecordKind};
use codeq_core::reply::{Rejection, Reply};

use crate::harness::*;

const KIND: RecordKind = RecordKind::Subscription;
const SECRET: RecordKind = RecordKind::WebhookSecret;

/// The records of a shard, in the order of their last put.
#[derive(Debug, Default)]
pub struct RecordModel(pub Vec<(RecordKind, Record)>);

impl RecordModel {
    fn at(&self, now: Millis, kind: RecordKind, tenant: &str, name: &str) -> Option<usize> {
        let ours = |(of, record): &(RecordKind, Record)| {
            *of == kind && *record.tenant == *tenant && *record.name == *name
        };
        let live = |(_, record): &(RecordKind, Record)| record.expires_at.is_none_or(|at| at > now);
        self.0.iter().position(|known| ours(known) && live(known))
    }

    pub fn put(&mut self, at: Moment, c: &PutRecord) -> Reply {
        let Moment { now, wall } = at;
        let known = self.at(now, c.kind, &c.tenant, &c.name).map(|at| self.0[at].1.clone());
        let revision = known.as_ref().map_or(0, |known| known.revision);
        if c.expected.is_some_and(|wanted| wanted != revision) {
            return Reply::Rejected(Rejection::RecordChanged);
        }
        self.0
            .retain(|(kind, old)| (*kind, &old.tenant, &old.name) != (c.kind, &c.tenant, &c.name));
        let record = Record {
            tenant: c.tenant.clone(),
            name: c.name.clone(),
            value: c.value.clone(),
            revision: revision + 1,
            created_at: known.map_or(wall, |known| known.created_at),
            updated_at: wall,
            expires_at: c.ttl.map(|ttl| now + ttl),
        };
        self.0.push((c.kind, record.clone()));
        Reply::Record(Box::new(record))
    }

    pub fn delete(&mut self, now: Millis, c: &DeleteRecord) -> Reply {
        let Some(at) = self.at(now, c.kind, &c.tenant, &c.name) else {
            return Reply::Rejected(Rejection::NotFound);
        };
        if c.expected.is_some_and(|wanted| wanted != self.0[at].1.revision) {
            return Reply::Rejected(Rejection::RecordChanged);
        }
        self.0.remove(at);
        Reply::Done
    }

    pub fn sweep(&mut self, now: Millis, limit: u32) -> u32 {
        let mut removed = 0;
        while removed < limit {
            let ends =
                self.0.iter().enumerate().filter_map(|(at, (_, r))| Some((r.expires_at?, at)));
            let Some((end, at)) = ends.min() else { break };
            if end > now {
                break;
            }
            self.0.remove(at);
            removed += 1;
        }
        removed
    }

    /// The live records of a tenant and kind by name.
    pub fn list(&self, now: Millis, tenant: &str, kind: RecordKind) -> Vec<Record> {
        let ours = self.0.iter().filter(|(of, record)| *of == kind && *record.tenant == *tenant);
        let live = ours.filter(|(_, record)| record.expires_at.is_none_or(|at| at > now));
        let mut live: Vec<Record> = live.map(|(_, record)| record.clone()).collect();
        live.sort_by(|a, b| a.name.cmp(&b.name));
        live
    }
}

fn put(name: &str) -> PutRecord {
    PutRecord {
        tenant: text(T),
        kind: KIND,
        name: text(name),
        value: Bytes::from_static(b"v"),
        ttl: None,
        expected: None,
    }
}

fn delete(name: &str) -> DeleteRecord {
    DeleteRecord { tenant: text(T), kind: KIND, name: text(name), expected: None }
}

fn apply(h: &mut Harness, put: PutRecord) -> Record {
    match h.apply(Command::PutRecord(put)) {
        Reply::Record(record) => *record,
        other => panic!("{other:?}"),
    }
}

fn names(h: &Harness, tenant: &str, kind: RecordKind) -> Vec<Arc<str>> {
    let records = h.reader().records(&text(tenant), kind, h.now).unwrap();
    records.into_iter().map(|record| record.name).collect()
}

fn changed(h: &Harness, name: &str) -> bool {
    let wanted = Effect::RecordChanged { kind: KIND, tenant: text(T), name: text(name) };
    h.effects == [wanted]
}

#[test]
fn revisions_count_puts_and_guard_them() {
    let mut h = Harness::new();
    let refused_put = |h: &mut Harness, expected| {
        h.apply(Command::PutRecord(PutRecord { expected: Some(expected), ..put("a") }))
    };
    assert_eq!(refused_put(&mut h, 1), refused(Rejection::RecordChanged));
    let first = apply(&mut h, PutRecord { expected: Some(0), ..put("a") });
    assert!(changed(&h, "a"));
    assert_eq!((first.revision, first.created_at), (1, h.now));
    h.pass(5);
    assert_eq!(refused_put(&mut h, 0), refused(Rejection::RecordChanged));
    assert_eq!(refused_put(&mut h, 2), refused(Rejection::RecordChanged));
    let value = Bytes::from_static(b"other");
    let second = PutRecord { expected: Some(1), value: value.clone(), ..put("a") };
    let second = apply(&mut h, second);
    assert_eq!((second.revision, second.created_at), (2, first.created_at));
    assert_eq!((second.updated_at, &second.value), (h.now, &value));
    assert_eq!(apply(&mut h, put("a")).revision, 3);
    h.reload();
    let read = h.reader().record(&text(T), KIND, "a", h.now).unwrap().unwrap();
    assert_eq!((read.revision, read.value), (3, Bytes::from_static(b"v")));
    assert_eq!(h.rows(Table::Record), 1);
    h.finish();
}

#[test]
fn a_deleted_record_starts_anew() {
    let mut h = Harness::new();
    assert_eq!(h.apply(Command::DeleteRecord(delete("a"))), refused(Rejection::NotFound));
    apply(&mut h, put("a"));
    apply(&mut h, put("a"));
    let guarded = DeleteRecord { expected: Some(1), ..delete("a") };
    assert_eq!(h.apply(Command::DeleteRecord(guarded)), refused(Rejection::RecordChanged));
    assert_eq!(h.apply(Command::DeleteRecord(delete("a"))), Reply::Done);
    assert!(changed(&h, "a"));
    assert_eq!(h.rows(Table::Record), 0);
    assert_eq!(apply(&mut h, put("a")).revision, 1);
    h.finish();
}

#[test]
fn tenants_and_kinds_do_not_see_each_other() {
    let mut h = Harness::new();
    apply(&mut h, put("a"));
    apply(&mut h, PutRecord { tenant: text("other"), ..put("a") });
    apply(&mut h, PutRecord { kind: SECRET, ..put("b") });
    assert_eq!(names(&h, T, KIND), [text("a")]);
    assert_eq!(names(&h, T, SECRET), [text("b")]);
    assert_eq!(names(&h, "other", KIND), [text("a")]);
    assert_eq!(names(&h, "other", SECRET), []);
    let foreign = DeleteRecord { tenant: text("other"), kind: SECRET, ..delete("b") };
    assert_eq!(h.apply(Command::DeleteRecord(foreign)), refused(Rejection::NotFound));
    h.finish();
}

#[test]
fn an_expired_record_is_invisible_and_then_removed() {
    let mut h = Harness::new();
    let short = PutRecord { ttl: Some(1_000), ..put("a") };
    assert_eq!(apply(&mut h, short.clone()).expires_at, Some(h.now + 1_000));
    apply(&mut h, PutRecord { ttl: Some(9_000), ..put("b") });
    assert_eq!(h.state.next_deadline(), Some(h.now + 1_000));
    h.pass(999);
    assert_eq!(names(&h, T, KIND), [text("a"), text("b")]);
    h.pass(1);
    // Invisible to readers and writers before the sweep.
    assert_eq!(names(&h, T, KIND), [text("b")]);
    assert_eq!(h.reader().record(&text(T), KIND, "a", h.now).unwrap(), None);
    assert_eq!(h.apply(Command::DeleteRecord(delete("a"))), refused(Rejection::NotFound));
    assert_eq!(h.rows(Table::Record), 2);
    assert_eq!(h.sweep(512).removed, 1);
    assert!(changed(&h, "a"));
    assert_eq!(h.rows(Table::Record), 1);
    // A put in time extends the life; one that is too late starts over.
    h.pass(7_999);
    assert_eq!(apply(&mut h, PutRecord { ttl: Some(9_000), ..put("b") }).revision, 2);
    h.pass(8_999);
    assert_eq!(h.sweep(512).removed, 0);
    h.pass(1);
    let late = apply(&mut h, PutRecord { expected: Some(0), ..put("b") });
    assert_eq!((late.revision, late.created_at), (1, h.now));
    assert_eq!(h.state.next_deadline(), None);
    h.finish();
}

#[test]
fn a_sweep_is_bounded_over_tasks_and_records() {
    let mut h = Harness::new();
    h.done(task("a"));
    for name in ["a", "b", "c"] {
        apply(&mut h, PutRecord { ttl: Some(5), ..put(name) });
    }
    h.pass(2 * DAY);
    assert_eq!(h.sweep(2).removed, 2);
    assert_eq!(h.sweep(2).removed, 2);
    assert_eq!((h.rows(Table::Record), h.rows(Table::Task)), (0, 0));
    h.finish();
}

#[test]
fn fields_out_of_range_are_refused() {
    let mut h = Harness::new();
    let invalid = |field: &'static str| refused(Rejection::InvalidRecord { field: field.into() });
    for name in ["", "a\n", &"n".repeat(RECORD_NAME_BYTES_MAX + 1)] {
        assert_eq!(h.apply(Command::PutRecord(put(name))), invalid("name"));
    }
    let sized = |bytes| PutRecord { value: Bytes::from(vec![0; bytes]), ..put("a") };
    let too_large = sized(RECORD_VALUE_BYTES_MAX + 1);
    assert_eq!(h.apply(Command::PutRecord(too_large)), invalid("value"));
    apply(&mut h, sized(RECORD_VALUE_BYTES_MAX));
    for ttl in [0, RECORD_TTL_MS_MAX + 1] {
        let wrong = PutRecord { ttl: Some(ttl), ..put("a") };
        assert_eq!(h.apply(Command::PutRecord(wrong)), invalid("ttl"));
    }
    let nobody = PutRecord { tenant: text(""), ..put("a") };
    assert_eq!(h.apply(Command::PutRecord(nobody)), refused(Rejection::InvalidTenant));
    h.finish();
}

#[test]
fn a_tenant_has_a_bounded_number_of_each_kind() {
    let mut h = Harness::new();
    h.every = 500;
    for number in 0..RECORDS_PER_KIND_MAX {
        let ttl = (number == 0).then_some(1_000);
        apply(&mut h, PutRecord { ttl, ..put(&format!("r{number}")) });
    }
    let full = refused(Rejection::TooManyRecords { max: RECORDS_PER_KIND_MAX });
    assert_eq!(h.apply(Command::PutRecord(put("more"))), full);
    apply(&mut h, put("r5"));
    apply(&mut h, PutRecord { kind: SECRET, ..put("more") });
    apply(&mut h, PutRecord { tenant: text("other"), ..put("more") });
    // An expired record makes room before it is swept.
    h.pass(1_000);
    apply(&mut h, put("more"));
    assert_eq!(h.apply(Command::PutRecord(put("still more"))), full);
    h.finish();
}

#[test]
fn all_records_are_read_page_by_page() {
    let mut h = Harness::new();
    for number in 0..7 {
        let tenant = text(["a", "b"][number % 2]);
        let kind = [KIND, KIND, SECRET][number % 3];
        apply(&mut h, PutRecord { tenant, kind, ..put(&format!("r{number}")) });
    }
    let mut seen = Vec::new();
    let mut after = Some(Seq(0));
    while let Some(from) = after {
        let (records, next) = h.reader().all_records(KIND, h.now, from, 2).unwrap();
        seen.extend(records.into_iter().map(|record| record.name.to_string()));
        after = next;
    }
    assert_eq!(seen, ["r0", "r1", "r3", "r4", "r6"]);
    h.finish();
}

#[test]
fn a_value_is_never_printed() {
    let command = PutRecord { value: Bytes::from_static(b"hush-hush"), ..put("a") };
    let mut h = Harness::new();
    let record = apply(&mut h, command.clone());
    let printed = format!("{:?} {record:?}", Command::PutRecord(command));
    assert!(printed.contains("(9 bytes)") && !printed.contains("hush"), "{printed}");
}
