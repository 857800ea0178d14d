//! Creates a directory, a backup and a restored one, with a power cut at every sync: what is left is complete, or
//! empty, or refused with its name; and what is refused is left unchanged.

use std::path::{Path, PathBuf};

use codeq_core::command::{Command, Enqueue, NewTask};
use codeq_disk::{Disk, SharedDisk};
use codeq_engine::backup::restore_on;
use codeq_engine::clock::SystemClock;
use codeq_engine::error::DirectoryOperation;
use codeq_engine::layout::Manifest;
use codeq_engine::recover::OpenedDir;
use codeq_engine::{Engine, OpenError, Options};
use codeq_sim::disk::{Faults, SimDisk};

/// Power cuts to try at each moment: different unsynced data survives each time.
const SEEDS: u64 = 2;
const TASKS: u64 = 6;

fn options() -> Options {
    Options { shards: Some(2), segment_bytes: 64 << 10, ..Options::default() }
}

fn open(disk: &SimDisk, dir: &Path) -> Result<OpenedDir, OpenError> {
    OpenedDir::open(&disk.shared(), dir, &options(), 7)
}

fn tasks(node: &OpenedDir) -> u64 {
    let of = |shard: &codeq_engine::shard::Shard| -> u64 {
        let data = shard.data().read();
        data.state.queues().map(|(_, row)| row.counts.total()).sum()
    };
    node.shards.iter().map(of).sum()
}

/// Names and contents of everything below a directory.
fn contents(disk: &SimDisk, dir: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    for name in disk.list(dir).unwrap_or_default() {
        let path = dir.join(name);
        let bytes = disk.bytes(&path).ok();
        if bytes.is_none() {
            found.extend(contents(disk, &path));
        }
        found.push((path, bytes));
    }
    found
}

/// Cuts the power at each sync of `work` and lets `judge` check what is left. `prepare` makes the disk that the work
/// starts with.
fn at_every_sync<T>(
    prepare: impl Fn(&SimDisk) -> T,
    work: impl Fn(&SimDisk, T) -> Result<(), OpenError>,
    judge: impl Fn(&SimDisk, bool),
) -> u64 {
    let mut moment = 0;
    loop {
        moment += 1;
        let mut done = false;
        for seed in 0..=SEEDS {
            let disk = SimDisk::new(seed + 1_000 * moment);
            let prepared = prepare(&disk);
            disk.plan(Faults { cut_at_sync: Some(moment), ..Faults::default() });
            done = work(&disk, prepared).is_ok() && !disk.is_dead();
            // The last one kills the process; the system continues.
            if seed == SEEDS {
                disk.kill()
            } else {
                disk.power_cut()
            }
            judge(&disk, done);
        }
        if done {
            return moment;
        }
        assert!(moment < 1_000, "it never finishes");
    }
}

#[test]
fn a_creation_is_complete_or_made_again() {
    for dir in ["/data", "data"] {
        is_complete_or_made_again(Path::new(dir));
    }
}

fn is_complete_or_made_again(dir: &Path) {
    let create = |disk: &SimDisk, ()| open(disk, dir).map(drop);
    let moments = at_every_sync(
        |_| {},
        create,
        |disk, _| {
            let node = open(disk, dir).unwrap();
            assert_eq!((node.shards.len(), tasks(&node)), (2, 0));
            drop(node);
            assert!(
                !disk.exists(&dir.join("INCOMPLETE")).unwrap(),
                "a directory in use has no mark"
            );
            disk.power_cut();
            assert!(Manifest::load(disk, dir).unwrap().is_some(), "an open directory is durable");
            assert!(open(disk, dir).is_ok());
        },
    );
    assert!(moments > 10, "only {moments} moments to fail at");
}

/// An engine with tasks, on a simulated disk. Its lock file is on a real one.
fn filled(disk: &SimDisk, root: &Path) -> Engine {
    disk.create_dir_all(root).unwrap();
    root.ancestors().skip(1).for_each(|above| disk.sync_dir(above).unwrap());
    let (shared, clock): (SharedDisk, _) = (disk.shared(), SystemClock::new());
    let engine = Engine::open_with(shared, &root.join("data"), options(), clock, 1).unwrap();
    let tasks = (0..TASKS).map(|n| NewTask {
        command: "work".into(),
        payload: n.to_string().into(),
        idempotency_key: Some(n.to_string().into()),
        ..NewTask::default()
    });
    for (task, seed) in tasks.zip(0..) {
        let enqueue = Enqueue { tenant: "acme".into(), tasks: vec![task], atomic: false, seed };
        engine.propose_blocking(Command::Enqueue(enqueue)).unwrap();
    }
    engine
}

/// What is left of `dir` is complete, or empty, or refused as an unfinished `operation`.
fn judge(disk: &SimDisk, dir: &Path, operation: DirectoryOperation, done: bool) {
    let before = contents(disk, dir);
    let complete = Manifest::load(disk, dir).unwrap().is_some();
    assert!(complete || !done, "done means complete");
    match open(disk, dir) {
        Ok(node) if complete => assert_eq!(tasks(&node), TASKS),
        Ok(node) => {
            // Nothing was there except a mark that was never finished.
            assert!(before.iter().all(|(path, _)| path.ends_with("INCOMPLETE.new")), "{before:?}");
            assert_eq!(tasks(&node), 0);
        }
        Err(error @ OpenError::Unfinished { operation: found, .. })
            if found == operation && !complete =>
        {
            let text = error.to_string();
            assert!(text.contains(&format!("run the {operation} again")), "{text}");
            assert!(contents(disk, dir) == before, "it was changed");
            assert!(restore_on(&disk.shared(), dir, Path::new("/new"), 64 << 10, 3).is_err());
        }
        Err(error) => panic!("{error}, complete: {complete}, of {before:?}"),
    }
}

#[test]
fn a_backup_is_complete_or_refused() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let target = root.join("backup");
    let moments = at_every_sync(
        |disk| filled(disk, root),
        |_, engine| engine.backup(&target).map(drop),
        |disk, done| judge(disk, &target, DirectoryOperation::Backup, done),
    );
    assert!(moments > 20, "only {moments} moments to fail at");
}

#[test]
fn a_restore_is_complete_or_refused() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let target = Path::new("/restored");
    let moments = at_every_sync(
        |disk| filled(disk, root).backup(&root.join("backup")).unwrap(),
        |disk, _| restore_on(&disk.shared(), &root.join("backup"), target, 64 << 10, 9),
        |disk, done| judge(disk, target, DirectoryOperation::Restore, done),
    );
    assert!(moments > 10, "only {moments} moments to fail at");
}
