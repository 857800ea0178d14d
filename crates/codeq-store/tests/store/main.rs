//! The store against its contract: one suite for every implementation, and what only a file can get wrong.

// Test helpers count as tests too, but the lint only knows functions marked as such.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod conformance;
mod crash;
mod damage;
mod differential;
mod fixture;
mod full_disk;
mod opening;
mod owner;
mod sim_disk;
mod space;
mod transfer;

use std::path::Path;

use bytes::Bytes;
use codeq_core::kv::{Direction, Key, KvRead, Table};
use codeq_store::{Options, Store};

use crate::sim_disk::SimDisk;

/// The engine keeps a store behind a lock with concurrent readers, and runs jobs on other threads.
#[test]
fn stores_and_jobs_can_be_sent_to_other_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Store>();
    sent::<codeq_store::StoreJob>();
    sent::<codeq_store::FinishedJob>();
    sent::<codeq_store::SnapshotJob>();
    sent::<codeq_store::Export>();
    sent::<codeq_store::Import>();
}

/// The store's name on a simulated disk.
const PATH: &str = "/shard/store";

fn path() -> &'static Path {
    Path::new(PATH)
}

/// Small limits, so that small tests reach them.
fn options() -> Options {
    Options {
        owner: None,
        cache_bytes: 1 << 20,
        sync_every: 64 << 10,
        rewrite_slack: 64 << 10,
        rewrite_step: 16 << 10,
    }
}

fn create(disk: &SimDisk) -> Store {
    Store::create(disk.shared(), path(), options()).unwrap()
}

fn open(disk: &SimDisk) -> Store {
    Store::open(disk.shared(), path(), options()).unwrap()
}

/// A whole checkpoint, inline.
fn checkpoint(store: &mut Store, position: u64) {
    let mut flushed = store.freeze(position).unwrap().run();
    store.take_back(&mut flushed).unwrap();
}

fn value(text: impl AsRef<str>) -> Bytes {
    Bytes::copy_from_slice(text.as_ref().as_bytes())
}

/// Every row of a table.
fn rows(store: &impl KvRead, table: Table) -> Vec<(Key, Bytes)> {
    let mut out = Vec::new();
    store.scan(table, 0, Key::MAX, Direction::Forward, usize::MAX, &mut out).unwrap();
    out
}

/// Every row of every table.
fn contents(store: &impl KvRead) -> Vec<Vec<(Key, Bytes)>> {
    Table::ALL.into_iter().map(|table| rows(store, table)).collect()
}
