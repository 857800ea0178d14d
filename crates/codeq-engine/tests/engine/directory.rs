//! Starting with directories whose files are missing, mixed up, damaged or of older versions.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use codeq_core::effect::Effect;
use codeq_core::id::ShardId;
use codeq_core::kv::{Kv, KvRead, Table};
use codeq_disk::{RealDisk, SharedDisk};
use codeq_engine::{Engine, Observer, OpenError, Options, SharedObserver, layout};
use codeq_store::Store;

use crate::harness::{TENANT, block, eventually, open, put, small};

const TASKS: u64 = 60;

fn sharded() -> Options {
    Options { shards: Some(3), ..small() }
}

/// A directory of three shards with tasks, closed.
fn filled(dir: &Path) {
    let engine = Engine::open(dir, sharded()).unwrap();
    (0..TASKS).for_each(|n| drop(put(&engine, "q", &n.to_string())));
}

fn ready(engine: &Engine) -> u64 {
    block(engine.queue(TENANT, "q")).unwrap().unwrap().counts.ready()
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.ends_with("LOCK") {
            found.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    found
}

/// Checks that the directory is refused and left unchanged.
#[track_caller]
fn refused(dir: &Path, part: &str) -> OpenError {
    let before = files(dir);
    let error = Engine::open(dir, small()).err().unwrap();
    let text = error.to_string();
    assert!(text.contains(part) && text.contains(dir.to_str().unwrap()), "{text}");
    assert!(files(dir) == before, "it was changed: {text}");
    error
}

fn flip(path: &Path, place: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[place] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

/// Offset of a payload in a store.
fn payload(store: &Path) -> usize {
    let bytes = std::fs::read(store).unwrap();
    bytes.windows(5).position(|window| window == b"\"find").unwrap()
}

#[test]
fn a_directory_that_lost_its_manifest_is_never_cleared() {
    let tmp = tempfile::tempdir().unwrap();
    filled(tmp.path());
    std::fs::remove_file(tmp.path().join("MANIFEST")).unwrap();
    refused(tmp.path(), "its MANIFEST is missing, but there is data");
    // A log that cannot be read is not an empty log.
    let log = layout::log_dir(tmp.path());
    for file in files(&log).into_keys() {
        flip(&file, 20);
    }
    refused(tmp.path(), "its MANIFEST is missing, but there is data");
    // Stores alone count too: an incomplete backup of a version that did not mark it.
    std::fs::remove_dir_all(log).unwrap();
    refused(tmp.path(), "its MANIFEST is missing, but there is data");
    std::fs::write(tmp.path().join("INCOMPLETE"), "unfinished restore\n").unwrap();
    let error = refused(tmp.path(), "remove the directory and run the restore again");
    assert!(matches!(error, OpenError::Unfinished { .. }));
    std::fs::write(tmp.path().join("INCOMPLETE"), "unfinished").unwrap();
    refused(tmp.path(), "INCOMPLETE is damaged");
}

#[test]
fn a_manifest_must_match_its_checksum_and_its_directory() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    filled(dir);
    let path = dir.join("MANIFEST");
    let good = std::fs::read_to_string(&path).unwrap();
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    for (from, to) in
        [("shards: 3", "shards: 1"), ("shards: 3", "shards: 03"), ("log-id: ", "log-id: 1")]
    {
        write(&good.replace(from, to));
        refused(dir, "its MANIFEST is damaged");
    }
    // Without the checksum, as in version 1, the other checks have to notice.
    let (fields, _) = good.split_once("checksum").unwrap();
    let old = fields.replace("codeq-format: 2", "codeq-format: 1");
    write(&old.replace("shards: 3", "shards: 1"));
    refused(dir, "shard-001 is there too");
    write(&old.replace("shards: 3", "shards: 4"));
    refused(dir, "shard-003 is missing");
    write(&format!("{}log-id: 7\n", old.split("log-id").next().unwrap()));
    refused(dir, "its log has the id");
    write(&old);
    let engine = open(dir);
    assert_eq!(ready(&engine), TASKS);
    drop(engine);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), good, "it became one of this version");
}

