//! Full queues and failing disks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use codeq_core::effect::Effect;
use codeq_core::id::{ShardId, TaskId};
use codeq_disk::{Disk, DiskFile, RealDisk};
use codeq_engine::clock::SystemClock;
use codeq_engine::{Engine, EngineError, Observer, Options, SharedObserver};

use crate::harness::{
    TENANT, block, enqueue, eventually, new_task, open, put, small, submit, take,
};
use crate::start::start_with;

/// A disk whose log syncs fail, or that runs out of something, on command.
#[derive(Default)]
struct Faults {
    fail_log_sync: AtomicBool,
    fail_dir_sync: AtomicBool,
    no_descriptors: AtomicBool,
    /// Bytes that files may still grow by; negative means no limit.
    space: AtomicI64,
}

impl Faults {
    fn open(&self) -> io::Result<()> {
        const EMFILE: i32 = 24;
        let none = self.no_descriptors.load(Ordering::SeqCst);
        if none { Err(io::Error::from_raw_os_error(EMFILE)) } else { Ok(()) }
    }
}

/// What the engine reports about its writes, in order.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Observer for Heard {
    fn committed(&self, _shard: ShardId, _effects: &[Effect]) {}

    fn shortage(&self, why: Option<&str>) {
        self.0.lock().unwrap().push(if why.is_some() { "short" } else { "enough" }.to_owned());
    }

    fn refusing(&self, why: Option<&EngineError>) {
        self.0.lock().unwrap().push(format!("{why:?}"));
    }
}

struct FaultyDisk(Arc<Faults>);

struct FaultyFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    faults: Arc<Faults>,
}

impl FaultyDisk {
    fn wrap(&self, path: &Path, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(FaultyFile { file, path: path.to_owned(), faults: Arc::clone(&self.0) })
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.0.open()?;
        Ok(self.wrap(path, RealDisk.open(path)?))
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.0.open()?;
        Ok(self.wrap(path, RealDisk.create(path)?))
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealDisk.exists(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.open()?;
        if self.0.fail_dir_sync.load(Ordering::SeqCst) {
            // Even if the error says that the disk is full, a failed sync is final.
            return Err(io::ErrorKind::StorageFull.into());
        }
        RealDisk.sync_dir(dir)
    }
}

impl FaultyFile {
    fn grow(&self, to: u64) -> io::Result<()> {
        let growth = to.saturating_sub(self.file.len()?) as i64;
        let left = self.faults.space.load(Ordering::SeqCst);
        if growth == 0 || left < 0 {
            return Ok(());
        }
        if growth > left {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.faults.space.fetch_sub(growth, Ordering::SeqCst);
        Ok(())
    }
}

impl DiskFile for FaultyFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.grow(offset + data.len() as u64)?;
        self.file.write_all_at(data, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        let in_log = self.path.parent().is_some_and(|dir| dir.ends_with("log"));
        if in_log && self.faults.fail_log_sync.load(Ordering::SeqCst) {
            return Err(io::Error::other("injected"));
        }
        self.file.sync_data()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.grow(len)?;
        self.file.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

fn faulty(dir: &Path, options: Options) -> (Engine, Arc<Faults>) {
    let faults = Arc::new(Faults { space: AtomicI64::new(-1), ..Faults::default() });
    let disk = Arc::new(FaultyDisk(Arc::clone(&faults)));
    (start_with(disk, dir, options, SystemClock::new(), 1).unwrap(), faults)
}

#[test]
fn a_failed_sync_acknowledges_nothing_and_stops_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, faults) = faulty(dir.path(), small());
    let kept = put(&engine, "q", "1");
    faults.fail_log_sync.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for n in 0..64 {
            let engine = &engine;
            scope.spawn(move || {
                let answer = engine.propose_blocking(enqueue(vec![new_task("q", "2")], n));
                assert!(matches!(answer, Err(EngineError::Failed(_))), "{answer:?}");
            });
        }
    });
    assert!(matches!(engine.failure(), Some(EngineError::Failed(_))));
    // State that is ahead of the disk is not shown.
    assert!(block(engine.task(TENANT, kept.id)).is_err());
    faults.fail_log_sync.store(false, Ordering::SeqCst);
    let answer = engine.propose_blocking(enqueue(vec![new_task("q", "3")], 1));
    assert!(matches!(answer, Err(EngineError::Failed(_))), "a failed sync is never retried");
    drop(engine);
    let engine = open(dir.path());
    assert!(block(engine.task(TENANT, kept.id)).unwrap().is_some());
}

/// Enqueues until that is refused; returns what was acknowledged, and the refusal.
fn fill(engine: &Engine) -> (Vec<TaskId>, EngineError) {
    let payload = format!("\"{}\"", "x".repeat(2_000));
    let mut acknowledged = Vec::new();
    loop {
        let command = enqueue(vec![new_task("q", &payload)], acknowledged.len() as u64);
        match engine.propose_blocking(command) {
            Ok(reply) => acknowledged.push(crate::harness::created(reply)[0].id),
            Err(error) => return (acknowledged, error),
        }
        assert!(acknowledged.len() < 100_000, "nothing was ever refused");
    }
}

