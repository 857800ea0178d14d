//! A disk in memory that loses what was not synced, tears pages, fails, fills up and is slow.
//!
//! What survives a power cut is decided per 4 KiB page, only from the seed, the number of the crash, the name of the
//! file and the position of the page. The order of writes plays no role, so a library that writes its pages in an
//! order of its own does not change the outcome of a seed.
//!
//! Names are as fragile as bytes: creating, renaming or removing a file is durable only after the directory was
//! synced. Only one thread uses the disk at a time; the lock is there because the trait requires `Sync`.

mod file;
mod names;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_disk::{Disk, DiskFile, SharedDisk};
use parking_lot::Mutex;

use crate::rng::{mix, text_hash};
use file::Contents;
pub use file::{PAGE, SECTOR};
use names::Names;

/// What a file is for; faults are planned per class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Part of the log: segments and the watermark.
    Log,
    /// Anything else: the rows.
    Store,
}

impl Class {
    /// The class of a path, according to the file names of the log.
    pub fn of(path: &Path) -> Class {
        let name = path.file_name().map(|name| name.to_string_lossy());
        let name = name.unwrap_or_default();
        let log = [".seg", ".spare"].iter().any(|suffix| name.ends_with(suffix))
            || name.starts_with("watermark")
            || (name.ends_with(".new") && name.len() == 20);
        if log { Class::Log } else { Class::Store }
    }
}

/// Planned faults. Counts start when the plan is set.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// The n-th write (1 is the next) to a file of the class fails.
    pub fail_write: Option<(Class, u64)>,
    /// The n-th sync (1 is the next) of a file of the class fails, and whether its data is durable stays undecided.
    pub fail_sync: Option<(Class, u64)>,
    /// The power fails at the n-th sync of anything: it and everything after it fails.
    pub cut_at_sync: Option<u64>,
    /// The power fails at the n-th change: a file is created, written, resized, renamed or removed, or anything synced.
    pub cut_at_change: Option<u64>,
    /// Limit on the bytes of all files; new pages beyond it are refused.
    pub capacity: Option<u64>,
    /// What a sync costs in virtual milliseconds.
    pub sync_cost: u64,
}

#[derive(Default)]
struct Inner {
    seed: u64,
    crashes: u64,
    names: Names,
    files: BTreeMap<u64, Contents>,
    next_file: u64,
    faults: Faults,
    lying: Option<Class>,
    losing: Option<Class>,
    writes: BTreeMap<Class, u64>,
    syncs: BTreeMap<Class, u64>,
    all_syncs: u64,
    all_changes: u64,
    /// After a power cut, nothing works until the crash is over.
    dead: bool,
    /// Handles from before a crash are invalid.
    generation: u64,
    cost: u64,
    total_syncs: u64,
}

/// The simulated disk. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk(Arc<Mutex<Inner>>);

impl SimDisk {
    /// An empty disk; `seed` decides its crashes.
    pub fn new(seed: u64) -> SimDisk {
        let disk = SimDisk::default();
        disk.0.lock().seed = seed;
        disk
    }

    /// The disk in the form that the engine takes.
    pub fn shared(&self) -> SharedDisk {
        Arc::new(self.clone())
    }

    /// Replaces the planned faults.
    pub fn plan(&self, faults: Faults) {
        let mut inner = self.0.lock();
        inner.faults = faults;
        inner.writes.clear();
        inner.syncs.clear();
        inner.all_syncs = 0;
        inner.all_changes = 0;
    }

    /// From now on, syncs of this class report success but do nothing. Only for planted bugs.
    pub fn lie(&self, class: Class) {
        self.0.lock().lying = Some(class);
    }

    /// From now on, syncs of this class do nothing, and a power cut loses all that they should have kept: a cache without
    /// a battery. What is left is consistent, but old.
    pub fn lose_cache(&self, class: Class) {
        let mut inner = self.0.lock();
        (inner.lying, inner.losing) = (Some(class), Some(class));
    }

    /// Whether syncs do nothing.
    pub fn lies(&self) -> bool {
        self.0.lock().lying.is_some()
    }

    /// Cuts the power: open handles become invalid, and the seed decides which unsynced bytes and names survive.
    /// Afterwards the disk works again, without faults.
    pub fn power_cut(&self) {
        let mut inner = self.0.lock();
        inner.crashes += 1;
        let salt = mix(&[inner.seed, inner.crashes]);
        inner.names.power_cut(salt);
        let kept: BTreeMap<u64, PathBuf> =
            inner.names.files().map(|(path, file)| (file, path.to_owned())).collect();
        inner.files.retain(|file, _| kept.contains_key(file));
        for (file, path) in kept {
            let lost = inner.losing == Some(Class::of(&path));
            if let Some(contents) = inner.files.get_mut(&file) {
                if lost {
                    contents.lose_unsynced();
                }
                contents.power_cut(mix(&[salt, text_hash(&path.to_string_lossy())]));
            }
        }
        inner.revive();
    }

    /// A disk with what a power cut would certainly leave of some files: all that is synced, and nothing else. This disk
    /// does not change.
    pub fn synced_copy(&self, kept: impl Fn(&Path) -> bool) -> SimDisk {
        let inner = self.0.lock();
        let names = inner.names.durable();
        let mut files = BTreeMap::new();
        for (_, file) in names.files().filter(|(path, _)| kept(path)) {
            if let Some(contents) = inner.files.get(&file) {
                let mut contents = contents.clone();
                contents.lose_unsynced();
                files.insert(file, contents);
            }
        }
        let (seed, next_file) = (inner.seed, inner.next_file);
        SimDisk(Arc::new(Mutex::new(Inner { seed, names, files, next_file, ..Inner::default() })))
    }

