//! A full disk, and a failing one.

use codeq_core::kv::{Kv, KvRead, Table};
use codeq_store::{Options, Store, StoreError, check};

use crate::sim_disk::{Faults, SimDisk};
use crate::{checkpoint, contents, create, open, options, path, value};

/// A store larger than its cache, so that reads reach the file.
fn filled(disk: &SimDisk) -> Store {
    let mut store = create(disk);
    for key in 0..6000 {
        store.insert(Table::Body, key, value(format!("body {key} ").repeat(30)));
    }
    checkpoint(&mut store, 1);
    store
}

fn write_more(store: &mut Store) {
    for key in 6000..12_000 {
        store.insert(Table::Body, key, value(format!("more {key} ").repeat(30)));
    }
    store.delete(Table::Body, 17);
}

#[test]
fn a_full_disk_stops_the_checkpoint_and_nothing_else() {
    let disk = SimDisk::new();
    let mut store = filled(&disk);
    write_more(&mut store);
    let expected = contents(&store);
    // From hardly any space to almost enough.
    for extra in [0, 40_000, 400_000, 1_000_000] {
        let capacity = Some(disk.used() + extra);
        disk.set_faults(Faults { capacity, ..Faults::default() });
        let job = store.freeze(2).or_else(|| store.retry_checkpoint()).unwrap();
        let outcome = store.take_back(&mut job.run());
        assert!(matches!(outcome, Err(StoreError::Full { .. })), "{outcome:?} with {extra}");
        assert_eq!(contents(&store), expected, "reads go on");
        assert_eq!(store.position(), 1);
        assert!(store.freeze(3).is_none(), "the old checkpoint comes first");
        // A crash now loses nothing of the old checkpoint.
        let left = disk.after_power_cut(extra);
        assert_eq!(check(&left.shared(), path()).unwrap().position, 1);
    }
    store.insert(Table::Body, 20_000, value("written while the disk is full"));
    disk.set_faults(Faults::default());
    let job = store.retry_checkpoint().unwrap();
    store.take_back(&mut job.run()).unwrap();
    assert_eq!(store.position(), 2);
    assert!(store.retry_checkpoint().is_none());
    checkpoint(&mut store, 3);
    drop(store);
    let store = open(&disk);
    assert_eq!(store.get(Table::Body, 11_999).unwrap(), Some(value("more 11999 ".repeat(30))));
    assert_eq!(store.get(Table::Body, 17).unwrap(), None);
    assert!(store.get(Table::Body, 20_000).unwrap().is_some());
}

#[test]
fn a_rewrite_without_room_is_given_up() {
    let disk = SimDisk::new();
    let mut store = filled(&disk);
    for key in 0..5000 {
        store.delete(Table::Body, key);
    }
    checkpoint(&mut store, 2);
    let expected = contents(&store);
    let used = disk.used();
    let capacity = Some(used + 100_000);
    disk.set_faults(Faults { capacity, ..Faults::default() });
    let mut steps = 0;
    let error = loop {
        let job = store.maintain().unwrap();
        if let Err(error) = store.take_back(&mut job.run()) {
            break error;
        }
        steps += 1;
        assert!(steps < 100);
    };
    assert!(error.is_retryable(), "{error}");
    assert_eq!(contents(&store), expected);
    assert_eq!(disk.used(), used, "the unfinished copy keeps no space");
    disk.set_faults(Faults::default());
    store.insert(Table::Body, 30_000, value("after"));
    checkpoint(&mut store, 3);
    assert_eq!(store.position(), 3);
}

#[test]
fn a_failed_sync_is_final_but_reads_go_on() {
    // The syncs along the way, and then only the one of the commit itself.
    for sync_every in [options().sync_every, u64::MAX] {
        let disk = SimDisk::new();
        drop(filled(&disk));
        let options = Options { sync_every, ..options() };
        let mut store = Store::open(disk.shared(), path(), options).unwrap();
        write_more(&mut store);
        let expected = contents(&store);
        disk.set_faults(Faults { sync_fails: true, ..Faults::default() });
        let job = store.freeze(2).unwrap();
        let error = store.take_back(&mut job.run()).unwrap_err();
        assert!(!error.is_retryable(), "{error}");
        assert_eq!(contents(&store), expected);
    }
}
