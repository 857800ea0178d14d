use codeq_core::command::{Claim, Command, Selector};
use codeq_core::id::TaskId;
use codeq_core::limits::*;
use codeq_core::place::{Place, Status};
use codeq_core::reply::{Enqueued, Rejection, Reply};
use codeq_core::view::Task;

use crate::harness::*;

fn ids(tasks: &[Task]) -> Vec<Seq> {
    tasks.iter().map(|task| task.id.seq()).collect()
}

#[test]
fn a_claimed_task_is_leased() {
    let mut h = Harness::new();
    let made = h.add(task("a"));
    h.pass(10);
    let taken = h.claim("a").expect("one");
    assert_eq!(taken, h.get(made.id));
    assert_eq!((taken.place, taken.place.status()), (Place::InProgress, Status::InProgress));
    assert_eq!(taken.worker.as_deref(), Some(W));
    assert_eq!(taken.lease_until, Some(h.now + LEASE));
    assert_eq!((taken.fence, taken.attempts, taken.updated_at), (Fence(1), 0, h.now));
    assert_eq!(h.claim("a"), None, "at most one lease");
    h.finish();
}

#[test]
fn first_in_first_out_within_a_priority() {
    let mut h = Harness::new();
    let made: Vec<Task> =
        [1, 9, 0, 9, 1, 0].into_iter().map(|priority| h.add(urgent("a", priority))).collect();
    let taken = h.claims(&["a"], 10);
    let wanted = [1, 3, 0, 4, 2, 5].map(|at: usize| made[at].id.seq());
    assert_eq!(ids(&taken), wanted);
}

#[test]
fn several_commands_highest_priority_then_oldest() {
    let mut h = Harness::new();
    let a1 = h.add(task("a"));
    let b1 = h.add(task("b"));
    let b9 = h.add(urgent("b", 9));
    let c9 = h.add(urgent("c", 9));
    let a2 = h.add(task("a"));
    let other = h.add(urgent("other", 9));
    let taken = h.claims(&["c", "b", "a", "B", "unknown"], 10);
    assert_eq!(ids(&taken), ids(&[b9, c9, a1, b1, a2]));
    assert_eq!(h.claim_any(T).map(|t| t.id), Some(other.id));
    h.finish();
}

#[test]
fn no_command_starves_another() {
    let mut h = Harness::new();
    let b = h.add(task("b"));
    // A busy queue: each claim is followed by a new task.
    for _ in 0..5 {
        h.add(task("a"));
    }
    assert_eq!(h.claims(&["a", "b"], 1)[0].id, b.id);
    let next = h.add(task("b"));
    for _ in 0..5 {
        h.add(task("a"));
        assert_eq!(&*h.claims(&["a", "b"], 1)[0].command, "a");
    }
    assert_eq!(h.claims(&["a", "b"], 1)[0].id, next.id);
}

#[test]
fn any_means_every_queue_of_the_tenant() {
    let mut h = Harness::new();
    let low = h.add(task("z"));
    let high = h.add(urgent("m", 3));
    h.add_for("someone else", urgent("m", 9));
    assert_eq!(h.claim_any(T).map(|t| t.id), Some(high.id));
    assert_eq!(h.claim_any(T).map(|t| t.id), Some(low.id));
    assert_eq!(h.claim_any(T), None);
    assert_eq!(h.claim_any("nobody"), None);
    assert_eq!(h.claims(&[], 5), [], "no commands, no tasks");
}

#[test]
fn count_is_a_bound() {
    let mut h = Harness::new();
    for _ in 0..5 {
        h.add(task("a"));
    }
    assert_eq!(h.claims(&["a"], 3).len(), 3);
    assert_eq!(h.claims(&["a"], 3).len(), 2);
    let max = CLAIM_MAX;
    for count in [0, max as u32 + 1, u32::MAX] {
        let reply = h.claim_as(T, W, Selector::Any, count);
        assert_eq!(reply, refused(Rejection::InvalidCount { max }));
    }
}