#[test]
fn stores_and_logs_in_the_wrong_place_are_refused() {
    let tmp = tempfile::tempdir().unwrap();
    let (dir, other) = (tmp.path().join("data"), tmp.path().join("other"));
    filled(&dir);
    filled(&other);
    let store = |shard| layout::store_path(&dir, ShardId(shard));
    let held = tmp.path().join("held");
    let swap = |a: &Path, b: &Path| {
        std::fs::rename(a, &held).unwrap();
        std::fs::rename(b, a).unwrap();
        std::fs::rename(&held, b).unwrap();
    };
    let not_here = |error: OpenError| {
        assert!(error.to_string().contains("does not belong here"), "{error}");
    };
    swap(&store(0), &store(1));
    not_here(Engine::open(&dir, small()).err().unwrap());
    swap(&store(0), &store(1));
    swap(&store(2), &layout::store_path(&other, ShardId(2)));
    not_here(Engine::open(&dir, small()).err().unwrap());
    swap(&store(2), &layout::store_path(&other, ShardId(2)));
    swap(&layout::log_dir(&dir), &layout::log_dir(&other));
    refused(&dir, "its log has the id");
    swap(&layout::log_dir(&dir), &layout::log_dir(&other));
    std::fs::create_dir(dir.join("shard-003")).unwrap();
    refused(&dir, "shard-003 is there too");
    std::fs::remove_dir(dir.join("shard-003")).unwrap();
    assert_eq!(ready(&open(&dir)), TASKS);
}

#[test]
fn a_damaged_store_is_rebuilt_if_the_log_has_everything() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    let engine = open(dir);
    (0..TASKS).for_each(|n| drop(put(&engine, "q", &format!("\"find {n}\""))));
    drop(engine);
    let store = layout::store_path(dir, ShardId(0));
    for (round, lost) in [false, true].into_iter().enumerate() {
        if lost {
            std::fs::remove_file(&store).unwrap();
        } else {
            flip(&store, payload(&store));
        }
        let engine = open(dir);
        assert_eq!(ready(&engine), TASKS);
        let [told] = engine.rebuilt() else { panic!("{:?}", engine.rebuilt()) };
        assert!(told.contains("; its rows were rebuilt from the log"), "{told}");
        assert_eq!(told.contains("store.damaged-1"), round == 0, "{told}");
        assert!(!told.contains("restore") && !told.contains("left as it is"), "{told}");
        drop(engine);
        assert!(dir.join("shard-000/store.damaged-1").exists());
        let engine = open(dir);
        assert_eq!((ready(&engine), engine.rebuilt().len()), (TASKS, 0));
    }
}

#[test]
fn a_store_of_a_newer_version_is_left_as_it_is() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    let engine = open(dir);
    put(&engine, "q", "1");
    drop(engine);
    let path = layout::store_path(dir, ShardId(0));
    let refused = |because: &str| {
        let error = Engine::open(dir, small()).err().unwrap().to_string();
        assert!(error.contains(because), "{error}");
        assert!(path.exists() && !dir.join("shard-000/store.damaged-1").exists());
    };
    // The log has everything, so a damaged store would be rebuilt.
    let disk: SharedDisk = Arc::new(RealDisk);
    let mut store = Store::open(disk, &path, codeq_store::Options::default()).unwrap();
    let mut row = store.get(Table::Meta, 0).unwrap().unwrap().to_vec();
    row[0] = 200;
    store.put(Table::Meta, 0, row.into());
    let position = store.position();
    let mut finished = store.freeze(position).unwrap().run();
    store.take_back(&mut finished).unwrap();
    drop(store);
    refused("has version 200");
    // The last byte of the file's magic number is the version of its layout.
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[2], 3).unwrap();
    refused("has format version 2");
}

