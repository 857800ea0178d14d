use codeq_core::command::*;
use codeq_core::kv::Table;
use codeq_core::limits::{BULK_LOOK_MAX, BULK_LOOK_MIN, BULK_TAKE_MAX};
use codeq_core::reply::{BulkDone, Reply};

use crate::harness::*;

fn part(h: &mut Harness, work: BulkWork, from: BulkFrom, take: u32, look: u32) -> BulkDone {
    let (tenant, by) = (text(T), text("admin"));
    match h.apply(Command::BulkPart(BulkPart { tenant, work, from, take, look, by })) {
        Reply::BulkPart(done) => done,
        other => panic!("{other:?}"),
    }
}

/// All parts of an operation: what each of them touched, and how many rows of tasks it read to find it.
fn parts(h: &mut Harness, work: &BulkWork, take: u32, look: u32) -> Vec<(u64, usize)> {
    let (mut all, mut from) = (Vec::new(), Some(BulkFrom::default()));
    while let Some(at) = from {
        h.kv.reads.set(0);
        let done = part(h, work.clone(), at, take, look);
        all.push((done.done, h.kv.reads.get()));
        from = done.next;
        assert!(all.len() < 10_000, "it gets nowhere");
    }
    all
}

#[test]
fn a_cleanup_over_many_queues_looks_at_a_bounded_number_of_rows() {
    let mut h = Harness::new();
    h.every = 10_000;
    for queue in 0..100 {
        for _ in 0..20 {
            // Its callback is still due, so nothing of it may go: there is much to look at and nothing to do.
            h.done(hooked(&format!("q{queue:03}")));
        }
    }
    h.pass(1);
    let work = BulkWork::Cleanup { before: h.now };
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
    let work = BulkWork::Cleanup { before: h.now };
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
    let replay = BulkWork::Replay { command: command.clone(), error_contains: rare };
    let replayed = parts(&mut h, &replay, 100, BULK_LOOK_MIN);
    assert_eq!(replayed.iter().map(|(done, _)| *done).collect::<Vec<_>>(), [2, 2, 0]);
    let purge = BulkWork::PurgeDead { command: command.clone() };
    let purged = parts(&mut h, &purge, u32::MAX, u32::MAX);
    assert_eq!(purged.iter().map(|(done, _)| *done).collect::<Vec<_>>(), [36]);
    let purge = BulkWork::PurgeWaiting { command };
    let purged = parts(&mut h, &purge, 3, u32::MAX);
    assert_eq!(purged.iter().map(|(done, _)| *done).collect::<Vec<_>>(), [3, 1]);
    for _ in 0..BULK_TAKE_MAX + 1 {
        h.add(task("a"));
    }
    let most = part(&mut h, purge_waiting(), BulkFrom::default(), u32::MAX, u32::MAX);
    assert_eq!(most.done, u64::from(BULK_TAKE_MAX));
    let nobody = BulkWork::PurgeDead { command: text("unknown") };
    assert_eq!(part(&mut h, nobody, BulkFrom::default(), 1, 1), BulkDone::default());
    h.finish();
}

fn purge_waiting() -> BulkWork {
    BulkWork::PurgeWaiting { command: text("A") }
}
