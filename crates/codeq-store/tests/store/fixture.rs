//! Stores written by earlier releases still open.
//!
//! Each format version has one small file, written by the release that introduced it. A new version adds a file; old
//! files are never rewritten. To create the file of a new version: `cargo test -p codeq-store --test store
//! write_fixture -- --ignored`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_core::kv::{Key, Kv, KvRead, Table};
use codeq_disk::{RealDisk, SharedDisk};
use codeq_store::{Options, Owner, Store, check};

use crate::{checkpoint, options, rows, value};

fn fixture(version: u64) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{version}.store"))
}

#[test]
fn version_1_opens() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("store");
    std::fs::copy(fixture(1), &copy).unwrap();
    let disk: SharedDisk = Arc::new(RealDisk);
    let report = check(&disk, &copy).unwrap();
    assert_eq!(report.position, 77);
    let mut store = Store::open(disk, &copy, options()).unwrap();
    for table in Table::ALL {
        // Version 2 added the table of records.
        let expected = if table == Table::Record { Vec::new() } else { written(table) };
        assert_eq!(rows(&store, table), expected);
    }
    store.delete(Table::Body, row_key(Table::Body, 2));
    checkpoint(&mut store, 78);
    assert_eq!(store.get(Table::Body, row_key(Table::Body, 2)).unwrap(), None);
}

#[test]
fn version_1_becomes_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("store");
    std::fs::copy(fixture(1), &copy).unwrap();
    let disk: SharedDisk = Arc::new(RealDisk);
    let mut store = Store::open(Arc::clone(&disk), &copy, options()).unwrap();
    for (key, value) in written(Table::Record) {
        store.insert(Table::Record, key, value);
    }
    checkpoint(&mut store, 78);
    drop(store);
    assert_eq!(check(&disk, &copy).unwrap().position, 78);
    let store = Store::open(disk, &copy, options()).unwrap();
    for table in Table::ALL {
        assert_eq!(rows(&store, table), written(table));
    }
}

#[test]
fn version_2_opens() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("store");
    std::fs::copy(fixture(2), &copy).unwrap();
    let disk: SharedDisk = Arc::new(RealDisk);
    assert_eq!(check(&disk, &copy).unwrap().position, 77);
    let store = Store::open(disk, &copy, options()).unwrap();
    for table in Table::ALL {
        assert_eq!(rows(&store, table), written(table));
    }
}

#[test]
fn version_3_opens() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("store");
    std::fs::copy(fixture(3), &copy).unwrap();
    let disk: SharedDisk = Arc::new(RealDisk);
    let report = check(&disk, &copy).unwrap();
    assert_eq!((report.position, report.owner), (77, Some(OWNER)));
    let mut store = Store::open(disk, &copy, owned()).unwrap();
    for table in Table::ALL {
        assert_eq!(rows(&store, table), written(table));
    }
    assert!(store.maintain().is_none(), "it has its checksums");
}

/// Files without checksums get them in the background, without losing anything.
#[test]
fn older_versions_get_checksums_and_an_owner() {
    for version in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("store");
        std::fs::copy(fixture(version), &copy).unwrap();
        let disk: SharedDisk = Arc::new(RealDisk);
        let mut store = Store::open(Arc::clone(&disk), &copy, owned()).unwrap();
        let before = crate::contents(&store);
        while let Some(job) = store.maintain() {
            store.take_back(&mut job.run()).unwrap();
        }
        assert_eq!(crate::contents(&store), before);
        drop(store);
        let report = check(&disk, &copy).unwrap();
        assert_eq!((report.position, report.owner), (77, Some(OWNER)));
        assert!(std::fs::read(&copy).unwrap().starts_with(b"cQs"));
    }
}

const OWNER: Owner = Owner { shard: 1, shards: 3, log_id: 0xfeed };

/// With the default slack: a file this small is not worth a rewrite for its space.
fn owned() -> Options {
    Options { owner: Some(OWNER), rewrite_slack: Options::default().rewrite_slack, ..options() }
}

fn written(table: Table) -> Vec<(Key, bytes::Bytes)> {
    (1..=3).map(|n| (row_key(table, n), row_value(table, n))).collect()
}

#[test]
#[ignore = "writes the fixture of the newest format version into the source tree"]
fn write_fixture() {
    let path = fixture(3);
    assert!(!path.exists(), "a fixture is written once; raise the version instead");
    let mut store = Store::create(Arc::new(RealDisk), &path, owned()).unwrap();
    for table in Table::ALL {
        for n in 1..=3 {
            store.insert(table, row_key(table, n), row_value(table, n));
        }
    }
    checkpoint(&mut store, 77);
}

fn row_key(table: Table, n: u128) -> Key {
    n << 64 | table as u128
}

fn row_value(table: Table, n: u128) -> bytes::Bytes {
    // The first row of each table has no value, like index rows.
    value(format!("{table:?} {n} ").repeat(n as usize - 1))
}