    /// Whether a power cut would leave these files as they are.
    pub fn is_synced(&self, matters: impl Fn(&Path) -> bool) -> bool {
        let inner = self.0.lock();
        let synced = |file| inner.files.get(&file).is_none_or(Contents::is_synced);
        inner.names.is_synced(&matters)
            && inner.names.files().all(|(path, file)| !matters(path) || synced(file))
    }

    /// Kills the process: open handles become invalid, but the operating system keeps everything that was written.
    /// Afterwards the disk works again, without faults.
    pub fn kill(&self) {
        let mut inner = self.0.lock();
        inner.crashes += 1;
        inner.revive();
    }

    /// Whether a planned power cut has happened: nothing works until [`SimDisk::power_cut`].
    pub fn is_dead(&self) -> bool {
        self.0.lock().dead
    }

    /// Virtual milliseconds that the disk has taken since the last call.
    pub fn take_cost(&self) -> u64 {
        std::mem::take(&mut self.0.lock().cost)
    }

    /// Bytes of the pages of all files, including removed ones until the next power cut.
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// Syncs of files and directories so far.
    pub fn syncs(&self) -> u64 {
        self.0.lock().total_syncs
    }

    /// The current bytes of a file.
    pub fn bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path)?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

impl Inner {
    fn revive(&mut self) {
        self.faults = Faults::default();
        self.dead = false;
        self.generation += 1;
    }

    fn used(&self) -> u64 {
        self.files.values().map(Contents::allocated).sum()
    }

    fn alive(&self) -> io::Result<()> {
        if self.dead {
            return Err(io::Error::other("simulated power cut"));
        }
        Ok(())
    }

    fn before_change(&mut self) -> io::Result<()> {
        self.alive()?;
        self.all_changes += 1;
        if self.faults.cut_at_change == Some(self.all_changes) {
            self.dead = true;
        }
        self.alive()
    }

    fn before_sync(&mut self) -> io::Result<()> {
        self.before_change()?;
        self.total_syncs += 1;
        self.all_syncs += 1;
        self.cost += self.faults.sync_cost;
        if self.faults.cut_at_sync == Some(self.all_syncs) {
            self.dead = true;
        }
        self.alive()
    }
}

fn count(counts: &mut BTreeMap<Class, u64>, class: Class) -> (Class, u64) {
    let slot = counts.entry(class).or_default();
    *slot += 1;
    (class, *slot)
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, path.display().to_string())
}

impl Disk for SimDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let inner = self.0.lock();
        inner.alive()?;
        let file = inner.names.file(path).ok_or_else(|| not_found(path))?;
        Ok(self.handle(&inner, file, path))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.0.lock();
        inner.before_change()?;
        let file = inner.next_file;
        inner.names.create(path, file)?;
        inner.next_file += 1;
        inner.files.insert(file, Contents::default());
        Ok(self.handle(&inner, file, path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let inner = self.0.lock();
        inner.alive()?;
        Ok(inner.names.exists(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let inner = self.0.lock();
        inner.alive()?;
        inner.names.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.alive()?;
        inner.names.create_dir_all(dir);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.before_change()?;
        inner.names.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.before_change()?;
        inner.names.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.before_sync()?;
        inner.names.sync_dir(dir)
    }
}

impl SimDisk {
    fn handle(&self, inner: &Inner, file: u64, path: &Path) -> Box<dyn DiskFile> {
        Box::new(Handle {
            disk: self.clone(),
            generation: inner.generation,
            file,
            class: Class::of(path),
        })
    }
}

struct Handle {
    disk: SimDisk,
    generation: u64,
    file: u64,
    class: Class,
}

impl Handle {
    fn with<T>(
        &self,
        act: impl FnOnce(&mut Inner, &mut Contents) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut inner = self.disk.0.lock();
        inner.alive()?;
        let void = || io::Error::other("the handle was opened before a crash");
        if inner.generation != self.generation {
            return Err(void());
        }
        let mut contents = inner.files.remove(&self.file).ok_or_else(void)?;
        let outcome = act(&mut inner, &mut contents);
        inner.files.insert(self.file, contents);
        outcome
    }
}

impl DiskFile for Handle {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|_, contents| contents.read(buf, offset))
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.with(|inner, contents| {
            inner.before_change()?;
            let nth = count(&mut inner.writes, self.class);
            if inner.faults.fail_write == Some(nth) {
                return Err(io::Error::other("simulated write error"));
            }
            if let Some(capacity) = inner.faults.capacity {
                let used = inner.used() + contents.allocated();
                let grown = contents.new_pages(offset, data.len() as u64) * PAGE;
                if grown > 0 && used + grown > capacity {
                    return Err(io::ErrorKind::StorageFull.into());
                }
            }
            contents.write(data, offset);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|inner, contents| {
            inner.before_sync()?;
            let nth = count(&mut inner.syncs, self.class);
            if inner.faults.fail_sync == Some(nth) {
                return Err(io::Error::other("simulated sync error"));
            }
            if inner.lying != Some(self.class) {
                contents.sync();
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|inner, contents| {
            inner.before_change()?;
            contents.set_len(len);
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|_, contents| Ok(contents.len()))
    }
}

#[cfg(test)]
mod tests;