#[test]
fn fences_grow_with_every_claim() {
    let mut h = Harness::new();
    let made = h.add(tries("a", 10));
    for fence in (1..5).map(Fence) {
        assert_eq!(h.claim("a").map(|t| t.fence), Some(fence));
        h.abandon(made.id, true);
        h.reload();
    }
    h.finish();
}

#[test]
fn a_claim_repairs_what_is_due() {
    let mut h = Harness::new();
    let expired = h.running(tries("a", 1));
    let delayed = h.add(late("a", LEASE));
    h.pass(LEASE + 1);
    assert_eq!(h.claim("a").map(|t| t.id), Some(delayed.id), "without any sweep");
    assert_eq!(h.get(expired.id).place, Place::Dead);
    h.finish();
}

#[test]
fn the_repair_at_claim_is_bounded() {
    let mut h = Harness::new();
    for _ in 0..CLAIM_REPAIR_MAX * 2 {
        h.add(late("a", 10));
    }
    h.pass(10);
    assert_eq!(h.claims(&["a"], 1_000).len(), CLAIM_REPAIR_MAX as usize);
    assert_eq!(h.claims(&["a"], 1_000).len(), CLAIM_REPAIR_MAX as usize);
}

#[test]
fn values_out_of_range_are_refused() {
    let mut h = Harness::new();
    h.add(task("a"));
    let good = Claim {
        tenant: text(T),
        worker: text(W),
        from: Selector::Commands(vec![text("a")]),
        lease: LEASE,
        count: 1,
    };
    let mut refusal = |bad: Claim| match h.apply(Command::Claim(bad)) {
        Reply::Rejected(why) => why,
        other => panic!("{other:?}"),
    };
    for lease in [0, 999, 43_200_001, u64::MAX] {
        let bad = Claim { lease, ..good.clone() };
        let (min, max) = (LEASE_MS_MIN, LEASE_MS_MAX);
        assert_eq!(refusal(bad), Rejection::InvalidLease { min, max });
    }
    for worker in ["", "a\0", &"w".repeat(257)] {
        let bad = Claim { worker: text(worker), ..good.clone() };
        assert_eq!(refusal(bad), Rejection::InvalidWorker);
    }
    for tenant in ["", &"t".repeat(257)] {
        let bad = Claim { tenant: text(tenant), ..good.clone() };
        assert_eq!(refusal(bad), Rejection::InvalidTenant);
    }
    let bad = Claim { from: Selector::Commands(vec![text("a"), text("")]), ..good.clone() };
    assert_eq!(refusal(bad), Rejection::InvalidCommand);
    let max = CLAIM_COMMANDS_MAX;
    let bad = Claim { from: Selector::Commands(vec![text("a"); max + 1]), ..good.clone() };
    assert_eq!(refusal(bad), Rejection::TooManyCommands { max });
    for lease in [LEASE_MS_MIN, LEASE_MS_MAX] {
        h.add(task("a"));
        let fine = Claim { lease, ..good.clone() };
        assert!(matches!(h.apply(Command::Claim(fine)), Reply::Claimed(tasks) if tasks.len() == 1));
    }
}

#[test]
fn a_long_queue_keeps_its_order() {
    let mut h = Harness::new();
    h.every = 700;
    let made: Vec<Task> = (0..3 * WINDOW_MAX).map(|_| h.add(task("a"))).collect();
    // Gaps at the head, in the window, at its edge, and in the tail.
    let holes = [0, 1, 500, WINDOW_MAX - 1, WINDOW_MAX, WINDOW_MAX + 1, 2_000, 3 * WINDOW_MAX - 1];
    for at in holes {
        assert!(matches!(h.cancel(made[at].id), Reply::Cancelled(_)));
    }
    let urgent = h.add(urgent("a", 1));
    let mut wanted = vec![urgent.id];
    let kept = (0..made.len()).filter(|at| !holes.contains(at));
    wanted.extend(kept.map(|at| made[at].id));
    let mut got = Vec::new();
    let mut round = 0;
    while got.len() < wanted.len() {
        round += 1;
        if round == 4 {
            h.reload();
        }
        let taken = h.claims(&["a"], 211);
        got.extend(taken.iter().map(|task| task.id));
        // A requeue goes to the very back, behind the tail.
        if round == 2 {
            h.abandon(taken[0].id, true);
            wanted.push(taken[0].id);
        }
    }
    assert_eq!(got, wanted);
    h.finish();
}

