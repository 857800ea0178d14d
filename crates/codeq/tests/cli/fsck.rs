//! `codeq fsck`: what it finds, and that it changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_core::kv::{Direction, Key, Kv, KvRead, Table};
use codeq_disk::RealDisk;
use codeq_engine::Engine;
use codeq_store::Store;

use crate::cli::harness::{Said, codeq, contents, copy, crashed, filled, options, put, text};

/// Runs fsck and checks that the directory is unchanged.
fn fsck(dir: &Path) -> Said {
    let before = contents(dir);
    let said = codeq(&["fsck", text(dir)]);
    assert!(contents(dir) == before, "fsck changed the directory");
    said
}

fn expect(said: &Said, code: i32, part: &str) {
    let Said { code: found, out, err } = said;
    assert_eq!(*found, code, "{out}{err}");
    assert!(out.contains(part) || err.contains(part), "{part:?} is not in:\n{out}{err}");
}

/// The segment that holds the first frame.
fn first_segment(dir: &Path) -> PathBuf {
    let files = contents(&dir.join("log")).into_keys();
    files.filter(|path| path.extension().is_some_and(|end| end == "seg")).min().unwrap()
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_healthy_directory_passes() {
    let tmp = tempfile::tempdir().unwrap();
    for shards in [1, 3] {
        let dir = tmp.path().join(shards.to_string());
        filled(&dir, shards);
        let said = fsck(&dir);
        expect(&said, 0, "no problems found");
        let tasks: u64 = said
            .out
            .lines()
            .filter_map(|line| {
                line.split_once(" task(s)")?.0.rsplit(' ').next()?.parse::<u64>().ok()
            })
            .sum();
        assert_eq!(tasks, 60, "{}", said.out);
    }
}

#[test]
fn a_crashed_directory_passes_with_the_log_applied_in_memory() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    crashed(&dir, 1);
    let said = fsck(&dir);
    expect(&said, 0, "60 task(s) in 1 queue(s)");
    assert!(!said.out.contains("after 0 frame(s)"), "{}", said.out);
}

#[test]
fn files_only_says_what_it_leaves_out() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    filled(&dir, 1);
    let said = codeq(&["fsck", "--files-only", text(&dir)]);
    expect(&said, 0, "the rows were not checked");
}

#[test]
fn a_flipped_byte_in_the_log_is_found_and_named() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    crashed(&dir, 1);
    let segment = first_segment(&dir);
    // Past the segment's header of 64 bytes and the first frame's of 40.
    flip(&segment, 110);
    let said = fsck(&dir);
    expect(&said, 1, "is corrupt at byte");
    expect(&said, 1, text(&segment));
    expect(&said, 1, "nothing was changed");
}

#[test]
fn a_flipped_byte_in_a_store_is_found_and_named() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    filled(&dir, 1);
    let store = dir.join("shard-000/store");
    let bytes = std::fs::read(&store).unwrap();
    // Inside a payload: the library trusts it, the checksum of the block does not.
    let at = bytes.windows(8).position(|window| window == br#"{"n": 17"#).unwrap();
    flip(&store, at + 6);
    let said = fsck(&dir);
    expect(&said, 1, "shard 0");
    expect(&said, 1, "is damaged");
}

#[test]
fn a_lost_log_and_a_lost_store_are_problems() {
    let tmp = tempfile::tempdir().unwrap();
    let healthy = tmp.path().join("healthy");
    filled(&healthy, 2);
    for lost in ["log/watermark", "shard-001/store", "MANIFEST"] {
        let dir = tmp.path().join(lost.replace('/', "-"));
        copy(&healthy, &dir);
        std::fs::remove_file(dir.join(lost)).unwrap();
        expect(&fsck(&dir), 1, "PROBLEM");
    }
}

