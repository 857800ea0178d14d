//! Opening after a clean stop and after a kill, and what is refused.

use codeq_core::kv::{Kv, KvRead, Table};
use codeq_disk::{RealDisk, SharedDisk};
use codeq_store::{Options, Store, StoreError, check};
use std::path::Path;
use std::sync::Arc;

use crate::sim_disk::SimDisk;
use crate::{checkpoint, contents, create, open, options, path, value};

/// A walk over the whole file would be a repair, and the store refuses to open if the library asks for one. So
/// opening at all proves that there was none, without measuring time on a busy machine.
#[test]
fn opening_after_a_kill_needs_no_repair() {
    let dir = tempfile::tempdir().unwrap();
    let disk: SharedDisk = Arc::new(RealDisk);
    let path = dir.path().join("store");
    let mut store = Store::create(Arc::clone(&disk), &path, Options::default()).unwrap();
    for round in 0..3u128 {
        for key in 0..100_000 {
            store.insert(Table::Body, round << 64 | key, value("a body of some length"));
        }
        checkpoint(&mut store, round as u64 + 1);
        // The file of a running store, as a kill leaves it.
        let killed = dir.path().join(format!("killed-{round}"));
        std::fs::copy(&path, &killed).unwrap();
        let reopened = Store::open(Arc::clone(&disk), &killed, Options::default()).unwrap();
        assert_eq!(reopened.position(), round as u64 + 1);
        let last = reopened.get(Table::Body, round << 64 | 99_999).unwrap();
        assert_eq!(last, Some(value("a body of some length")));
    }
}

#[test]
fn an_existing_store_is_not_created_again() {
    let disk = SimDisk::new();
    drop(create(&disk));
    let again = Store::create(disk.shared(), path(), options());
    assert!(matches!(again, Err(StoreError::Io { .. })));
}

#[test]
fn files_that_are_not_stores_are_refused() {
    for bytes in [vec![], vec![0; 100], vec![0; 8192], b"not a store ".repeat(4096)] {
        let disk = SimDisk::new();
        disk.put_file(path(), bytes.clone());
        let error = Store::open(disk.shared(), path(), options()).err().unwrap();
        assert!(matches!(error, StoreError::Corrupt { .. } | StoreError::Io { .. }), "{error}");
        assert_eq!(disk.bytes(path()), bytes, "the evidence is untouched");
    }
    let missing = Store::open(SimDisk::new().shared(), path(), options()).err().unwrap();
    assert!(missing.to_string().contains(crate::PATH), "{missing}");
}

#[test]
fn a_snapshot_is_a_store_of_its_checkpoint() {
    let disk = SimDisk::new();
    let mut store = create(&disk);
    for key in 0..500 {
        store.insert(Table::Task, key, value(format!("task {key}")));
    }
    checkpoint(&mut store, 42);
    let expected = contents(&store);
    let copy = Path::new("/backup/store");
    let job = store.snapshot_to(disk.shared(), copy, None);
    // The store goes on, even past the next checkpoint, before the copy runs.
    store.delete(Table::Task, 3);
    checkpoint(&mut store, 43);
    let position = std::thread::spawn(move || job.run()).join().unwrap().unwrap();
    assert_eq!(position, 42);
    assert_eq!(check(&disk.shared(), copy).unwrap().position, 42);
    let copy = Store::open(disk.shared(), copy, options()).unwrap();
    assert_eq!(copy.position(), 42);
    assert_eq!(contents(&copy), expected);
    assert_eq!(store.get(Table::Task, 3).unwrap(), None);
    drop(store);
    assert_eq!(open(&disk).position(), 43);
}
