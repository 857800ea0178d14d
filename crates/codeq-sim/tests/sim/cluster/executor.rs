//! The executor: order, time, crashes.

use std::sync::Arc;
use std::time::Duration;

use codeq_raft::runtime;
use codeq_sim::cluster::executor::{Executor, Panicked};
use parking_lot::Mutex;

const SECOND: Duration = Duration::from_secs(1);

fn noted() -> (Arc<Mutex<Vec<u64>>>, impl Fn(u64)) {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let clone = Arc::clone(&notes);
    (notes, move |note| clone.lock().push(note))
}

#[test]
fn timers_fire_in_order_and_time_passes_at_once() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    let (notes, note) = noted();
    let note = Arc::new(note);
    for seconds in [3, 1, 2] {
        let note = Arc::clone(&note);
        executor.spawn_on(None, async move {
            runtime::sleep(SECOND * seconds).await;
            note(u64::from(seconds));
        });
    }
    executor.run_for(SECOND * 10);
    assert_eq!(*notes.lock(), [1, 2, 3]);
    assert_eq!(executor.time(), SECOND * 10);
}

#[test]
fn the_seed_shuffles_ready_tasks_and_repeats_itself() {
    let order = |seed| {
        let executor = Executor::new(seed);
        let _entered = executor.enter();
        let (notes, note) = noted();
        let note = Arc::new(note);
        for number in 0..10 {
            let note = Arc::clone(&note);
            executor.spawn_on(None, async move {
                note(number);
                let handle = runtime::spawn(async move { runtime::random() % 100 });
                note(100 + handle.await.unwrap());
            });
        }
        executor.run_for(SECOND);
        let notes = notes.lock().clone();
        (notes, executor.trace())
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert_eq!(order(3).0.iter().filter(|note| **note < 100).sum::<u64>(), 45);
}

#[test]
fn a_crash_drops_a_nodes_tasks_and_no_others() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    executor.boot(1, 0);
    executor.boot(2, 0);
    let (notes, note) = noted();
    let note = Arc::new(note);
    for node in [1, 2] {
        let note = Arc::clone(&note);
        executor.spawn_on(Some(node), async move {
            // Children belong to the same node.
            let _ = runtime::spawn(async move {
                runtime::sleep(SECOND).await;
                note(node);
            })
            .await;
        });
    }
    executor.run_for(SECOND / 2);
    executor.crash(1);
    executor.spawn_on(Some(1), async move { panic!("the node is down") });
    executor.run_for(SECOND);
    assert_eq!(*notes.lock(), [2]);
    executor.restart(1);
    let again = Arc::clone(&note);
    executor.spawn_on(Some(1), async move { again(3) });
    executor.run_for(SECOND);
    assert_eq!(*notes.lock(), [2, 3]);
    assert!(executor.take_panics().is_empty());
}

#[test]
fn clocks_drift_apart_and_sleepers_follow_their_own() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    executor.boot(1, 1_000_000);
    executor.boot(2, -1_000_000);
    let (notes, note) = noted();
    let note = Arc::new(note);
    for node in [2, 1] {
        let (note, world) = (Arc::clone(&note), executor.clone());
        executor.spawn_on(Some(node), async move {
            let before = runtime::now();
            runtime::sleep(SECOND * 1_000).await;
            assert!(runtime::now() - before >= SECOND * 1_000);
            note(world.time().as_millis() as u64);
        });
    }
    executor.run_for(SECOND * 2_000);
    assert_eq!(*notes.lock(), [999_001, 1_001_001]);
    assert!(executor.take_panics().is_empty());
    executor.boot(1, 0);
    assert_eq!(executor.clock(Some(1)), Duration::ZERO);
}

#[test]
fn a_stalled_node_does_nothing_meanwhile() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    executor.boot(1, 0);
    let (notes, note) = noted();
    let world = executor.clone();
    executor.spawn_on(Some(1), async move {
        runtime::sleep(SECOND).await;
        note(world.time().as_secs());
    });
    executor.run_for(SECOND / 2);
    executor.stall(1, SECOND * 5);
    executor.run_for(SECOND * 10);
    assert_eq!(*notes.lock(), [5]);
}

#[test]
fn a_stalled_node_can_be_resumed() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    executor.boot(1, 0);
    let (notes, note) = noted();
    let world = executor.clone();
    executor.spawn_on(Some(1), async move {
        runtime::sleep(SECOND).await;
        note(world.time().as_secs());
        runtime::sleep(SECOND).await;
        note(world.time().as_secs());
    });
    executor.run_for(SECOND / 2);
    executor.stall(1, SECOND * 15);
    executor.run_for(SECOND * 7 / 2);
    executor.resume(1);
    executor.run_for(SECOND * 15);
    assert_eq!(*notes.lock(), [4, 5]);
}

#[test]
fn panics_are_kept_and_end_their_task() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    executor.boot(7, 0);
    executor.spawn_on(Some(7), async move { panic!("of node {}", 7) });
    executor.run_for(SECOND);
    let panics = executor.take_panics();
    assert_eq!(panics, [Panicked { owner: Some(7), text: "of node 7".to_owned() }]);
}

#[test]
fn timeouts_end() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    let (notes, note) = noted();
    executor.spawn_on(None, async move {
        let never = runtime::timeout(SECOND, std::future::pending::<()>()).await;
        note(u64::from(never.is_err()));
        let soon = runtime::timeout(SECOND, async { 7 }).await;
        note(soon.unwrap());
    });
    executor.run_for(SECOND * 2);
    assert_eq!(*notes.lock(), [1, 7]);
}
