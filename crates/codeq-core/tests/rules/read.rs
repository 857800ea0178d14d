use std::borrow::Cow;
use std::cell::Cell;

use bytes::Bytes;
use codeq_core::command::{NewTask, Outcome};
use codeq_core::id::TaskId;
use codeq_core::kv::{Direction, Key, KvError, KvRead, Table};
use codeq_core::limits::{
    AHEAD_SCAN_MAX, ENQUEUE_PAYLOAD_BYTES_MAX, LIST_BYTES_MAX, LIST_SLICE_MAX, QUEUES_SLICE_MAX,
    WINDOW_MAX,
};
use codeq_core::place::{Place, Status, TaskState};
use codeq_core::read::{Ahead, ListQuery, Page, Reader};
use codeq_core::view::Task;

use crate::harness::*;
use crate::mem::Mem;

fn all() -> ListQuery {
    ListQuery { tenant: text(T), limit: 100, ..ListQuery::default() }
}

fn ids(h: &Harness, query: ListQuery) -> Vec<TaskId> {
    let page = h.list(query);
    assert_eq!(page.next, None, "one page");
    page.items.iter().map(|task| task.id).collect()
}

/// One task in each place, in two queues, oldest first.
fn zoo(h: &mut Harness) -> Vec<Task> {
    let done = h.done(task("a"));
    h.pass(10);
    let dead = h.dead(task("B"));
    h.pass(10);
    let failed = h.add(task("a"));
    h.cancel(failed.id);
    h.pass(10);
    let running = h.running(task("b"));
    h.pass(10);
    let delayed = h.add(late("a", HOUR));
    h.pass(10);
    let pending = h.add(task("b"));
    [done, dead, failed, running, delayed, pending].iter().map(|task| h.get(task.id)).collect()
}

#[test]
fn newest_first_over_all_queues_and_places() {
    let mut h = Harness::new();
    let zoo = zoo(&mut h);
    let places: Vec<Place> = zoo.iter().map(|task| task.place).collect();
    use Place::*;
    assert_eq!(places, [Completed, Dead, Failed, InProgress, Delayed, Pending]);
    let newest: Vec<_> = zoo.iter().rev().cloned().collect();
    assert_eq!(h.list(all()).items, newest);
    h.finish();
}

#[test]
fn by_command_status_and_dead_letter() {
    let mut h = Harness::new();
    let zoo = zoo(&mut h);
    let pick = |at: &[usize]| at.iter().map(|at| zoo[*at].id).collect::<Vec<_>>();
    let command = |name| ListQuery { command: Some(text(name)), ..all() };
    assert_eq!(ids(&h, command("A")), pick(&[4, 2, 0]));
    assert_eq!(ids(&h, command("b")), pick(&[5, 3, 1]));
    assert_eq!(ids(&h, command("unknown")), []);
    let status = |status| ListQuery { status: Some(status), ..all() };
    assert_eq!(ids(&h, status(Status::Pending)), pick(&[5, 4]));
    assert_eq!(ids(&h, status(Status::InProgress)), pick(&[3]));
    assert_eq!(ids(&h, status(Status::Completed)), pick(&[0]));
    assert_eq!(ids(&h, status(Status::Failed)), pick(&[2, 1]));
    let both = ListQuery { command: Some(text("b")), ..status(Status::Failed) };
    assert_eq!(ids(&h, both), pick(&[1]));
    let dead = ListQuery { dead_only: true, ..all() };
    assert_eq!(ids(&h, dead), pick(&[1]));
}

#[test]
fn by_worker_error_and_time() {
    let mut h = Harness::new();
    let zoo = zoo(&mut h);
    let pick = |at: &[usize]| at.iter().map(|at| zoo[*at].id).collect::<Vec<_>>();
    let worker = ListQuery { worker: Some(text(W)), ..all() };
    assert_eq!(ids(&h, worker), pick(&[3, 0]));
    let error = |part| ListQuery { error_contains: Some(text(part)), ..all() };
    assert_eq!(ids(&h, error("oo")), pick(&[1]));
    assert_eq!(ids(&h, error("CANCEL")), pick(&[2]));
    let created = |from: usize, before: usize| ListQuery {
        created_from: Some(zoo[from].created_at),
        created_before: Some(zoo[before].created_at),
        ..all()
    };
    assert_eq!(ids(&h, created(1, 4)), pick(&[3, 2, 1]));
    assert_eq!(ids(&h, created(3, 3)), []);
    let before_all = ListQuery { created_before: Some(zoo[0].created_at), ..all() };
    assert_eq!(ids(&h, before_all), []);
    let from_later = ListQuery { created_from: Some(h.now + 1), ..all() };
    assert_eq!(ids(&h, from_later), []);
}

