use codeq_core::command::*;
use codeq_core::id::TaskId;
use codeq_core::kv::Table;
use codeq_core::limits::{BULK_LOOK_MAX, BULK_LOOK_MIN, BULK_TAKE_MAX};
use codeq_core::place::Place;
use codeq_core::reply::{BulkDone, Reply};
use codeq_core::settings::Settings;

use crate::harness::*;

/// An operation and the tasks it selects.
type Work = (BulkWork, BulkFilter);

fn all(work: BulkWork) -> Work {
    (work, BulkFilter::default())
}

fn finished_before(before: Millis) -> Work {
    let filter = BulkFilter { before: Some(before), ..BulkFilter::default() };
    (BulkWork::Cleanup { expired: false }, filter)
}

fn part(h: &mut Harness, work: Work, from: BulkFrom, take: u32, look: u32) -> BulkDone {
    let (tenant, by, (work, filter)) = (text(T), text("admin"), work);
    let part = BulkPart { tenant, work, filter, from, take, look, by };
    let predicted = h.reader().bulk(&part, h.now).unwrap();
    let predicted = BulkDone { done: predicted.numbers.len() as u64, next: predicted.next };
    h.kv.reads.set(0);
    match h.apply(Command::BulkPart(Box::new(part))) {
        Reply::BulkPart(done) => {
            assert_eq!(done, predicted, "a dry run says what the run does");
            done
        }
        other => panic!("{other:?}"),
    }
}

/// All parts of an operation: how many tasks each touched, and how many task rows it read.
fn parts(h: &mut Harness, work: &Work, take: u32, look: u32) -> Vec<(u64, usize)> {
    let (mut all, mut from) = (Vec::new(), Some(BulkFrom::default()));
    while let Some(at) = from {
        let done = part(h, work.clone(), at, take, look);
        all.push((done.done, h.kv.reads.get()));
        from = done.next;
        assert!(all.len() < 10_000, "it makes no progress");
    }
    all
}

#[test]
fn a_cleanup_over_many_queues_looks_at_a_bounded_number_of_rows() {
    let mut h = Harness::new();
    h.every = 10_000;
    for queue in 0..100 {
        for _ in 0..20 {
            // Its callback is still due, so it must stay: much to look at and nothing to do.
            h.done(hooked(&format!("q{queue:03}")));
        }
    }
    h.pass(1);
    let work = finished_before(h.now);
    let parts = parts(&mut h, &work, u32::MAX, u32::MAX);
    let most = parts.iter().map(|(_, reads)| *reads).max().unwrap();
    assert!(most <= BULK_LOOK_MAX as usize, "one part read {most} tasks");
    assert_eq!(parts.iter().map(|(_, reads)| reads).sum::<usize>(), 2_000, "each is seen once");
    assert_eq!(parts.len(), 2_100_usize.div_ceil(BULK_LOOK_MAX as usize), "queues are work too");
    h.finish();
}

#[test]
fn the_parts_of_a_cleanup_remove_all_that_is_old_and_nothing_else() {
    let mut h = Harness::new();
    h.every = 50;
    for round in 0..90 {
        let queue = format!("q{}", round % 30);
        match round % 5 {
            0 => drop(h.dead(tries(&queue, 1))),
            1 => drop(h.add(task(&queue))),
            2 => {
                let made = h.add(task(&queue));
                h.cancel(made.id);
            }
            _ => drop(h.done(task(&queue))),
        }
    }
    h.pass(1);
    let kept = h.done(task("late"));
    let work = finished_before(h.now);
    let parts = parts(&mut h, &work, 7, BULK_LOOK_MIN);
    assert!(parts.len() > 10 && parts.iter().all(|(done, _)| *done <= 7), "{parts:?}");
    assert_eq!(parts.iter().map(|(done, _)| done).sum::<u64>(), 72);
    assert_eq!(h.kv.len(Table::Task), 19, "the pending ones and the late one");
    h.get(kept.id);
    h.finish();
}

