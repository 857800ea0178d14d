//! A disk in memory that forgets, tears, fails and fills up.
//!
//! Durable and merely written content are kept apart, for both bytes and names. A power cut keeps a random part of what
//! was not synced: each sector of each write and each change of a name independently.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use codeq_disk::{Disk, DiskFile};

const SECTOR: usize = 64;

/// The files of a directory tree.
pub type Image = BTreeMap<PathBuf, Vec<u8>>;

/// What can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Create,
    Rename,
    Remove,
    SyncDir,
    Write,
    Sync,
}

pub const OPS: [Op; 6] = [Op::Create, Op::Rename, Op::Remove, Op::SyncDir, Op::Write, Op::Sync];

/// A scheduled failure.
#[derive(Debug, Clone, Copy)]
pub struct Fuse {
    /// Which operations count; all kinds if `None`.
    pub op: Option<Op>,
    /// How many of them still succeed.
    pub left: u64,
    /// Whether everything fails from then on, as if the process had died there.
    pub dead: bool,
}

#[derive(Default)]
struct Inode {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

enum NameOp {
    Set(PathBuf, usize),
    Rename(PathBuf, PathBuf, usize),
    Remove(PathBuf),
}

#[derive(Default)]
struct State {
    inodes: Vec<Inode>,
    names: Names,
    durable_names: Names,
    unsynced_names: Vec<NameOp>,
    fuse: Option<Fuse>,
    blown: bool,
    capacity: Option<usize>,
}

impl State {
    /// Whether this operation has to fail.
    fn strikes(&mut self, op: Op) -> bool {
        let Some(fuse) = self.fuse.as_mut() else {
            return false;
        };
        if self.blown && fuse.dead {
            return true;
        }
        if self.blown || fuse.op.is_some_and(|wanted| wanted != op) {
            return false;
        }
        self.blown = fuse.left == 0;
        fuse.left = fuse.left.saturating_sub(1);
        self.blown
    }
}

impl NameOp {
    fn path(&self) -> &Path {
        match self {
            NameOp::Set(path, _) | NameOp::Rename(path, ..) | NameOp::Remove(path) => path,
        }
    }
}

type Names = BTreeMap<PathBuf, usize>;

fn apply(names: &mut Names, op: &NameOp) {
    match op {
        NameOp::Set(path, inode) => {
            names.insert(path.clone(), *inode);
        }
        NameOp::Rename(from, to, inode) => {
            names.remove(from);
            names.insert(to.clone(), *inode);
        }
        NameOp::Remove(path) => {
            names.remove(path);
        }
    }
}

fn eio() -> io::Error {
    io::Error::other("injected failure")
}

fn put(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(data);
}

/// Random numbers from a seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The disk. Clones are the same disk.
#[derive(Clone, Default)]
pub struct MemDisk(Arc<Mutex<State>>);

impl MemDisk {
    pub fn from_image(image: &Image) -> Self {
        let disk = Self::default();
        let mut state = disk.state();
        for (path, bytes) in image {
            let inode = state.inodes.len();
            state.inodes.push(Inode {
                durable: bytes.clone(),
                current: bytes.clone(),
                unsynced: Vec::new(),
            });
            state.names.insert(path.clone(), inode);
            state.durable_names.insert(path.clone(), inode);
        }
        drop(state);
        disk
    }

    /// What a process sees now.
    pub fn image(&self) -> Image {
        let state = self.state();
        state.names.iter().map(|(p, i)| (p.clone(), state.inodes[*i].current.clone())).collect()
    }

    /// The disk after a power cut: what was synced, and a random part of the rest.
    pub fn power_cut(&self, rng: &mut Rng) -> MemDisk {
        let state = self.state();
        // Often everything or nothing survives, which independent coin flips would hardly ever produce.
        let odds = [0, 1, 5, 9, 10][rng.below(5) as usize];
        let mut names = state.durable_names.clone();
        for op in &state.unsynced_names {
            if rng.below(10) < odds {
                apply(&mut names, op);
            }
        }
        let odds = [0, 1, 5, 9, 10][rng.below(5) as usize];
        let mut image = Image::new();
        for (path, inode) in &names {
            let inode = &state.inodes[*inode];
            let mut bytes = inode.durable.clone();
            for (offset, data) in &inode.unsynced {
                let mut at = 0;
                while at < data.len() {
                    let step = (SECTOR - (offset + at) % SECTOR).min(data.len() - at);
                    if rng.below(10) < odds {
                        put(&mut bytes, offset + at, &data[at..at + step]);
                    }
                    at += step;
                }
            }
            image.insert(path.clone(), bytes);
        }
        Self::from_image(&image)
    }