#[test]
fn time_ranges_work_although_tasks_were_removed() {
    let mut h = Harness::new();
    let mut kept = Vec::new();
    for round in 0..60 {
        if round % 3 == 0 {
            kept.push(h.add(task("kept")));
        } else {
            h.done(task("gone"));
        }
        h.pass(10);
    }
    h.cleanup(T, h.now, 1_000);
    for (at, task) in kept.iter().enumerate() {
        for (edge, count) in [(0, at), (1, at + 1)] {
            let query = ListQuery { created_before: Some(task.created_at + edge), ..all() };
            let wanted: Vec<_> = kept[..count].iter().rev().map(|t| t.id).collect();
            assert_eq!(ids(&h, query), wanted);
        }
    }
}

#[test]
fn pages_neither_skip_nor_repeat() {
    let mut h = Harness::new();
    for round in 0..50 {
        let command = ["a", "b", "c"][round % 3];
        match round % 4 {
            0 => drop(h.done(task(command))),
            1 => drop(h.dead(task(command))),
            _ => drop(h.add(late(command, HOUR))),
        }
    }
    let wanted: Vec<_> = h.list(all()).items.iter().map(|t| t.id).collect();
    assert_eq!(wanted.len(), 50);
    for limit in [1, 3, 7, 49, 50] {
        let (mut got, mut below) = (Vec::new(), Some(wanted[0].seq().next()));
        while below.is_some() {
            let page = h.list(ListQuery { limit, below, ..all() });
            assert!(page.items.len() <= limit);
            got.extend(page.items.iter().map(|t| t.id));
            below = page.next;
            // Tasks created meanwhile do not disturb the pages that follow.
            h.add(task("new"));
        }
        assert_eq!(got, wanted, "limit {limit}");
    }
}

#[test]
fn a_filter_that_matches_nothing_is_searched_in_bounded_pages() {
    let mut h = Harness::new();
    h.enqueue_all(T, vec![task("a"); 2 * LIST_SLICE_MAX], false);
    h.add(task("b"));
    let nobody = ListQuery { worker: Some(text("nobody")), ..all() };
    let (mut looked, mut below) = (Vec::new(), None);
    loop {
        let page = h.list(ListQuery { below, ..nobody.clone() });
        assert!(page.items.is_empty());
        looked.push(page.looked);
        below = page.next;
        if below.is_none() {
            break;
        }
    }
    assert_eq!(looked, [LIST_SLICE_MAX, LIST_SLICE_MAX, 1]);
}

/// Counts the scans and the rows that they return.
struct Counting<'a> {
    kv: &'a Mem,
    scans: Cell<usize>,
    rows: Cell<usize>,
}

impl KvRead for Counting<'_> {
    fn borrow(&self, table: Table, key: Key) -> Result<Option<Cow<'_, Bytes>>, KvError> {
        self.kv.borrow(table, key)
    }

    fn scan(
        &self,
        table: Table,
        from: Key,
        to: Key,
        direction: Direction,
        limit: usize,
        out: &mut Vec<(Key, Bytes)>,
    ) -> Result<(), KvError> {
        let before = out.len();
        self.kv.scan(table, from, to, direction, limit, out)?;
        self.scans.set(self.scans.get() + 1);
        self.rows.set(self.rows.get() + out.len() - before);
        Ok(())
    }
}

