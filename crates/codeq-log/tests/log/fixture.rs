//! A stored log of format version 1, which every later version has to open.
//!
//! The files in `tests/fixtures/v1` are never changed. A version 2 would get a directory of its own, made with
//! `CODEQ_WRITE_FIXTURE=1 cargo test -p codeq-log fixture`, which never overwrites anything.

use std::path::{Path, PathBuf};

use codeq_log::{FrameIndex, Log, Options, verify};

use crate::support::*;

const OPTIONS: Options = Options { segment_bytes: 1024 };

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1")
}

fn write_fixture(dir: &Path) {
    let mut log = Log::create(real(), dir, OPTIONS, NEW).unwrap();
    feed(&mut log, 1..=30);
    log.purge(FrameIndex(15));
    prepare(&mut log);
    feed(&mut log, 31..=40);
    // An unsynced end, with a torn last frame.
    append(&mut log, &frame(41)).unwrap();
    append(&mut log, &frame(42)).unwrap();
    drop(log);
    let report = verify(&*real(), dir).unwrap();
    let current = report.segments.iter().rfind(|s| s.first_index.is_some()).unwrap();
    let mut bytes = std::fs::read(&current.file).unwrap();
    bytes[current.used as usize - 8..].fill(0);
    std::fs::write(&current.file, bytes).unwrap();
}

#[test]
fn fixture_of_version_1_opens() {
    if std::env::var_os("CODEQ_WRITE_FIXTURE").is_some() && !fixture().exists() {
        write_fixture(&fixture());
    }
    let tmp = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), tmp.path().join(entry.file_name())).unwrap();
    }
    let report = verify(&*real(), tmp.path()).unwrap();
    assert_eq!((report.last_index.0, report.watermark.0, report.log_id), (41, 40, NEW.log_id));
    assert!(report.torn_bytes > 0);
    let mut log = Log::open(real(), tmp.path(), OPTIONS).unwrap();
    assert!(log.first_index().0 > 1 && log.first_index().0 <= 16);
    assert_fed(&log, 41);
    feed(&mut log, 42..=80);
    assert_fed(&log, 80);
}