#[test]
fn a_task_that_enters_behind_a_tail_does_not_overtake() {
    let mut h = Harness::new();
    h.every = 500;
    let made: Vec<Task> = (0..WINDOW_MAX + 10).map(|_| h.add(task("a"))).collect();
    // Room in the window while there is still a tail.
    let taken = h.claims(&["a"], 100);
    assert_eq!(taken[99].id, made[99].id);
    let newest = h.add(task("a"));
    let mut got = Vec::new();
    loop {
        let more = h.claims(&["a"], 1_000);
        if more.is_empty() {
            break;
        }
        got.extend(more.iter().map(|task| task.id));
    }
    let mut wanted: Vec<_> = made[100..].iter().map(|task| task.id).collect();
    wanted.push(newest.id);
    assert_eq!(got, wanted);
}

#[test]
fn a_tail_that_is_cancelled_away_leaves_nothing_behind() {
    let mut h = Harness::new();
    h.every = 500;
    let made: Vec<Task> = (0..WINDOW_MAX + 5).map(|_| h.add(task("a"))).collect();
    for task in &made[WINDOW_MAX..] {
        h.cancel(task.id);
    }
    for task in &made[..WINDOW_MAX] {
        h.cancel(task.id);
    }
    assert_eq!(h.claim("a"), None);
    let fresh = h.add(task("a"));
    assert_eq!(h.claim("a").map(|t| t.id), Some(fresh.id));
    h.finish();
}

/// Windows, tails, gaps and requeues in three priorities, against three plain lists.
#[test]
fn a_long_queue_under_random_use_keeps_its_order() {
    let mut h = Harness::new();
    h.every = 97;
    let mut lists: [Vec<TaskId>; 3] = Default::default();
    let mut running: Vec<(usize, TaskId)> = Vec::new();
    let mut draw = 1;
    let mut random = |below: usize| {
        draw = codeq_core::id::split_mix64(draw);
        (draw >> 32) as usize % below
    };
    for round in 0..400 {
        // It grows for a while, then shrinks, so that windows fill, overflow and run dry.
        let grows = round % 100 < 50;
        match random(if grows { 5 } else { 9 }) {
            0..2 => {
                let priority = random(3);
                let tasks = vec![urgent("a", priority as i32); 1 + random(600)];
                let Reply::Enqueued(items) = h.enqueue_all(T, tasks, true) else {
                    panic!("refused")
                };
                lists[priority].extend(items.into_iter().map(|item| match item {
                    Enqueued::Created(task) => task.id,
                    other => panic!("{other:?}"),
                }));
            }
            2 => {
                for _ in 0..random(60) {
                    let priority = random(3);
                    let waiting = lists[priority].len();
                    if waiting > 0 {
                        let id = lists[priority].remove(random(waiting));
                        assert!(matches!(h.cancel(id), Reply::Cancelled(_)));
                    }
                }
            }
            3 => {
                for _ in 0..random(60).min(running.len()) {
                    let (priority, id) = running.swap_remove(random(running.len()));
                    h.abandon(id, false);
                    lists[priority].push(id);
                }
            }
            4 if round % 3 == 0 => h.reload(),
            _ => {
                let count = 1 + random(700);
                let got: Vec<_> = h.claims(&["a"], count as u32).iter().map(|t| t.id).collect();
                let mut wanted = Vec::new();
                for priority in (0..3).rev() {
                    let many = lists[priority].len().min(count - wanted.len());
                    wanted.extend(lists[priority].drain(..many).map(|id| (priority, id)));
                }
                assert_eq!(got, wanted.iter().map(|(_, id)| *id).collect::<Vec<_>>());
                running.extend(wanted);
            }
        }
    }
    h.finish();
}