#[test]
fn a_failed_sync_of_a_directory_stops_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, faults) = faulty(dir.path(), small());
    faults.fail_dir_sync.store(true, Ordering::SeqCst);
    let (acknowledged, refused) = fill(&engine);
    assert!(refused.to_string().contains("cannot sync"), "{refused}");
    assert_eq!(engine.failure(), Some(refused.clone()));
    assert_eq!(engine.refusing(), Some(refused));
    drop(engine);
    let engine = open(dir.path());
    for id in &acknowledged {
        assert!(block(engine.task(TENANT, *id)).unwrap().is_some());
    }
}

#[test]
fn without_descriptors_writes_are_refused_with_the_reason_and_resume_later() {
    let dir = tempfile::tempdir().unwrap();
    let heard = Arc::new(Heard::default());
    let observer = SharedObserver(Some(Arc::<Heard>::clone(&heard)));
    let (engine, faults) = faulty(dir.path(), Options { observer, ..small() });
    faults.no_descriptors.store(true, Ordering::SeqCst);
    let (acknowledged, refused) = fill(&engine);
    assert_eq!(refused, EngineError::NoDescriptors);
    assert_eq!((engine.failure(), engine.refusing()), (None, Some(refused)));
    // Requested more than once, reported once.
    assert_eq!(fill(&engine).1, EngineError::NoDescriptors);
    faults.no_descriptors.store(false, Ordering::SeqCst);
    eventually("writes work again", || {
        engine.propose_blocking(enqueue(vec![new_task("after", "1")], 1)).is_ok()
    });
    eventually("that is known", || engine.refusing().is_none());
    assert_eq!(*heard.0.lock().unwrap(), ["short", "Some(NoDescriptors)", "enough", "None"]);
    for id in &acknowledged {
        assert!(block(engine.task(TENANT, *id)).unwrap().is_some());
    }
}

#[test]
fn an_engine_that_failed_writes_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, faults) = faulty(dir.path(), small());
    put(&engine, "q", "1");
    let store = || std::fs::read(dir.path().join("shard-000/store")).unwrap();
    faults.fail_log_sync.store(true, Ordering::SeqCst);
    engine.propose_blocking(enqueue(vec![new_task("q", "2")], 1)).unwrap_err();
    eventually("it has failed", || engine.failure().is_some());
    faults.fail_log_sync.store(false, Ordering::SeqCst);
    let before = store();
    engine.shutdown();
    assert!(store() == before, "what may not be in the log reached the store");
}

#[test]
fn a_full_disk_refuses_writes_keeps_reads_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, faults) = faulty(dir.path(), small());
    let first = put(&engine, "q", "1");
    faults.space.store(0, Ordering::SeqCst);
    let (mut acknowledged, refused) = fill(&engine);
    acknowledged.push(first.id);
    assert_eq!(refused, EngineError::DiskFull);
    assert_eq!((engine.failure(), engine.refusing()), (None, Some(EngineError::DiskFull)));
    assert!(block(engine.task(TENANT, first.id)).unwrap().is_some(), "reads go on");
    faults.space.store(-1, Ordering::SeqCst);
    eventually("writes work again", || {
        engine.propose_blocking(enqueue(vec![new_task("after", "1")], 1)).is_ok()
    });
    for id in &acknowledged {
        assert!(block(engine.task(TENANT, *id)).unwrap().is_some());
    }
    drop(engine);
    let engine = open(dir.path());
    for id in &acknowledged {
        assert!(block(engine.task(TENANT, *id)).unwrap().is_some());
    }
    let got = take(&engine, "q", 1).remove(0);
    assert_eq!(got.id, first.id);
    submit(&engine, got.id, "{}").unwrap();
}

#[test]
fn a_full_inbox_answers_overloaded_and_does_not_grow() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    block(async {
        let mut answers = tokio::task::JoinSet::new();
        for n in 0..200_000 {
            let engine = Arc::clone(&engine);
            answers
                .spawn(async move { engine.propose(enqueue(vec![new_task("q", "1")], n)).await });
        }
        let (mut done, mut refused) = (0, 0);
        while let Some(answer) = answers.join_next().await {
            match answer.unwrap() {
                Ok(_) => done += 1,
                Err(EngineError::Overloaded) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        let stats = engine.queue(TENANT, "q").await.unwrap().unwrap();
        assert_eq!(stats.counts.ready(), done);
        assert!(refused > 0, "{done} done");
    });
}

#[test]
fn proposals_after_a_shutdown_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    put(&engine, "q", "1");
    engine.shutdown();
    let answer = engine.propose_blocking(enqueue(vec![new_task("q", "2")], 1));
    assert_eq!(answer, Err(EngineError::Closed));
}