#[test]
fn a_damaged_store_is_refused_if_the_log_does_not_have_everything() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    let engine = open(dir);
    let first = || codeq_log::verify(&RealDisk, &layout::log_dir(dir)).map(|log| log.first_index);
    let mut made = 0;
    eventually("the log is purged", || {
        put(&engine, "q", &format!("\"find {}\"", "x".repeat(3_000)));
        made += 1;
        if made % 50 == 0 {
            engine.checkpoint().unwrap();
        }
        first().is_ok_and(|first| first.0 > 1)
    });
    drop(engine);
    let store = layout::store_path(dir, ShardId(0));
    let good = std::fs::read(&store).unwrap();
    flip(&store, payload(&store));
    let error = Engine::open(dir, small()).err().unwrap().to_string();
    assert!(error.contains("is damaged") && error.contains(store.to_str().unwrap()), "{error}");
    // A start that does not verify everything leaves it to the reads, which stop the engine.
    let engine = Engine::open(dir, Options { verify_bytes_max: 0, ..small() });
    let error = match engine {
        Err(error) => error.to_string(),
        Ok(engine) => {
            let mut error = None;
            while error.is_none() {
                let claim = crate::harness::claim("q", 100);
                error = block(engine.claim(claim, 0)).err();
            }
            error.unwrap().to_string()
        }
    };
    assert!(error.contains("does not match its checksum"), "{error}");
    assert!(error.contains(store.to_str().unwrap()), "{error}");
    std::fs::write(&store, good).unwrap();
    assert_eq!(ready(&open(dir)), made);
}

/// Records the notifications about verified rows.
#[derive(Default)]
struct Reported(parking_lot::Mutex<Vec<u64>>);

impl Observer for Reported {
    fn committed(&self, _: ShardId, _: &[Effect]) {}

    fn scrubbed(&self, bytes: u64, _: Duration) {
        self.0.lock().push(bytes);
    }
}

/// Large stores are not verified at the start, but soon after it, and then regularly.
#[test]
fn the_scrub_finds_damage_that_nobody_reads() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    let engine = open(dir);
    let payload_of = |n| format!("\"find {n} {}\"", "x".repeat(300));
    (0..TASKS).for_each(|n| drop(put(&engine, "q", &payload_of(n))));
    drop(engine);
    let told = Arc::new(Reported::default());
    let options = Options {
        verify_bytes_max: 0,
        scrub_every: Duration::from_millis(10),
        // Hardly any cache, so that reads reach the file.
        store: codeq_store::Options { cache_bytes: 16 << 10, ..small().store },
        observer: SharedObserver(Some(Arc::clone(&told) as Arc<dyn Observer>)),
        ..small()
    };
    let engine = Engine::open(dir, options).unwrap();
    eventually("all rows are verified", || told.0.lock().len() > 1);
    let live = engine.stats().live_bytes;
    assert!(told.0.lock().iter().all(|bytes| *bytes == live && live > 20_000));
    assert!(engine.stats().scrubbed_bytes >= 2 * live);
    let store = layout::store_path(dir, ShardId(0));
    let file = std::fs::File::options().write(true).open(&store).unwrap();
    file.write_all_at(b"\"lost", payload(&store) as u64).unwrap();
    eventually("the engine stops", || engine.failure().is_some());
    let error = engine.failure().unwrap().to_string();
    assert!(error.contains("does not match its checksum"), "{error}");
    assert!(error.contains(store.to_str().unwrap()), "{error}");
}

/// Stores without block checksums, as version 1 wrote them, get them while the engine runs.
#[test]
fn an_older_directory_is_brought_up_to_date() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    filled(dir);
    for shard in ShardId::all(3) {
        let store = layout::store_path(dir, shard);
        std::fs::write(&store, without_sums(&std::fs::read(&store).unwrap())).unwrap();
    }
    let engine = open(dir);
    assert_eq!(ready(&engine), TASKS);
    let is_new = |shard| {
        let store = std::fs::read(layout::store_path(dir, shard)).unwrap();
        store.starts_with(b"cQs")
    };
    eventually("every store has its sums", || ShardId::all(3).all(is_new));
    drop(engine);
    assert_eq!(ready(&open(dir)), TASKS);
}

/// A store as older versions wrote it: the blocks without their checksums.
fn without_sums(bytes: &[u8]) -> Vec<u8> {
    let mut plain: Vec<u8> = bytes
        .chunks(4096)
        .enumerate()
        .filter(|(number, _)| !number.is_multiple_of(1025))
        .flat_map(|(_, block)| block.to_vec())
        .collect();
    plain[508..512].fill(0);
    plain
}
