//! The B-tree library's view of a file.
//!
//! It does two things besides forwarding calls. **Pacing**: a checkpoint writes tens of megabytes, and one large sync
//! at its end would hold up the log's syncs on the same device, so the file is synced every
//! [`sync_every`](crate::Options::sync_every) bytes while it is written. **Fail-stop**: after the first failed write
//! nothing reaches the file any more, so it stays at its last checkpoint while reads of that checkpoint continue. (The
//! library itself refuses every read after a failed write, which would stop a shard on a full disk.)

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use codeq_disk::DiskFile as _;
use parking_lot::{Mutex, RwLock};

use crate::blocks::BlockFile;
use crate::overlay::Overlay;

/// The file under a B-tree, shared by the library (through [`Backend`]) and the store.
pub(crate) struct PagedFile {
    file: BlockFile,
    /// Set permanently by the first failed write, or by [`PagedFile::detach`].
    detached: AtomicBool,
    overlay: RwLock<Overlay>,
    failure: Mutex<Option<io::Error>>,
    sync_every: u64,
    unsynced: AtomicU64,
    written: Mutex<WrittenBlocks>,
}

impl PagedFile {
    /// Wraps a file that is synced after every `sync_every` bytes.
    pub(crate) fn new(file: BlockFile, sync_every: u64) -> io::Result<Arc<Self>> {
        let len = file.len()?;
        Ok(Arc::new(PagedFile {
            file,
            detached: AtomicBool::new(false),
            overlay: RwLock::new(Overlay::default()),
            failure: Mutex::new(None),
            sync_every,
            unsynced: AtomicU64::new(0),
            written: Mutex::new(WrittenBlocks::of_file(len)),
        }))
    }

    /// Stops writing to the file; reads show later writes as if they had been made.
    pub(crate) fn detach(&self) -> io::Result<()> {
        let mut overlay = self.overlay.write();
        if !self.detached.load(Ordering::Acquire) {
            *overlay = Overlay::over(self.file.len()?);
            self.detached.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether the file accepts no more writes.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// Takes the write error that detached the file, if there was one.
    pub(crate) fn take_failure(&self) -> Option<io::Error> {
        self.failure.lock().take()
    }

    /// Whether an older release wrote the file, so that its blocks are not checked on read.
    pub(crate) fn is_plain(&self) -> bool {
        self.file.is_plain()
    }

    /// Approximate disk space used by the file.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.written.lock().count * BLOCK
    }

    /// Remembers the first failure and stops writing.
    fn fail(&self, error: io::Error) -> io::Result<()> {
        self.detach()?;
        self.failure.lock().get_or_insert(error);
        Ok(())
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)?;
        let len = data.len() as u64;
        self.written.lock().mark(offset, len);
        self.pace(len)
    }

    /// Syncs after every `sync_every` bytes.
    fn pace(&self, len: u64) -> io::Result<()> {
        if self.unsynced.fetch_add(len, Ordering::Relaxed) + len >= self.sync_every {
            self.sync_blocks()?;
        }
        Ok(())
    }

    fn sync_blocks(&self) -> io::Result<()> {
        self.unsynced.store(0, Ordering::Relaxed);
        // A sync that fails for lack of space has lost pages that the kernel had accepted. Unlike a refused write, it
        // must not look retryable.
        self.file.sync_blocks().map_err(|error| io::Error::other(format!("sync failed: {error}")))
    }

    fn try_sync(&self) -> io::Result<()> {
        self.file.write_sums(|len| self.pace(len))?;
        self.sync_blocks()
    }
}

/// The blocks of the file that were ever written. The library grows a file by doubling it, as a hole, and spreads its
/// pages over the new half; blocks that were never written take no disk space.
///
/// One bit per 4 KiB: 32 KiB of memory per GiB. An opened file counts as fully written.
#[derive(Default)]
struct WrittenBlocks {
    bits: Vec<u64>,
    count: u64,
}

const BLOCK: u64 = crate::blocks::BLOCK as u64;

impl WrittenBlocks {
    fn of_file(len: u64) -> Self {
        let mut blocks = WrittenBlocks::default();
        blocks.mark(0, len);
        blocks
    }

    fn mark(&mut self, offset: u64, len: u64) {
        for block in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            let word = (block / 64) as usize;
            if self.bits.len() <= word {
                self.bits.resize(word + 1, 0);
            }
            if let Some(bits) = self.bits.get_mut(word) {
                let bit = 1 << (block % 64);
                self.count += u64::from(*bits & bit == 0);
                *bits |= bit;
            }
        }
    }

    fn cut(&mut self, len: u64) {
        let end = len.div_ceil(BLOCK);
        self.bits.truncate(end.div_ceil(64) as usize);
        if !end.is_multiple_of(64)
            && let Some(last) = self.bits.get_mut((end / 64) as usize)
        {
            *last &= (1 << (end % 64)) - 1;
        }
        self.count = self.bits.iter().map(|bits| u64::from(bits.count_ones())).sum();
    }
}

/// The handle that the library owns.
pub(crate) struct Backend(pub(crate) Arc<PagedFile>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").finish_non_exhaustive()
    }
}

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        if self.0.is_detached() { Ok(self.0.overlay.read().len()) } else { self.0.file.len() }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let file = &self.0.file;
        if self.0.is_detached() {
            self.0.overlay.read().read(file, offset, out)
        } else {
            file.read_exact_at(out, offset)
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if !self.0.is_detached() {
            match self.0.file.set_len(len) {
                Ok(()) => {
                    self.0.written.lock().cut(len);
                    return Ok(());
                }
                Err(error) => self.0.fail(error)?,
            }
        }
        self.0.overlay.write().set_len(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.0.is_detached() {
            return Ok(());
        }
        self.0.try_sync().or_else(|error| self.0.fail(error))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if !self.0.is_detached() {
            match self.0.try_write(offset, data) {
                Ok(()) => return Ok(()),
                Err(error) => self.0.fail(error)?,
            }
        }
        self.0.overlay.write().write(&self.0.file, offset, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_blocks_are_counted_once_and_cut_with_the_file() {
        let mut blocks = WrittenBlocks::of_file(10 * BLOCK);
        blocks.mark(9 * BLOCK, 2 * BLOCK);
        assert_eq!(blocks.count, 11);
        blocks.mark(1000 * BLOCK, 1);
        assert_eq!(blocks.count, 12);
        blocks.cut(5 * BLOCK);
        assert_eq!(blocks.count, 5);
        blocks.cut(1000 * BLOCK);
        assert_eq!(blocks.count, 5);
    }
}
