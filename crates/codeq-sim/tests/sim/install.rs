//! Installs the rows of another node, with a crash at every change of the disk: what is left is all of the old rows or
//! all of the new ones, after any number of attempts to start.

use std::path::Path;

use codeq_core::command::{Command, Enqueue, NewTask};
use codeq_core::digest::digest;
use codeq_core::id::ShardId;
use codeq_core::moment::Moment;
use codeq_core::state::State;
use codeq_disk::{Disk, SharedDisk};
use codeq_engine::install::{NOTE_BYTES_MAX, begin, commit, finish};
use codeq_engine::layout::{self, Manifest};
use codeq_engine::recover::OpenedDir;
use codeq_engine::request::Request;
use codeq_engine::{OpenError, Options};
use codeq_log::FrameIndex;
use codeq_sim::disk::{Faults, SimDisk};
use codeq_store::Store;

const SHARDS: u16 = 3;
const NOTE: &[u8] = b"entry 5 of term 2\0\xff";

fn dir() -> &'static Path {
    Path::new("/node")
}

fn options() -> Options {
    Options { shards: Some(SHARDS), segment_bytes: 64 << 10, ..Options::default() }
}

/// A node with some tasks in every shard, checkpointed at a position.
fn node(disk: &SimDisk, log_id: u64, tasks: usize, position: u64) -> OpenedDir {
    let mut node = OpenedDir::open(&disk.shared(), dir(), &options(), log_id).unwrap();
    for shard in &mut node.shards {
        shard.keep_digest();
        let tasks = vec![
            NewTask {
                command: "work".into(),
                payload: vec![b'1'; 3_000].into(),
                ..NewTask::default()
            };
            tasks + usize::from(shard.number.0)
        ];
        let enqueue = Enqueue { tenant: "tenant".into(), tasks, atomic: false, seed: log_id };
        let request = Request::detached(Command::Enqueue(enqueue));
        shard.apply(Moment::agreed(1_000 + log_id), [request]).unwrap();
        let job = shard.freeze(FrameIndex(position)).unwrap();
        shard.take_back(&mut job.run()).unwrap();
    }
    node
}

/// What distinguishes the rows of one node from those of another: position, digest of the writes, digest of the rows.
type Rows = Vec<(u64, u64, [u8; 32])>;

fn rows(disk: &SimDisk, manifest: Manifest) -> Rows {
    let of = |shard: ShardId| {
        let owner = Some(manifest.owner(shard));
        let options = codeq_store::Options { owner, ..codeq_store::Options::default() };
        let path = layout::store_path(dir(), shard);
        let store = Store::open(disk.shared(), &path, options).unwrap();
        let state = State::load(&store, shard, SHARDS).unwrap();
        (store.position(), store.digest(), digest(&state, &store).unwrap())
    };
    ShardId::all(SHARDS).map(of).collect()
}

/// The rows of a node as it sends them, by shard.
fn exported(node: &OpenedDir) -> Vec<Vec<Vec<u8>>> {
    let of = |shard: &codeq_engine::shard::Shard| {
        let mut export = shard.data().read().store.export();
        std::iter::from_fn(|| export.next_chunk().unwrap()).collect()
    };
    node.shards.iter().map(of).collect()
}

/// What depends on the rows: here a file with the note.
fn match_log_to_rows(disk: &SharedDisk, note: &[u8]) -> Result<(), OpenError> {
    let (new, path) = (dir().join("STATE.new"), dir().join("STATE"));
    let write = || {
        if disk.exists(&new)? {
            disk.remove(&new)?;
        }
        let file = disk.create(&new)?;
        file.write_all_at(note, 0)?;
        file.sync_data()?;
        disk.rename(&new, &path)?;
        disk.sync_dir(dir())
    };
    write().map_err(|source| OpenError::Io { action: "write", path, source })
}

fn receive(disk: &SimDisk, manifest: Manifest, streams: &[Vec<Vec<u8>>]) -> Result<(), OpenError> {
    let imports = begin(&disk.shared(), dir(), manifest, &options().store)?;
    for (mut import, chunks) in imports.into_iter().zip(streams) {
        for chunk in chunks {
            import.add(chunk)?;
        }
        import.finish()?;
    }
    Ok(())
}

fn install(disk: &SimDisk, manifest: Manifest, streams: &[Vec<Vec<u8>>]) -> Result<(), OpenError> {
    receive(disk, manifest, streams)?;
    commit(disk, dir(), manifest, NOTE)?;
    start(disk, manifest).map(|installed| assert!(installed))
}

fn start(disk: &SimDisk, manifest: Manifest) -> Result<bool, OpenError> {
    let shared = disk.shared();
    finish(disk, dir(), manifest, |note| match_log_to_rows(&shared, note))
}

/// Names of files that must not outlive an installation.
fn leftovers(disk: &SimDisk) -> Vec<String> {
    let dirs = ShardId::all(SHARDS).map(|shard| layout::shard_dir(dir(), shard));
    let names = dirs.chain([dir().to_owned()]).flat_map(|dir| disk.list(&dir).unwrap());
    names.filter(|name| name.contains("incoming") || name.starts_with("INSTALL")).collect()
}

fn crash(disk: &SimDisk, kind: u64) {
    match kind {
        0 => disk.kill(),
        _ => disk.power_cut(),
    }
}

