//! Returning space after most rows are deleted.

use codeq_core::kv::{Kv, Table};

use crate::sim_disk::SimDisk;
use crate::{checkpoint, contents, create, open, rows, value};

#[test]
fn the_file_shrinks_to_less_than_twice_its_rows() {
    let disk = SimDisk::new();
    let mut store = create(&disk);
    for key in 0..20_000 {
        store.insert(Table::Body, key, value(format!("body {key} ").repeat(25)));
        store.insert(Table::Timer, key << 64, value(""));
    }
    checkpoint(&mut store, 1);
    let full = disk.used();
    // Nine of ten rows are deleted, all over the file.
    for key in (0..20_000).filter(|key| key % 10 != 0) {
        store.delete(Table::Body, key);
        store.delete(Table::Timer, key << 64);
    }
    checkpoint(&mut store, 2);
    let mut position = 2;
    let mut steps = 0;
    while let Some(job) = store.maintain() {
        store.take_back(&mut job.run()).unwrap();
        steps += 1;
        // Checkpoints continue between the steps.
        position += 1;
        store.insert(Table::Body, 100_000 - u128::from(position), value("written meanwhile"));
        store.delete(Table::Body, u128::from(position) * 10);
        checkpoint(&mut store, position);
        assert!(steps < 200, "the rewrite never ends");
    }
    assert!(steps > 5, "steps are bounded");
    let expected = contents(&store);
    let (used, live) = (disk.used(), store.live_bytes());
    assert!(used < full / 4 && used < 2 * live, "{used} bytes for {live}, {full} before");
    drop(store);
    let store = open(&disk);
    assert_eq!(store.position(), position);
    assert_eq!(contents(&store), expected);
}

#[test]
fn a_rewrite_includes_changes_at_its_current_position() {
    let disk = SimDisk::new();
    let mut store = create(&disk);
    for key in 0..2000 {
        store.insert(Table::Body, key, value("body ".repeat(40)));
    }
    checkpoint(&mut store, 1);
    for key in (0..2000).filter(|key| key % 10 != 0) {
        store.delete(Table::Body, key);
    }
    checkpoint(&mut store, 2);
    let mut position = 2;
    while disk.renames() == 1 {
        position += 1;
        let job = store.maintain().unwrap();
        store.take_back(&mut job.run()).unwrap();
        // Every row changes, including the one at which the next step begins.
        for (key, _) in rows(&store, Table::Body) {
            store.put(Table::Body, key, value(format!("changed {position} ").repeat(20)));
        }
        checkpoint(&mut store, position);
    }
    let expected = contents(&store);
    assert!(position > 4, "the rewrite took several steps");
    drop(store);
    assert_eq!(contents(&open(&disk)), expected);
}

#[test]
fn rows_that_pack_badly_are_not_rewritten_for_ever() {
    let disk = SimDisk::new();
    let mut store = create(&disk);
    // Just above a power of two: each row takes almost twice its size in any file.
    for key in 0..200 {
        store.insert(Table::Body, key, value("x".repeat(8200)));
    }
    checkpoint(&mut store, 1);
    let mut jobs = 0;
    while let Some(job) = store.maintain() {
        store.take_back(&mut job.run()).unwrap();
        jobs += 1;
        assert!(jobs < 500, "rewritten for ever");
    }
}
