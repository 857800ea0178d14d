//! The owner of a store's rows.

use std::path::Path;

use codeq_core::kv::{Kv, Table};
use codeq_store::{Options, Owner, Store, StoreError, check};

use crate::sim_disk::SimDisk;
use crate::{checkpoint, options, path, value};

const OWNER: Owner = Owner { shard: 1, shards: 3, log_id: 7 };

fn of(owner: Owner) -> Options {
    Options { owner: Some(owner), ..options() }
}

#[test]
fn a_store_of_another_owner_is_refused_unchanged() {
    let disk = SimDisk::new();
    drop(Store::create(disk.shared(), path(), of(OWNER)).unwrap());
    let before = disk.bytes(path());
    for other in
        [Owner { shard: 0, ..OWNER }, Owner { shards: 2, ..OWNER }, Owner { log_id: 8, ..OWNER }]
    {
        let error = Store::open(disk.shared(), path(), of(other)).err().unwrap();
        assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains(crate::PATH), "{error}");
    }
    assert!(disk.bytes(path()) == before);
    drop(Store::open(disk.shared(), path(), of(OWNER)).unwrap());
}

#[test]
fn a_copy_gets_the_given_owner_and_a_rewrite_keeps_its_own() {
    let disk = SimDisk::new();
    let mut store = Store::create(disk.shared(), path(), of(OWNER)).unwrap();
    for key in 0..300 {
        store.insert(Table::Body, key, value("x".repeat(1000)));
    }
    checkpoint(&mut store, 1);
    let (copy, log_id) = (Path::new("/backup/store"), 99);
    let target = Owner { log_id, ..OWNER };
    store.snapshot_to(disk.shared(), copy, Some(target)).run().unwrap();
    assert_eq!(check(&disk.shared(), copy).unwrap().owner, Some(target));

    for key in 0..299 {
        store.delete(Table::Body, key);
    }
    checkpoint(&mut store, 2);
    let mut steps = 0;
    while let Some(job) = store.maintain() {
        store.take_back(&mut job.run()).unwrap();
        steps += 1;
    }
    assert!(steps > 0, "it was rewritten");
    drop(store);
    assert_eq!(check(&disk.shared(), path()).unwrap().owner, Some(OWNER));
}

#[test]
fn a_store_without_an_owner_gets_one_at_its_next_checkpoint() {
    let disk = SimDisk::new();
    drop(Store::create(disk.shared(), path(), options()).unwrap());
    assert_eq!(check(&disk.shared(), path()).unwrap().owner, None);
    let mut store = Store::open(disk.shared(), path(), of(OWNER)).unwrap();
    checkpoint(&mut store, 1);
    drop(store);
    assert_eq!(check(&disk.shared(), path()).unwrap().owner, Some(OWNER));
}