#[test]
fn a_list_over_many_queues_is_read_in_bounded_slices() {
    for queues in [10, LIST_SLICE_MAX, LIST_SLICE_MAX + 1, 3 * LIST_SLICE_MAX] {
        let mut h = Harness::new();
        let mut wanted = Vec::new();
        for n in 0..2 * queues {
            wanted.push(h.add(task(&format!("q{:05}", n % queues))).id);
            h.add_for("other", task("q"));
        }
        h.pass(5);
        let late = h.add(task("q00003"));
        wanted.reverse();
        let before = ListQuery { created_before: Some(late.created_at), ..all() };
        let dead = h.dead(task("dead"));
        assert_eq!(ids(&h, ListQuery { dead_only: true, ..all() }), [dead.id]);
        let (mut got, mut below) = (Vec::new(), None);
        loop {
            let kv = Counting { kv: &h.kv, scans: Cell::new(0), rows: Cell::new(0) };
            let reader = Reader { state: &h.state, kv: &kv };
            let page = reader.list(&ListQuery { below, limit: 1_000, ..before.clone() }).unwrap();
            let (scans, rows) = (kv.scans.get(), kv.rows.get());
            assert!(
                scans <= 2 * LIST_SLICE_MAX + 32 && rows <= 4 * LIST_SLICE_MAX,
                "{scans} {rows}"
            );
            assert!(page.looked <= LIST_SLICE_MAX);
            got.extend(page.items.iter().map(|task| task.id));
            below = page.next;
            if below.is_none() {
                break;
            }
        }
        assert_eq!(got, wanted, "{queues} queues");
    }
}

#[test]
fn the_numbers_of_many_queues_come_in_slices() {
    let mut h = Harness::new();
    let names: Vec<String> = (0..QUEUES_SLICE_MAX + 3).map(|n| format!("q{n:05}")).collect();
    for name in &names {
        h.add(task(name));
    }
    let first = h.reader().queues(T, None).unwrap();
    assert_eq!(first.len(), QUEUES_SLICE_MAX);
    let rest = h.reader().queues(T, first.last().map(|queue| &*queue.name)).unwrap();
    let got: Vec<_> = first.iter().chain(&rest).map(|queue| queue.name.to_string()).collect();
    assert_eq!(got, names);
}

#[test]
fn a_page_has_a_bounded_number_of_bytes_and_one_task_at_least() {
    let mut h = Harness::new();
    let sized = |bytes: usize| NewTask { payload: vec![b'1'; bytes].into(), ..task("a") };
    for _ in 0..9 {
        h.add(sized(ENQUEUE_PAYLOAD_BYTES_MAX));
        h.add(sized(1));
    }
    let (mut pages, mut got, mut below) = (0, 0, None);
    loop {
        let page = h.list(ListQuery { below, ..all() });
        let bytes: usize = page.items.iter().map(Task::bytes).sum();
        assert!(bytes <= LIST_BYTES_MAX && page.items.len() >= 2, "{bytes}");
        (pages, got, below) = (pages + 1, got + page.items.len(), page.next);
        if below.is_none() {
            break;
        }
    }
    assert_eq!((pages, got), (3, 18));
    let page = h.list(ListQuery { bytes: Some(1), ..all() });
    assert_eq!(page.items.len(), 1);
    assert!(page.next.is_some());
    // A task larger than a page gets a page of its own.
    h.add_now(sized(LIST_BYTES_MAX + 1));
    h.add(sized(1));
    let lengths = |page: &Page| page.items.iter().map(|t| t.payload.len()).collect::<Vec<_>>();
    let page = h.list(all());
    assert_eq!(lengths(&page), [1]);
    let page = h.list(ListQuery { below: page.next, ..all() });
    assert_eq!(lengths(&page), [LIST_BYTES_MAX + 1]);
    let page = h.list(ListQuery { below: page.next, ..all() });
    assert_eq!(lengths(&page)[..2], [1, ENQUEUE_PAYLOAD_BYTES_MAX]);
}

#[test]
fn numbers_of_a_queue() {
    let mut h = Harness::new();
    let first = h.add(urgent("A", 2)).created_at;
    h.pass(5);
    h.add(urgent("a", 1));
    h.add(late("a", HOUR));
    h.dead(urgent("a", 9));
    let stats = h.stats("a").expect("a queue");
    let counts = stats.counts;
    assert_eq!((counts.ready(), counts.delayed, counts.in_progress, counts.dead), (2, 1, 0, 1));
    assert_eq!((counts.pending[1], counts.pending[2], counts.live_bytes), (1, 1, 6));
    assert_eq!((&*stats.name, stats.oldest_ready_created_at), ("a", Some(first)));
    h.add(task("b"));
    h.add_for("x", task("c"));
    let names: Vec<_> = h.reader().queues(T, None).unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, [text("a"), text("b")]);
}

