//! Power cuts at every write, sync and rename of a checkpoint and of a rewrite.

use codeq_core::kv::{Kv, Table};
use codeq_store::{Store, check};

use crate::sim_disk::{Coin, Faults, SimDisk};
use crate::{checkpoint, contents, create, open, path, value};

/// A store with two hundred rows at position 1.
fn filled() -> (SimDisk, Store) {
    let disk = SimDisk::new();
    let mut store = create(&disk);
    for key in 0..200 {
        store.insert(Table::Body, key, value(format!("body {key} ").repeat(40)));
        store.insert(Table::Index, key, value(""));
    }
    checkpoint(&mut store, 1);
    (disk, store)
}

fn change_everything(store: &mut Store) {
    for key in 0..150 {
        store.delete(Table::Body, key);
        store.delete(Table::Index, key);
    }
    for key in 150..180 {
        store.put(Table::Body, key, value("changed"));
    }
    for key in 1000..1200 {
        store.insert(Table::Body, key, value(format!("later {key}").repeat(30)));
    }
}

/// Runs `work` with a power cut after each number of changes, and checks what is left each time. Returns the number of
/// moments, and of files renamed in a run without a cut.
fn at_every_moment(work: impl Fn(&mut Store), verify: impl Fn(&Store)) -> (u64, u64) {
    let mut moments = 0;
    loop {
        let (disk, mut store) = filled();
        let power_cut_after = Some(disk.changes() + moments);
        disk.set_faults(Faults { power_cut_after, ..Faults::default() });
        work(&mut store);
        let was_cut = Some(disk.changes()) > power_cut_after;
        for seed in [moments, moments + 1_000_003] {
            let left = disk.after_power_cut(Coin(seed).next());
            let report = check(&left.shared(), path()).unwrap();
            let reopened = open(&left);
            assert_eq!(report.position, reopened.position());
            verify(&reopened);
        }
        if !was_cut {
            return (moments, disk.renames());
        }
        moments += 1;
    }
}

#[test]
fn a_checkpoint_is_there_or_not_wherever_the_power_fails() {
    let (_, mut store) = filled();
    let before = contents(&store);
    change_everything(&mut store);
    let after = contents(&store);
    let (moments, _) = at_every_moment(
        |store| {
            change_everything(store);
            let mut flushed = store.freeze(2).unwrap().run();
            let _ = store.take_back(&mut flushed);
            assert_eq!(contents(store), after, "reads go on without the disk");
        },
        |store| match store.position() {
            1 => assert_eq!(contents(store), before),
            2 => assert_eq!(contents(store), after),
            other => panic!("position {other}"),
        },
    );
    assert!(moments > 20, "only {moments} moments to fail at");
}

#[test]
fn a_rewrite_loses_nothing_wherever_the_power_fails() {
    let (_, mut store) = filled();
    change_everything(&mut store);
    let thinned = contents(&store);
    store.insert(Table::Body, 5000, value("during the rewrite"));
    store.delete(Table::Body, 160);
    let during = contents(&store);
    let before = contents(&filled().1);
    let (_, renames) = at_every_moment(
        |store| {
            change_everything(store);
            let mut flushed = store.freeze(2).unwrap().run();
            if store.take_back(&mut flushed).is_err() {
                return;
            }
            // One step, a checkpoint, and the rest of the steps.
            if let Some(job) = store.maintain() {
                let _ = store.take_back(&mut job.run());
            }
            store.insert(Table::Body, 5000, value("during the rewrite"));
            store.delete(Table::Body, 160);
            if let Some(job) = store.freeze(3) {
                let _ = store.take_back(&mut job.run());
            }
            for _ in 0..30 {
                let Some(job) = store.maintain() else { break };
                let _ = store.take_back(&mut job.run());
            }
            assert_eq!(contents(store), during, "reads go on without the disk");
        },
        |store| match store.position() {
            1 => assert_eq!(contents(store), before),
            2 => assert_eq!(contents(store), thinned),
            3 => assert_eq!(contents(store), during),
            other => panic!("position {other}"),
        },
    );
    assert_eq!(renames, 2, "the store is made, and rewritten");
}

#[test]
fn creating_a_store_leaves_a_store_or_nothing() {
    let mut moments = 0;
    loop {
        let disk = SimDisk::new();
        disk.set_faults(Faults { power_cut_after: Some(moments), ..Faults::default() });
        let created = Store::create(disk.shared(), path(), crate::options()).is_ok();
        let left = disk.after_power_cut(moments * 7 + 1);
        if codeq_disk::Disk::exists(&left, path()).unwrap() {
            assert_eq!(open(&left).position(), 0);
        } else {
            assert!(!created, "a store that was created is lost");
            drop(create(&left));
        }
        if created {
            break;
        }
        moments += 1;
    }
}
