//! A disk whose N-th operation fails, or that cannot grow.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use codeq_disk::{Disk, DiskFile, RealDisk};

/// Input/output error.
pub const EIO: i32 = 5;
/// No space left on device.
pub const ENOSPC: i32 = 28;

/// The faults, shared by the disk, its files and the test.
#[derive(Debug, Default)]
pub struct Faults {
    /// Number of changing operations so far.
    pub done: AtomicU64,
    /// Number of the operation that fails, once; 0 means none.
    pub fail_at: AtomicU64,
    /// The error number.
    pub errno: AtomicU64,
    /// Every sync fails from now on.
    pub fail_syncs: AtomicBool,
    /// Whatever needs more space fails.
    pub full: AtomicBool,
    /// The fault has happened.
    pub tripped: AtomicBool,
}

impl Faults {
    fn step(&self) -> io::Result<()> {
        let number = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        if number == self.fail_at.load(Ordering::SeqCst) {
            return self.trip(self.errno.load(Ordering::SeqCst) as i32);
        }
        Ok(())
    }

    fn trip(&self, errno: i32) -> io::Result<()> {
        self.tripped.store(true, Ordering::SeqCst);
        Err(io::Error::from_raw_os_error(errno))
    }

    fn sync(&self) -> io::Result<()> {
        self.step()?;
        if self.fail_syncs.load(Ordering::SeqCst) {
            return self.trip(EIO);
        }
        Ok(())
    }

    fn grow(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return self.trip(ENOSPC);
        }
        Ok(())
    }
}

/// The operating system's disk, with faults.
pub struct FaultyDisk(pub Arc<Faults>);

impl FaultyDisk {
    fn file(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(FaultyFile { file, faults: Arc::clone(&self.0) })
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(RealDisk.open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.0.step()?;
        self.0.grow()?;
        Ok(self.file(RealDisk.create(path)?))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealDisk.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.0.step()?;
        RealDisk.create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.step()?;
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.step()?;
        RealDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync()?;
        RealDisk.sync_dir(dir)
    }
}

struct FaultyFile {
    file: Box<dyn DiskFile>,
    faults: Arc<Faults>,
}

impl DiskFile for FaultyFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if let Err(error) = self.faults.step() {
            // A failed write may have written a part.
            let part = data.get(..data.len() / 2).unwrap_or_default();
            self.file.write_all_at(part, offset)?;
            return Err(error);
        }
        if offset.saturating_add(data.len() as u64) > self.file.len()? {
            self.faults.grow()?;
        }
        self.file.write_all_at(data, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.sync()?;
        self.file.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.step()?;
        if len > self.file.len()? {
            self.faults.grow()?;
        }
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