#[test]
fn the_tasks_before_a_pending_one_are_counted() {
    let mut h = Harness::new();
    h.every = 1_000;
    let long = WINDOW_MAX + 2 * AHEAD_SCAN_MAX + 3;
    let made: Vec<Task> = (0..long).map(|_| h.add(task("a"))).collect();
    h.add(urgent("a", 9));
    h.add(urgent("a", 3));
    h.add(urgent("b", 9));
    let exact = |older: usize| Ahead { higher_priority: 2, older: older as u64, exact: true };
    let ahead = |h: &Harness, at: usize| h.standing(made[at].id).ahead.unwrap();
    for at in [0, 1, WINDOW_MAX - 1, WINDOW_MAX, WINDOW_MAX + AHEAD_SCAN_MAX - 1, long - 1] {
        assert_eq!(ahead(&h, at), exact(at));
    }
    let last = long - AHEAD_SCAN_MAX;
    assert_eq!(ahead(&h, last), exact(last), "counted from the end");
    let least = (WINDOW_MAX + AHEAD_SCAN_MAX) as u64;
    let between = Ahead { higher_priority: 2, older: least, exact: false };
    assert_eq!(ahead(&h, last - 1), between, "too far from both ends");
    h.cancel(made[3].id);
    h.cancel(made[WINDOW_MAX + 1].id);
    assert_eq!(ahead(&h, WINDOW_MAX + 3), exact(WINDOW_MAX + 1));
    h.reload();
    assert_eq!(ahead(&h, 2), exact(2), "after a restart");
    assert_eq!(ahead(&h, long - 1), exact(long - 3));
    h.claims(&["a"], 12);
    let now = Ahead { higher_priority: 0, older: long as u64 - 13, exact: true };
    assert_eq!(ahead(&h, long - 1), now);
    let running = h.standing(made[0].id);
    assert_eq!((running.task.place, running.ahead), (Place::InProgress, None));
    assert_eq!(running.queue.counts.in_progress, 12);
}

#[test]
fn leases_are_read_in_slices() {
    let mut h = Harness::new();
    h.every = 1_000;
    for n in 0..LIST_SLICE_MAX + 50 {
        let name = if n % 2 == 0 { "even" } else { "odd" };
        h.running(task(name));
    }
    for n in 0..LIST_SLICE_MAX {
        h.add(task(&format!("idle-{n}")));
    }
    h.add_for("other", task("even"));
    h.claim_any("other").unwrap();
    let (mut from, mut all, mut slices) = (None, Vec::new(), 0);
    loop {
        let page = h.reader().leases(T, from.as_ref()).unwrap();
        assert!(page.workers.len() <= LIST_SLICE_MAX);
        slices += 1;
        all.extend(page.workers);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!((all.len(), slices), (LIST_SLICE_MAX + 50, 3));
    assert!(all.iter().all(|worker| **worker == *W));
}

#[test]
fn every_task_is_listed_in_exactly_one_state() {
    let mut h = Harness::new();
    let failed = h.running(task("a")).id;
    h.submit(failed, Outcome::Failed(text("no")));
    let cancelled = h.add(task("a")).id;
    h.cancel(cancelled);
    let (completed, dead) = (h.done(task("a")).id, h.dead(task("a")).id);
    let running = h.running(task("a")).id;
    let (ready, delayed) = (h.add(task("a")).id, h.add(late("a", HOUR)).id);
    let ids = [ready, delayed, running, completed, failed, cancelled, dead];
    let list = |state, status| {
        let query = ListQuery { tenant: text(T), state, status, limit: 9, ..ListQuery::default() };
        h.list(query).items.into_iter().map(|task| task.id).collect::<Vec<_>>()
    };
    for (state, id) in TaskState::ALL.into_iter().zip(ids) {
        assert_eq!(list(Some(state), None), [id], "{}", state.as_str());
    }
    assert_eq!(list(None, Some(Status::Failed)).len(), 3);
    assert_eq!(list(Some(TaskState::Dead), Some(Status::Failed)), [dead]);
    assert_eq!(list(Some(TaskState::Dead), Some(Status::Completed)), []);
    h.finish();
}