#[test]
fn an_installation_is_complete_or_never_happened() {
    let source = SimDisk::new(0);
    let sender = node(&source, 8, 9, 5);
    let streams = exported(&sender);
    let (mut moment, mut outcomes) = (0, [0, 0]);
    loop {
        moment += 1;
        let mut done = false;
        for kind in 0..3 {
            let disk = SimDisk::new(moment * 10 + kind);
            let manifest = node(&disk, 7, 4, 0).manifest;
            disk.kill();
            let old = rows(&disk, manifest);
            disk.plan(Faults { cut_at_change: Some(moment), ..Faults::default() });
            done = install(&disk, manifest, &streams).is_ok() && !disk.is_dead();
            crash(&disk, kind);
            // The first start may not get far either.
            let second = 1 + moment % 11;
            disk.plan(Faults { cut_at_change: Some(second), ..Faults::default() });
            let _ = start(&disk, manifest);
            crash(&disk, (kind + 1) % 3);

            start(&disk, manifest).unwrap();
            let state = disk.bytes(&dir().join("STATE")).ok();
            let left = rows(&disk, manifest);
            let installed = state.is_some();
            assert!(installed || !done, "moment {moment}: a reported installation is lost");
            match state {
                Some(note) => {
                    assert_eq!(note, NOTE);
                    let sent: Rows = rows(&source, sender.manifest);
                    assert!(left == sent, "moment {moment}, {kind}: the new rows are incomplete");
                }
                None => {
                    assert!(left == old, "moment {moment}, {kind}: the old rows are incomplete")
                }
            }
            outcomes[usize::from(installed)] += 1;
            assert_eq!(leftovers(&disk), Vec::<String>::new(), "moment {moment}, {kind}");
            // Nor does it come back later, when the stores have moved on.
            start(&disk, manifest).unwrap();
            disk.power_cut();
            assert!(!start(&disk, manifest).unwrap(), "moment {moment}, {kind}");
        }
        if done {
            break;
        }
        assert!(moment < 5_000, "it never finishes");
    }
    assert!(moment > 60 && outcomes[0] > 50 && outcomes[1] > 20, "{moment}: {outcomes:?}");
}

#[test]
fn nothing_is_committed_before_every_shard_has_arrived() {
    let source = SimDisk::new(0);
    let streams = exported(&node(&source, 8, 9, 5));
    let disk = SimDisk::new(1);
    let manifest = node(&disk, 7, 4, 0).manifest;
    let mut imports = begin(&disk.shared(), dir(), manifest, &options().store).unwrap();
    // Rows of another shard are not taken by mistake.
    assert!(imports.remove(0).add(&streams[1][0]).is_err());
    for (mut import, chunks) in imports.into_iter().zip(&streams[1..]) {
        chunks.iter().for_each(|chunk| import.add(chunk).unwrap());
        import.finish().unwrap();
        let error = commit(&disk, dir(), manifest, NOTE).unwrap_err();
        assert!(error.to_string().contains("the rows of shard 0 have not arrived"), "{error}");
    }
    receive(&disk, manifest, &streams).unwrap();
    let long = vec![0; NOTE_BYTES_MAX + 1];
    assert!(commit(&disk, dir(), manifest, &long).is_err());
    assert!(!start(&disk, manifest).unwrap(), "not committed");
    receive(&disk, manifest, &streams).unwrap();
    commit(&disk, dir(), manifest, &long[1..]).unwrap();
    assert!(start(&disk, manifest).unwrap());
    assert_eq!(disk.bytes(&dir().join("STATE")).unwrap(), &long[1..]);
}

#[test]
fn a_single_node_refuses_a_committed_installation_and_clears_an_uncommitted_one() {
    let source = SimDisk::new(0);
    let streams = exported(&node(&source, 8, 9, 5));
    let disk = SimDisk::new(1);
    let manifest = node(&disk, 7, 4, 0).manifest;
    receive(&disk, manifest, &streams).unwrap();
    drop(OpenedDir::open(&disk.shared(), dir(), &options(), 1).unwrap());
    assert_eq!(leftovers(&disk), Vec::<String>::new());

    receive(&disk, manifest, &streams).unwrap();
    commit(&disk, dir(), manifest, NOTE).unwrap();
    let refused = || {
        let before = leftovers(&disk);
        let error = OpenedDir::open(&disk.shared(), dir(), &options(), 1).err().unwrap();
        assert_eq!(leftovers(&disk), before, "nothing was changed");
        error.to_string()
    };
    assert!(refused().contains("start it as a member of its cluster"));
    assert!(begin(&disk.shared(), dir(), manifest, &options().store).is_err());

    // Damage is refused by everybody, and so is a file of a newer version.
    let path = dir().join("INSTALL");
    let file = disk.open(&path).unwrap();
    let bytes = disk.bytes(&path).unwrap();
    for bit in 0..bytes.len() * 8 {
        let byte = bytes[bit / 8] ^ (1 << (bit % 8));
        file.write_all_at(&[byte], (bit / 8) as u64).unwrap();
        assert!(start(&disk, manifest).is_err(), "bit {bit}");
        file.write_all_at(&bytes, 0).unwrap();
    }
    file.write_all_at(b"codeq-install: 2", 0).unwrap();
    assert!(refused().contains("has format version 2"));
    file.write_all_at(&bytes, 0).unwrap();
    assert!(start(&disk, manifest).unwrap());
}