#[test]
fn a_replay_and_a_purge_go_on_where_they_stopped() {
    let mut h = Harness::new();
    h.every = 500;
    for n in 0..40 {
        let dead = if n % 10 == 0 { "rare" } else { "common" };
        let run = h.running(tries("a", 1));
        h.nack(run.id, None, Some(dead));
    }
    let (command, rare) = (text("a"), Some(text("rare")));
    let work = BulkWork::Replay { command: command.clone(), from: ReplayFrom::DeadLetters };
    let replay = (work, BulkFilter { error_contains: rare, ..BulkFilter::default() });
    let replayed = parts(&mut h, &replay, 100, BULK_LOOK_MIN);
    assert_eq!(replayed.iter().map(|(done, _)| *done).collect::<Vec<_>>(), [2, 2, 0]);
    let purge = all(BulkWork::PurgeDead { command: command.clone() });
    let purged = parts(&mut h, &purge, u32::MAX, u32::MAX);
    assert_eq!(purged.iter().map(|(done, _)| *done).collect::<Vec<_>>(), [36]);
    let purge = all(BulkWork::PurgeWaiting { command });
    let purged = parts(&mut h, &purge, 3, u32::MAX);
    assert_eq!(purged.iter().map(|(done, _)| *done).collect::<Vec<_>>(), [3, 1]);
    for _ in 0..BULK_TAKE_MAX + 1 {
        h.add(task("a"));
    }
    let most = part(&mut h, purge_waiting(), BulkFrom::default(), u32::MAX, u32::MAX);
    assert_eq!(most.done, u64::from(BULK_TAKE_MAX));
    let nobody = all(BulkWork::PurgeDead { command: text("unknown") });
    assert_eq!(part(&mut h, nobody, BulkFrom::default(), 1, 1), BulkDone::default());
    h.finish();
}

fn purge_waiting() -> Work {
    all(BulkWork::PurgeWaiting { command: text("A") })
}

/// The tasks that a filter leaves, by their position among those given.
fn left(h: &mut Harness, ids: &[TaskId], work: BulkWork, filter: BulkFilter) -> Vec<usize> {
    part(h, (work, filter), BulkFrom::default(), u32::MAX, u32::MAX);
    (0..ids.len()).filter(|n| h.find(T, ids[*n]).is_some()).collect()
}

#[test]
fn a_purge_takes_what_its_filter_says_and_nothing_else() {
    let mut h = Harness::new();
    let mut dead = Vec::new();
    let mut dates = Vec::new();
    for n in 0..6 {
        let made = h.add(tries("a", 1));
        let worker = ["w1", "w2"][n % 2];
        h.claim_as(T, worker, Selector::Any, 1);
        h.pass(10);
        dates.push(h.now);
        let (tenant, worker, reason) = (text(T), text(worker), Some(text(["slow", "no"][n / 3])));
        let nack = Nack { tenant, id: made.id, worker, delay: None, reason, seed: 1 };
        h.apply(Command::Nack(nack));
        dead.push(made.id);
    }
    let purge = || BulkWork::PurgeDead { command: text("a") };
    let filter = BulkFilter::default;
    // Half open: a task that ended at `after` is taken, one that ended at `before` is not.
    let some = BulkFilter { after: Some(dates[1]), before: Some(dates[2]), ..filter() };
    assert_eq!(left(&mut h, &dead, purge(), some), [0, 2, 3, 4, 5]);
    let some =
        BulkFilter { error_contains: Some(text("no")), worker: Some(text("w2")), ..filter() };
    assert_eq!(left(&mut h, &dead, purge(), some), [0, 2, 4], "the latest claim counts");
    let none = BulkFilter { worker: Some(text("w")), ..filter() };
    assert_eq!(left(&mut h, &dead, purge(), none), [0, 2, 4]);
    let some = BulkFilter { error_contains: Some(text("low")), ..filter() };
    assert_eq!(left(&mut h, &dead, purge(), some), [4]);
    h.finish();
}

