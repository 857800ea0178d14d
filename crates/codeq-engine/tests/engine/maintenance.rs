//! Checkpoints and requests while a store is being copied into a smaller file.

use codeq_core::command::{Cancel, Command};
use codeq_core::id::ShardId;
use codeq_core::settings::Settings;
use codeq_engine::{Options, layout};

use crate::harness::{TENANT, block, eventually, put, small};
use crate::start::start;

#[test]
fn a_checkpoint_does_not_wait_until_a_store_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    // One row per step, and thousands of rows.
    let store = codeq_store::Options {
        rewrite_slack: 64 << 10,
        rewrite_step: 1,
        ..codeq_store::Options::default()
    };
    let settings = Settings { retention: 1, ..Settings::default() };
    let options = Options { store, settings, memtable_bytes: 64 << 20, ..small() };
    let engine = start(dir.path(), options).unwrap();
    let large = format!("\"{}\"", "x".repeat(16 << 10));
    let gone: Vec<_> = (0..300).map(|_| put(&engine, "q", &large).id).collect();
    let kept: Vec<_> = (0..2_000).map(|n| put(&engine, "q", &n.to_string()).id).collect();
    engine.checkpoint().unwrap();
    for id in &gone {
        let (tenant, by) = (TENANT.into(), "w".into());
        engine.propose_blocking(Command::Cancel(Cancel { tenant, id: *id, by })).unwrap();
    }
    let is_gone = |id| block(engine.task(TENANT, id)).unwrap().is_none();
    eventually("they are removed", || gone.iter().all(|id| is_gone(*id)));
    engine.checkpoint().unwrap();
    let copy = codeq_store::unfinished_path(&layout::store_path(dir.path(), ShardId(0)));
    eventually("the store is copied", || copy.exists());
    engine.checkpoint().unwrap();
    assert!(copy.exists(), "the checkpoint waited for the whole copy");
    eventually("the copy is complete", || !copy.exists());
    assert!(kept.iter().all(|id| !is_gone(*id)));
}
