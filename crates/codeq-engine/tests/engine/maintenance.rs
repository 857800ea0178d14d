//! Checkpoints and requests while a store is being copied into a smaller file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_core::command::{Cancel, Command};
use codeq_core::id::ShardId;
use codeq_core::read::Reader;
use codeq_core::settings::Settings;
use codeq_core::state::State;
use codeq_disk::{RealDisk, SharedDisk};
use codeq_engine::{Engine, Options, layout};
use codeq_store::Store;

use crate::harness::{TENANT, block, eventually, put, small};
use crate::start::start;

/// Tasks that stay while the store is copied, one row per step.
const KEPT: u64 = 2_000;

/// An engine whose store is being copied into a smaller file, and the file that it is copied to.
fn copying(dir: &Path) -> (Engine, PathBuf) {
    let store = codeq_store::Options {
        rewrite_slack: 64 << 10,
        rewrite_step: 1,
        ..codeq_store::Options::default()
    };
    let settings = Settings { retention: 1, ..Settings::default() };
    let options = Options { store, settings, memtable_bytes: 64 << 20, ..small() };
    let engine = start(dir, options).unwrap();
    let large = format!("\"{}\"", "x".repeat(16 << 10));
    let gone: Vec<_> = (0..300).map(|_| put(&engine, "q", &large).id).collect();
    (0..KEPT).for_each(|n| drop(put(&engine, "q", &n.to_string())));
    engine.checkpoint().unwrap();
    for id in &gone {
        let (tenant, by) = (TENANT.into(), "w".into());
        engine.propose_blocking(Command::Cancel(Cancel { tenant, id: *id, by })).unwrap();
    }
    let is_gone = |id| block(engine.task(TENANT, id)).unwrap().is_none();
    eventually("they are removed", || gone.iter().all(|id| is_gone(*id)));
    engine.checkpoint().unwrap();
    let copy = codeq_store::unfinished_path(&store_path(dir));
    eventually("the store is copied", || copy.exists());
    (engine, copy)
}

fn store_path(dir: &Path) -> PathBuf {
    layout::store_path(dir, ShardId(0))
}

#[test]
fn a_checkpoint_does_not_wait_until_a_store_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, copy) = copying(dir.path());
    engine.checkpoint().unwrap();
    assert!(copy.exists(), "the checkpoint waited for the whole copy");
    eventually("the copy is complete", || !copy.exists());
    let stats = block(engine.queue(TENANT, "q")).unwrap().unwrap();
    assert_eq!(stats.counts.ready(), KEPT);
}

#[test]
fn an_engine_that_stops_while_a_store_is_copied_writes_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, copy) = copying(dir.path());
    let last = put(&engine, "q", "\"last\"");
    assert!(copy.exists());
    drop(engine);
    let disk: SharedDisk = Arc::new(RealDisk);
    let store =
        Store::open(disk, &store_path(dir.path()), codeq_store::Options::default()).unwrap();
    let state = State::load(&store, ShardId(0), 1).unwrap();
    let reader = Reader { state: &state, kv: &store };
    assert!(reader.task(TENANT, last.id).unwrap().is_some(), "the store lacks the last task");
}
