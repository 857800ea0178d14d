use codeq_core::State;
use codeq_core::id::ShardId;
use codeq_core::keys;
use codeq_core::kv::{Kv, KvError, KvRead, Table};
use codeq_core::limits::WINDOW_MAX;

use crate::harness::*;

#[test]
fn a_reload_restores_every_task_in_its_place() {
    let mut h = Harness::new();
    let run = h.running(hooked("a"));
    let delayed = h.add(late("a", LEASE));
    let pending = h.add(keyed("b", "k"));
    let dead = h.dead(task("c"));
    let before = (h.digest(), h.state.next_deadline());
    h.reload();
    assert_eq!((h.digest(), h.state.next_deadline()), before);
    assert_eq!(h.claims(&["a", "b"], 9).iter().map(|t| t.id).collect::<Vec<_>>(), [pending.id]);
    h.pass(LEASE);
    assert!(matches!(h.heartbeat(run.id, LEASE), codeq_core::reply::Reply::Extended { .. }));
    assert_eq!(h.claim("a").map(|t| t.id), Some(delayed.id));
    h.pass(DAY);
    h.sweep(100);
    assert_eq!(h.find(T, dead.id), None);
    h.finish();
}

#[test]
fn a_reload_keeps_the_order_of_a_long_queue() {
    let mut h = Harness::new();
    h.every = 1_000;
    let made: Vec<_> = (0..2 * WINDOW_MAX + 7).map(|_| h.add(task("a")).id).collect();
    let mut got = Vec::new();
    while got.len() < made.len() {
        h.reload();
        got.extend(h.claims(&["a"], 300).iter().map(|task| task.id));
        // Room in the window, but a tail behind it: the new task goes to the tail.
        if got.len() == 300 {
            let last = h.add(urgent("a", 0)).id;
            h.cancel(last);
        }
    }
    assert_eq!(got, made);
    h.finish();
}

#[test]
fn damage_is_an_error_not_a_guess() {
    let fresh = || {
        let mut h = Harness::new();
        h.add(task("a"));
        h.running(task("b"));
        h.state.write_back(&mut h.kv);
        h
    };
    // A queue counts a task that does not exist.
    let mut h = fresh();
    let pending = h.kv.keys(Table::Pending);
    pending.iter().for_each(|key| h.kv.delete(Table::Pending, *key));
    let error = State::load(&h.kv, ShardId(0), 1).expect_err("damaged");
    assert!(matches!(error, KvError::Corrupt { table: Table::Pending, .. }));
    // A lease without a task.
    let mut h = fresh();
    let leased = keys::task(h.newest_running());
    h.kv.delete(Table::Task, leased);
    assert!(matches!(
        State::load(&h.kv, ShardId(0), 1),
        Err(KvError::Corrupt { table: Table::Index, .. })
    ));
    // A row that does not decode.
    for table in [Table::Queue, Table::Meta, Table::Task] {
        let mut h = fresh();
        for key in h.kv.keys(table) {
            let row = h.kv.get(table, key).expect("reads").expect("there");
            h.kv.put(table, key, row.slice(..row.len() - 1));
        }
        assert!(
            matches!(State::load(&h.kv, ShardId(0), 1), Err(KvError::Corrupt { .. })),
            "{table:?}"
        );
    }
    // A row of a later version.
    let mut h = fresh();
    for key in h.kv.keys(Table::Queue) {
        h.kv.put(Table::Queue, key, bytes::Bytes::from_static(&[9, 9]));
    }
    let error = State::load(&h.kv, ShardId(0), 1).expect_err("another version");
    assert!(error.to_string().contains("version 9"), "{error}");
}

impl Harness {
    fn newest_running(&self) -> Seq {
        let rows = self.kv.keys(Table::Index).into_iter().map(keys::index_parts);
        let code = codeq_core::place::Place::InProgress.index_code();
        let running = rows.filter(|(_, place, _)| *place == code).map(|(_, _, seq)| seq);
        running.max().expect("one runs")
    }
}