#[test]
fn a_manifest_that_names_fewer_shards_is_a_problem() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    filled(&dir, 3);
    let manifest = std::fs::read_to_string(dir.join("MANIFEST")).unwrap();
    std::fs::write(dir.join("MANIFEST"), manifest.replace("shards: 3", "shards: 1")).unwrap();
    expect(&fsck(&dir), 1, "its MANIFEST is damaged");
    // As written by versions without a checksum.
    let (fields, _) = manifest.split_once("checksum").unwrap();
    let old = fields.replace("format: 2", "format: 1").replace("shards: 3", "shards: 1");
    std::fs::write(dir.join("MANIFEST"), old).unwrap();
    expect(&fsck(&dir), 1, "shard-001 is there too");
}

#[test]
fn swapped_stores_are_a_problem() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    filled(&dir, 2);
    let at = |name: &str| dir.join(name);
    std::fs::rename(at("shard-000/store"), at("held")).unwrap();
    std::fs::rename(at("shard-001/store"), at("shard-000/store")).unwrap();
    std::fs::rename(at("held"), at("shard-001/store")).unwrap();
    expect(&fsck(&dir), 1, "expected shard 0 of 2");
}

#[test]
fn a_log_of_another_directory_is_a_problem() {
    let tmp = tempfile::tempdir().unwrap();
    let (dir, other) = (tmp.path().join("data"), tmp.path().join("other"));
    filled(&dir, 1);
    filled(&other, 1);
    std::fs::remove_dir_all(dir.join("log")).unwrap();
    copy(&other.join("log"), &dir.join("log"));
    expect(&fsck(&dir), 1, "the manifest says");
}

#[test]
fn a_store_that_knows_more_than_the_log_is_a_problem() {
    let tmp = tempfile::tempdir().unwrap();
    let (dir, old) = (tmp.path().join("data"), tmp.path().join("old"));
    crashed(&old, 1);
    copy(&old, &dir);
    let engine = Engine::open(&dir, options()).unwrap();
    put(&engine, 60);
    drop(engine);
    std::fs::copy(dir.join("shard-000/store"), old.join("shard-000/store")).unwrap();
    expect(&fsck(&old), 1, "but the log ends at frame");
}

#[test]
fn rows_that_contradict_each_other_are_a_problem_in_files_that_are_sound() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    filled(&dir, 1);
    let path = dir.join("shard-000/store");
    let mut store = Store::open(Arc::new(RealDisk), &path, Default::default()).unwrap();
    let mut rows = Vec::new();
    store.scan(Table::Index, 0, Key::MAX, Direction::Forward, 1, &mut rows).unwrap();
    store.delete(Table::Index, rows[0].0);
    let mut flushed = store.freeze(store.position()).unwrap().run();
    store.take_back(&mut flushed).unwrap();
    drop((store, flushed));
    expect(&fsck(&dir), 1, "invariant 3: task ");
    expect(&codeq(&["fsck", "--files-only", text(&dir)]), 0, "the rows were not checked");
}

#[test]
fn a_directory_in_use_is_not_checked() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    let engine = Engine::open(&dir, options()).unwrap();
    put(&engine, 1);
    expect(&codeq(&["fsck", text(&dir)]), 2, "in use by another process");
    drop(engine);
    expect(&fsck(&dir), 0, "1 task(s)");
}

#[test]
fn what_is_no_data_directory_is_not_checked() {
    let tmp = tempfile::tempdir().unwrap();
    expect(&fsck(tmp.path()), 2, "not a codeQ data directory");
    expect(&codeq(&["fsck", text(&tmp.path().join("missing"))]), 2, "cannot open");
    let file = tmp.path().join("file");
    std::fs::write(&file, "").unwrap();
    expect(&codeq(&["fsck", text(&file)]), 2, "is not a directory");
    expect(&codeq(&["fsck"]), 2, "Usage");
}

#[test]
fn a_newer_directory_is_not_checked() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    filled(&dir, 1);
    let manifest = std::fs::read_to_string(dir.join("MANIFEST")).unwrap();
    let newer = manifest.replace("codeq-format: 2", "codeq-format: 99");
    assert_ne!(manifest, newer);
    std::fs::write(dir.join("MANIFEST"), newer).unwrap();
    expect(&fsck(&dir), 2, "format version 99");
}
