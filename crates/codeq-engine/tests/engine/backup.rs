//! Online backup and restore.

use std::sync::atomic::{AtomicBool, Ordering};

use codeq_engine::Options;
use codeq_engine::backup::restore;

use crate::harness::{TENANT, block, open, put, small, take};
use crate::start::start;

#[test]
fn a_backup_under_load_restores_to_everything_acknowledged_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("data"));
    let ids: Vec<_> = (0..500).map(|n| put(&engine, "q", &n.to_string()).id).collect();
    take(&engine, "q", 3);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200).for_each(|n| drop(put(&engine, "later", &n.to_string()))));
        let made = engine.backup(&dir.path().join("backup")).unwrap();
        assert!(made.tasks >= 500 && made.tasks <= 700, "{made:?}");
        let found = length(&dir.path().join("backup"));
        assert!(made.bytes <= found && found < made.bytes + (16 << 10), "{made:?}, {found} found");
    });
    let refused = engine.backup(&dir.path().join("backup")).unwrap_err();
    assert!(refused.to_string().contains("choose an empty directory"), "{refused}");
    drop(engine);

    restore(&dir.path().join("backup"), &dir.path().join("restored"), 256 << 10).unwrap();
    let engine = open(&dir.path().join("restored"));
    for id in &ids {
        assert!(block(engine.task(TENANT, *id)).unwrap().is_some());
    }
    let stats = block(engine.queue(TENANT, "q")).unwrap().unwrap();
    assert_eq!((stats.counts.ready(), stats.counts.in_progress), (497, 3));
    let next = take(&engine, "q", 1).remove(0);
    assert_eq!(next.id, ids[3]);
    // It is a directory of its own, and usable.
    put(&engine, "q", "1");
    drop(engine);
    let engine = open(&dir.path().join("restored"));
    let stats = block(engine.queue(TENANT, "q")).unwrap().unwrap();
    assert_eq!(stats.counts.ready(), 497);
}

/// The bytes of all files below.
fn length(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let bytes = |path: std::path::PathBuf| match path.is_dir() {
        true => length(&path),
        false => path.metadata().unwrap().len(),
    };
    entries.map(bytes).sum()
}

/// Shards are checkpointed at different frames, and a backup has each as of its own.
#[test]
fn shards_backed_up_at_different_frames_continue_from_one_index() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { shards: Some(3), ..small() };
    let engine = start(&dir.path().join("data"), options.clone()).unwrap();
    let ids: Vec<_> = (0..30).map(|n| put(&engine, "q", &n.to_string()).id).collect();
    let busy = AtomicBool::new(true);
    let (engine, busy) = (&engine, &busy);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Bounded, in case the rest fails.
            for _ in 0..20_000 {
                if busy.load(Ordering::SeqCst) {
                    put(engine, "later", "1");
                }
            }
        });
        for round in 0..8 {
            let backup = dir.path().join(format!("backup-{round}"));
            engine.backup(&backup).unwrap();
            let restored = dir.path().join(format!("restored-{round}"));
            restore(&backup, &restored, 256 << 10).unwrap();
            for dir in [backup, restored] {
                let copy = start(&dir, options.clone()).unwrap();
                for id in &ids {
                    assert!(block(copy.task(TENANT, *id)).unwrap().is_some());
                }
            }
        }
        busy.store(false, Ordering::SeqCst);
    });
}

#[test]
fn an_incomplete_backup_is_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("data"));
    engine.backup(&dir.path().join("backup")).unwrap();
    std::fs::remove_file(dir.path().join("backup/MANIFEST")).unwrap();
    let refused = restore(&dir.path().join("backup"), &dir.path().join("to"), 256 << 10);
    assert!(refused.unwrap_err().to_string().contains("not a complete backup"));
}