    pub fn light(&self, fuse: Fuse) {
        let mut state = self.state();
        (state.fuse, state.blown) = (Some(fuse), false);
    }

    /// Whether the failure has happened; cancels it.
    pub fn extinguish(&self) -> bool {
        let mut state = self.state();
        state.fuse = None;
        std::mem::take(&mut state.blown)
    }

    pub fn set_capacity(&self, bytes: Option<usize>) {
        self.state().capacity = bytes;
    }

    pub fn used(&self) -> usize {
        let state = self.state();
        state.names.values().map(|inode| state.inodes[*inode].current.len()).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn file(&self, inode: usize) -> Box<dyn DiskFile> {
        Box::new(MemFile { disk: self.clone(), inode })
    }
}

impl Disk for MemDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.state().names.get(path).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(inode))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        if state.strikes(Op::Create) {
            return Err(eio());
        }
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        state.names.insert(path.to_owned(), inode);
        state.unsynced_names.push(NameOp::Set(path.to_owned(), inode));
        drop(state);
        Ok(self.file(inode))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.state().names.keys().any(|name| name.starts_with(path)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.state();
        let inside = state.names.keys().filter_map(|name| name.strip_prefix(dir).ok());
        Ok(inside.map(|name| name.to_string_lossy().into_owned()).collect())
    }

    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.strikes(Op::Rename) {
            return Err(eio());
        }
        let inode = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), inode);
        state.unsynced_names.push(NameOp::Rename(from.to_owned(), to.to_owned(), inode));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.strikes(Op::Remove) {
            return Err(eio());
        }
        state.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        state.unsynced_names.push(NameOp::Remove(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.strikes(Op::SyncDir) {
            return Err(eio());
        }
        for op in std::mem::take(&mut state.unsynced_names) {
            if op.path().parent() == Some(dir) {
                apply(&mut state.durable_names, &op);
            } else {
                state.unsynced_names.push(op);
            }
        }
        Ok(())
    }
}

struct MemFile {
    disk: MemDisk,
    inode: usize,
}

impl DiskFile for MemFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.state();
        let bytes = &state.inodes[self.inode].current;
        let from = offset as usize;
        let part = bytes.get(from..from + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(part);
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let mut result = Ok(());
        let mut data = data;
        if state.strikes(Op::Write) {
            // A failed write may have written a part.
            let dead = state.fuse.is_some_and(|fuse| fuse.dead);
            result = Err(eio());
            data = &data[..if dead { 0 } else { data.len() / 2 }];
        }
        if let Some(capacity) = state.capacity {
            let used: usize =
                state.names.values().map(|inode| state.inodes[*inode].current.len()).sum();
            let len = state.inodes[self.inode].current.len();
            let fits = (len + capacity.saturating_sub(used)).saturating_sub(offset as usize);
            if fits < data.len() {
                // As much as fits is written.
                data = &data[..fits];
                result = Err(io::ErrorKind::StorageFull.into());
            }
        }
        let inode = &mut state.inodes[self.inode];
        put(&mut inode.current, offset as usize, data);
        inode.unsynced.push((offset as usize, data.to_vec()));
        result
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        let fails = state.strikes(Op::Sync);
        let dead = fails && state.fuse.is_some_and(|fuse| fuse.dead);
        let inode = &mut state.inodes[self.inode];
        if fails {
            // Like Linux: the pages count as clean afterwards, but were never written.
            if !dead {
                inode.unsynced.clear();
            }
            return Err(eio());
        }
        let Inode { durable, current, unsynced } = inode;
        durable.resize(current.len(), 0);
        for (offset, data) in std::mem::take(unsynced) {
            put(durable, offset, &data);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.strikes(Op::Write) {
            return Err(eio());
        }
        state.inodes[self.inode].current.resize(len as usize, 0);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().inodes[self.inode].current.len() as u64)
    }
}
