//! What was acknowledged is there after a restart, however the engine ended.

use codeq_core::digest::digest;
use codeq_core::id::ShardId;
use codeq_engine::{Engine, OpenError, Options};

use crate::harness::{TENANT, block, open, put, small, submit, take};
use crate::start::start;

fn state_digest(engine: &Engine) -> [u8; 32] {
    block(engine.read(ShardId(0), |reader| digest(reader.state, reader.kv))).unwrap()
}

#[test]
fn a_full_cycle_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let waiting = put(&engine, "Send", "{\"n\":9007199254740993}");
    let done = put(&engine, "other", "1");
    let leased = take(&engine, "other", 1).remove(0);
    assert_eq!(leased.id, done.id);
    submit(&engine, done.id, "{\"ok\":true}").unwrap();
    let before = state_digest(&engine);
    drop(engine);

    let engine = open(dir.path());
    assert_eq!(state_digest(&engine), before);
    let task = block(engine.task(TENANT, waiting.id)).unwrap().unwrap();
    assert_eq!(task, waiting);
    assert_eq!(&*task.command, "Send");
    let (_, result) = block(engine.result(TENANT, done.id)).unwrap().unwrap();
    assert_eq!(result.unwrap().result.unwrap(), "{\"ok\":true}");
    assert!(block(engine.task("somebody else", waiting.id)).unwrap().is_none());
}

#[test]
fn thousands_of_tasks_survive_rotation_checkpoints_and_a_restart_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let payload = "x".repeat(500);
    let mut ids = Vec::new();
    for _ in 0..3_000 {
        ids.push(put(&engine, "q", &format!("\"{payload}\"")).id);
    }
    let first = take(&engine, "q", 1_000);
    assert!(first.iter().map(|task| task.id).eq(ids[..1_000].iter().copied()));
    for task in &first[..500] {
        submit(&engine, task.id, "{}").unwrap();
    }
    let before = state_digest(&engine);
    drop(engine);

    let engine = open(dir.path());
    assert_eq!(state_digest(&engine), before);
    let rest = take(&engine, "q", 1_000);
    assert!(rest.iter().map(|task| task.id).eq(ids[1_000..2_000].iter().copied()));
    let stats = block(engine.queue(TENANT, "q")).unwrap().unwrap();
    assert_eq!((stats.counts.ready(), stats.counts.in_progress), (1_000, 1_500));
    assert_eq!(stats.counts.completed, 500);
}

#[test]
fn a_copy_of_a_running_directory_recovers_to_the_same_state() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("a"));
    for n in 0..400 {
        put(&engine, "q", &n.to_string());
    }
    take(&engine, "q", 10);
    let before = state_digest(&engine);
    // What a killed process leaves: the files as the operating system has them.
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([dir.path().join("a"), dir.path().join("b")])
        .status()
        .unwrap();
    assert!(copied.success());
    let copy = open(&dir.path().join("b"));
    assert_eq!(state_digest(&copy), before);
}

#[test]
fn a_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _engine = open(dir.path());
    let error = start(dir.path(), small()).err().unwrap();
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
}

#[test]
fn foreign_newer_and_differently_sharded_directories_are_refused_untouched() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.txt"), "mine").unwrap();
    let error = start(dir.path(), small()).err().unwrap();
    assert!(error.to_string().contains("thesis.txt"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let wanted = Options { shards: Some(3), ..small() };
    let error = start(dir.path(), wanted).err().unwrap();
    assert!(matches!(error, OpenError::Shards { found: 1, wanted: 3, .. }), "{error}");

    let manifest = dir.path().join("MANIFEST");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("codeq-format: 2", "codeq-format: 3")).unwrap();
    let error = start(dir.path(), small()).err().unwrap();
    assert!(matches!(error, OpenError::TooNew { found: 3, supported: 2, .. }), "{error}");
}

#[test]
fn a_lost_manifest_does_not_cost_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    put(&engine, "q", "1");
    drop(engine);
    std::fs::remove_file(dir.path().join("MANIFEST")).unwrap();
    let error = start(dir.path(), small()).err().unwrap();
    assert!(error.to_string().contains("MANIFEST is missing"), "{error}");
}

#[test]
fn an_engine_that_starts_on_a_nearly_full_segment_gets_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let payload = format!("\"{}\"", "x".repeat(3_000));
    // Every start is at a different place in a segment; the first command of some no longer fits.
    for start in 0..40 {
        let engine = open(dir.path());
        for n in 0..(3 + start % 5) {
            put(&engine, "q", &format!("[{n},{payload}]"));
        }
    }
    let engine = open(dir.path());
    let stats = block(engine.queue(TENANT, "q")).unwrap().unwrap();
    assert_eq!(stats.counts.ready(), (0..40).map(|start| 3 + start % 5).sum::<u64>());
}