#[test]
fn a_purge_of_waiting_tasks_goes_by_their_creation_date() {
    let mut h = Harness::new();
    let ids: Vec<_> = (0..3)
        .map(|_| {
            h.pass(10);
            h.add(task("a")).id
        })
        .collect();
    let filter =
        BulkFilter { after: Some(h.now - 10), before: Some(h.now), ..BulkFilter::default() };
    let work = BulkWork::PurgeWaiting { command: text("a") };
    assert_eq!(part(&mut h, (work, filter), BulkFrom::default(), 9, 99).done, 1);
    let places: Vec<_> = ids.iter().map(|id| h.get(*id).place).collect();
    assert_eq!(places, [Place::Pending, Place::Failed, Place::Pending]);
    h.finish();
}

#[test]
fn a_cleanup_without_a_date_takes_only_what_has_expired() {
    let mut h = Harness::with(Settings { retention: HOUR, ..Settings::default() });
    let old = h.done(task("a"));
    h.pass(HOUR - 1);
    let young = h.done(task("a"));
    let work = || all(BulkWork::Cleanup { expired: true });
    assert_eq!(part(&mut h, work(), BulkFrom::default(), 9, 99).done, 0);
    h.pass(1);
    assert_eq!(part(&mut h, work(), BulkFrom::default(), 9, 99).done, 1);
    assert!(h.find(T, old.id).is_none() && h.find(T, young.id).is_some());
    h.finish();
}

#[test]
fn failed_and_cancelled_tasks_are_replayed_apart() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.submit(run.id, Outcome::Failed(text("CANCELLED")));
    let stopped = h.running(task("a"));
    h.cancel(stopped.id);
    h.nack(stopped.id, None, None);
    let cancelled = h.add(task("a"));
    h.cancel(cancelled.id);
    let dead = h.dead(tries("a", 1));
    let ids = [run.id, stopped.id, cancelled.id, dead.id];
    let replay = |from| all(BulkWork::Replay { command: text("a"), from });
    let waiting = |h: &Harness| ids.iter().filter(|id| h.get(**id).place == Place::Pending).count();
    assert_eq!(part(&mut h, replay(ReplayFrom::Failed), BulkFrom::default(), 9, 99).done, 1);
    assert_eq!((h.get(run.id).place, waiting(&h)), (Place::Pending, 1), "a worker failed it");
    assert_eq!(part(&mut h, replay(ReplayFrom::Cancelled), BulkFrom::default(), 9, 99).done, 2);
    assert_eq!((h.get(dead.id).place, waiting(&h)), (Place::Dead, 3));
    assert!(!h.get(stopped.id).cancel_requested, "cancellation is no longer requested");
    assert_eq!(part(&mut h, replay(ReplayFrom::DeadLetters), BulkFrom::default(), 9, 99).done, 1);
    assert_eq!(waiting(&h), 4);
    h.finish();
}

#[test]
fn a_cancellation_ends_waiting_tasks_and_asks_the_workers_of_running_ones() {
    let mut h = Harness::new();
    let waiting = [h.add(task("a")).id, h.add(late("a", HOUR)).id];
    let running: Vec<TaskId> = (0..3).map(|_| h.running(urgent("a", 9)).id).collect();
    let other = h.add(task("b")).id;
    let cancel = |running| all(BulkWork::Cancel { command: text("a"), running });
    assert_eq!(part(&mut h, cancel(false), BulkFrom::default(), 9, 99).done, 2);
    for id in waiting {
        assert_eq!((h.get(id).place, h.result(id).is_some()), (Place::Failed, true));
    }
    assert!(running.iter().all(|id| !h.get(*id).cancel_requested));
    let sizes: Vec<u64> = parts(&mut h, &cancel(true), 2, 99).iter().map(|part| part.0).collect();
    assert_eq!(sizes, [0, 2, 1], "the waiting ones first");
    assert!(running.iter().all(|id| h.get(*id).cancel_requested));
    assert_eq!(parts(&mut h, &cancel(true), 9, 99).iter().map(|part| part.0).sum::<u64>(), 0);
    h.abandon(running[0], false);
    h.pass(LEASE + 1);
    h.sweep(10);
    let counts = h.stats("a").unwrap().counts;
    assert_eq!((counts.cancelled, counts.failed, counts.total()), (5, 0, 5));
    assert_eq!(h.get(other).place, Place::Pending);
    h.finish();
}
