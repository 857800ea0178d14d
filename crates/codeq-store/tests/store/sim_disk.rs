//! A disk in memory that fills up, fails, and loses what was not synced.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use codeq_disk::{Disk, DiskFile};

const SECTOR: usize = 512;
const BLOCK: u64 = 4096;

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Default)]
struct Contents {
    now: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
    /// The blocks ever written: holes take no space.
    blocks: std::collections::BTreeSet<u64>,
}

type Shared = Arc<Mutex<Contents>>;

#[derive(Default)]
struct State {
    names: BTreeMap<PathBuf, Shared>,
    durable_names: BTreeMap<PathBuf, Shared>,
    faults: Faults,
    changes: u64,
    renames: u64,
}

/// The disk's faults.
#[derive(Default, Clone, Copy)]
pub struct Faults {
    /// Writes beyond this many bytes of all files are refused.
    pub capacity: Option<u64>,
    /// Every change after this many fails, as in a power cut.
    pub power_cut_after: Option<u64>,
    /// Syncs fail.
    pub sync_fails: bool,
}

#[derive(Clone, Default)]
pub struct SimDisk(Arc<Mutex<State>>);

impl SimDisk {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn shared(&self) -> codeq_disk::SharedDisk {
        Arc::new(self.clone())
    }

    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().unwrap().faults = faults;
    }

    /// Number of changes (writes, syncs, renames, …) requested so far.
    pub fn changes(&self) -> u64 {
        self.0.lock().unwrap().changes
    }

    /// How many files have been renamed.
    pub fn renames(&self) -> u64 {
        self.0.lock().unwrap().renames
    }

    /// The space taken by all files.
    pub fn used(&self) -> u64 {
        let state = self.0.lock().unwrap();
        state.names.values().map(|file| file.lock().unwrap().blocks.len() as u64 * BLOCK).sum()
    }

    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        self.0.lock().unwrap().names[path].lock().unwrap().now.clone()
    }

    pub fn put_file(&self, path: &Path, bytes: Vec<u8>) {
        let contents = Contents { now: bytes.clone(), durable: bytes, ..Contents::default() };
        let file = Arc::new(Mutex::new(contents));
        let mut state = self.0.lock().unwrap();
        state.names.insert(path.to_owned(), Arc::clone(&file));
        state.durable_names.insert(path.to_owned(), file);
    }

    /// What a power cut leaves: synced bytes, and of the others the sectors that the seed picks.
    pub fn after_power_cut(&self, seed: u64) -> SimDisk {
        let mut coin = Coin(seed);
        let state = self.0.lock().unwrap();
        // An unsynced rename or creation may have reached the disk nevertheless.
        let names = if coin.flip() { &state.names } else { &state.durable_names };
        let left = SimDisk::new();
        for (path, file) in names {
            let file = file.lock().unwrap();
            let mut bytes = file.durable.clone();
            for change in &file.unsynced {
                match change {
                    Change::Length(len) if coin.flip() => bytes.resize(*len as usize, 0),
                    Change::Length(_) => {}
                    Change::Write(offset, data) => {
                        for (number, sector) in data.chunks(SECTOR).enumerate() {
                            let at = *offset as usize + number * SECTOR;
                            if coin.flip() && at + sector.len() <= bytes.len() {
                                bytes[at..at + sector.len()].copy_from_slice(sector);
                            }
                        }
                    }
                }
            }
            left.put_file(path, bytes);
        }
        left
    }

    fn change(&self) -> io::Result<Faults> {
        let mut state = self.0.lock().unwrap();
        state.changes += 1;
        match state.faults.power_cut_after {
            Some(limit) if state.changes > limit => Err(io::Error::other("power cut")),
            _ => Ok(state.faults),
        }
    }
}

/// A tiny generator: the tests only need reproducible bits.
pub struct Coin(pub u64);

impl Coin {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    pub fn flip(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let state = self.0.lock().unwrap();
        let file = state.names.get(path).ok_or(ErrorKind::NotFound)?;
        Ok(Box::new(SimFile { disk: self.clone(), contents: Arc::clone(file) }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.change()?;
        let mut state = self.0.lock().unwrap();
        if state.names.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let contents = Shared::default();
        state.names.insert(path.to_owned(), Arc::clone(&contents));
        Ok(Box::new(SimFile { disk: self.clone(), contents }))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.0.lock().unwrap().names.contains_key(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.0.lock().unwrap();
        let inside = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect())
    }

    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change()?;
        let mut state = self.0.lock().unwrap();
        let file = state.names.remove(from).ok_or(ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), file);
        state.renames += 1;
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        self.0.lock().unwrap().names.remove(path).ok_or(ErrorKind::NotFound)?;
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        self.change()?;
        let mut state = self.0.lock().unwrap();
        state.durable_names = state.names.clone();
        Ok(())
    }
}

struct SimFile {
    disk: SimDisk,
    contents: Shared,
}

impl DiskFile for SimFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let file = self.contents.lock().unwrap();
        let from = offset as usize;
        let bytes = file.now.get(from..from + buf.len()).ok_or(ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let faults = self.disk.change()?;
        let blocks = offset / BLOCK..=(offset + data.len() as u64 - 1) / BLOCK;
        if let Some(capacity) = faults.capacity {
            let used = self.disk.used();
            let file = self.contents.lock().unwrap();
            let new = blocks.clone().filter(|block| !file.blocks.contains(block)).count() as u64;
            if new > 0 && used + new * BLOCK > capacity {
                return Err(ErrorKind::StorageFull.into());
            }
        }
        let mut file = self.contents.lock().unwrap();
        file.blocks.extend(blocks);
        let end = offset as usize + data.len();
        if file.now.len() < end {
            file.now.resize(end, 0);
        }
        file.now[offset as usize..end].copy_from_slice(data);
        file.unsynced.push(Change::Write(offset, data.to_vec()));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.disk.change()?.sync_fails {
            return Err(io::Error::other("the sync failed"));
        }
        let mut file = self.contents.lock().unwrap();
        file.durable = file.now.clone();
        file.unsynced.clear();
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.change()?;
        let mut file = self.contents.lock().unwrap();
        file.now.resize(len as usize, 0);
        file.blocks.retain(|block| block * BLOCK < len);
        file.unsynced.push(Change::Length(len));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.contents.lock().unwrap().now.len() as u64)
    }
}
