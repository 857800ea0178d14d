//! One redb file: creating it, opening it, and the state of its last checkpoint.
//!
//! Only this module, [`crate::write`], [`crate::backend`] and [`crate::error`] name the library's types. A file holds
//! one table per [`Table`], and a small table of numbers: the format version, the log index up to which the rows are
//! complete, the live bytes, the owner, and the write digest if one is kept.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::kv::{Direction, Key, KvError, Table};
use codeq_disk::SharedDisk;
use redb::{ReadableDatabase, ReadableTableMetadata, TableDefinition};

use crate::backend::{Backend, PagedFile};
use crate::blocks::BlockFile;
use crate::error::StoreError;
use crate::per_table::PerTable;
use crate::row;
use crate::{Options, Owner};

/// The format that this release writes. Version 1: a redb v3 file with the tables below except `record`, rows as in
/// [`crate::row`]. Version 2: adds the table `record`. Version 3: adds the owner to the numbers; the file consists of
/// checked blocks ([`crate::blocks`]), except for older files that are not rewritten yet. A release that changes any of
/// this raises the number, reads the older ones, and adds a fixture to `tests/fixtures`.
const FORMAT: u64 = 3;

const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("checkpoint");

/// A table's name in the file; part of the format, like the table's number.
pub(crate) fn definition(table: Table) -> TableDefinition<'static, Key, &'static [u8]> {
    TableDefinition::new(match table {
        Table::Body => "body",
        Table::Task => "task",
        Table::Pending => "pending",
        Table::Index => "index",
        Table::Timer => "timer",
        Table::Idempotency => "idempotency",
        Table::Queue => "queue",
        Table::Outbox => "outbox",
        Table::Meta => "meta",
        Table::Record => "record",
    })
}

/// The numbers stored with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CheckpointNumbers {
    /// Log index up to which the rows are complete.
    pub(crate) position: u64,
    /// Bytes of all rows including keys: the size of a perfectly packed file.
    pub(crate) live_bytes: u64,
    /// The write digest of the rows; 0 if none is kept.
    pub(crate) digest: u64,
    /// The owner of the rows; `None` in a file of an older release.
    pub(crate) owner: Option<Owner>,
}

impl CheckpointNumbers {
    /// Writes the numbers in the same transaction as the rows they describe.
    pub(crate) fn save(self, transaction: &redb::WriteTransaction) -> Result<(), redb::Error> {
        let mut numbers = transaction.open_table(NUMBERS)?;
        numbers.insert("format", FORMAT)?;
        numbers.insert("position", self.position)?;
        numbers.insert("live_bytes", self.live_bytes)?;
        if self.digest != 0 {
            // With its position, which shows if it is stale: a release that knows nothing of digests writes later
            // checkpoints and leaves the digest as it was.
            numbers.insert("digest", self.digest)?;
            numbers.insert("digest_position", self.position)?;
        }
        if let Some(Owner { shard, shards, log_id }) = self.owner {
            numbers.insert("shard", u64::from(shard))?;
            numbers.insert("shards", u64::from(shards))?;
            numbers.insert("log_id", log_id)?;
        }
        Ok(())
    }
}

/// What a commit guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Survives a crash once it has returned.
    Checkpoint,
    /// Nothing: for a file that is still being built, which a crash discards.
    None,
}

/// An open redb file. Dropping it closes it cleanly, unless it has been detached.
pub(crate) struct StoreFile {
    pub(crate) path: PathBuf,
    pub(crate) paged: Arc<PagedFile>,
    /// `None` once the file is closed.
    db: Option<redb::Database>,
}

impl Drop for StoreFile {
    fn drop(&mut self) {
        // Guarded: a panic over a malformed page poisons the library's locks, and then closing panics again. The last
        // checkpoint is durable whether or not closing succeeds.
        let _ = self.close();
    }
}

impl StoreFile {
    /// Creates an empty store at `path`. Until the first durable commit and a sync of the directory, the file is
    /// neither durable nor complete, so callers build it under a temporary name and rename it.
    pub(crate) fn build(
        disk: &SharedDisk,
        path: &Path,
        options: &Options,
    ) -> Result<StoreFile, StoreError> {
        let file = disk.create(path).map_err(|error| StoreError::io(path, error))?;
        Self::start(BlockFile::create(file), path, options, false)
    }

    /// Opens the store at `path` and reads its checkpoint.
    pub(crate) fn open(
        disk: &SharedDisk,
        path: &Path,
        options: &Options,
    ) -> Result<(StoreFile, CheckpointNumbers), StoreError> {
        // The library writes to the file when opening it, so first check without writing that we understand the file
        // and that it is ours.
        let seen = Self::existing(disk, path, options, true)?;
        let checkpoint = check_owner(path, seen.checkpoint()?, options.owner)?;
        drop(seen);
        Ok((Self::existing(disk, path, options, false)?, checkpoint))
    }

    /// Opens the store at `path` without changing the file.
    pub(crate) fn open_unchanged(
        disk: &SharedDisk,
        path: &Path,
        options: &Options,
    ) -> Result<StoreFile, StoreError> {
        Self::existing(disk, path, options, true)
    }

    fn existing(
        disk: &SharedDisk,
        path: &Path,
        options: &Options,
        unchanged: bool,
    ) -> Result<StoreFile, StoreError> {
        let file = disk.open(path).map_err(|error| StoreError::io(path, error))?;
        // The library would silently make a new database from an empty file.
        if file.is_empty().map_err(|error| StoreError::io(path, error))? {
            return Err(StoreError::corrupt(path, "the file is empty"));
        }
        Self::start(BlockFile::open(file, path)?, path, options, unchanged)
    }

    fn start(
        file: BlockFile,
        path: &Path,
        options: &Options,
        unchanged: bool,
    ) -> Result<StoreFile, StoreError> {
        let io_error = |error| StoreError::io(path, error);
        let paged = PagedFile::new(file, options.sync_every).map_err(io_error)?;
        if unchanged {
            paged.detach().map_err(io_error)?;
        }
        let db = guarded(path, || {
            redb::Builder::new()
                .set_cache_size(options.cache_bytes)
                // Every durable commit records the allocator's state, so a crash never requires a walk over the whole
                // file. If one seems necessary, the file is not what we left behind: refuse it, rather than let a
                // repair change the evidence.
                .set_repair_callback(|repair| repair.abort())
                .create_with_backend(Backend(Arc::clone(&paged)))
                .map_err(redb::Error::from)
        })?;
        if let Some(error) = paged.take_failure() {
            return Err(StoreError::io(path, error));
        }
        Ok(StoreFile { path: path.to_owned(), db: Some(db), paged })
    }

    /// Closes the file, which trims it to its contents. It cannot be used afterwards.
    pub(crate) fn close(&mut self) -> Result<(), StoreError> {
        let db = self.db.take();
        guarded(&self.path, || {
            drop(db);
            Ok(())
        })?;
        match self.paged.take_failure() {
            Some(error) => Err(StoreError::io(&self.path, error)),
            None => Ok(()),
        }
    }

    fn db(&self) -> Result<&redb::Database, redb::Error> {
        self.db.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    /// Whether all pages and their allocation verify. Reads the whole file.
    pub(crate) fn verify_pages(&mut self) -> Result<bool, StoreError> {
        guarded(&self.path, || {
            let db = self.db.as_mut().ok_or(redb::Error::DatabaseClosed)?;
            Ok(db.check_integrity()?)
        })
    }

    /// The numbers of the last durable checkpoint. Refuses formats that this release does not know.
    pub(crate) fn checkpoint(&self) -> Result<CheckpointNumbers, StoreError> {
        let numbers = guarded(&self.path, || {
            let numbers = self.db()?.begin_read()?.open_table(NUMBERS)?;
            let read = |name| Ok::<_, redb::Error>(numbers.get(name)?.map(|number| number.value()));
            let owner = [read("shard")?, read("shards")?, read("log_id")?];
            let digest = read("digest")?.zip(read("digest_position")?);
            Ok(([read("format")?, read("position")?, read("live_bytes")?], owner, digest))
        })?;
        let owner = match numbers.1 {
            [Some(shard), Some(shards), Some(log_id)] => u16::try_from(shard)
                .ok()
                .zip(u16::try_from(shards).ok())
                .map(|(shard, shards)| Owner { shard, shards, log_id }),
            _ => None,
        };
        match numbers.0 {
            [Some(found), _, _] if found > FORMAT => {
                Err(StoreError::TooNew { path: self.path.clone(), found, supported: FORMAT })
            }
            [Some(1..=FORMAT), Some(position), Some(live_bytes)] => {
                let digest = numbers.2.filter(|(_, at)| *at == position);
                let digest = digest.map_or(0, |(digest, _)| digest);
                Ok(CheckpointNumbers { position, live_bytes, digest, owner })
            }
            _ => Err(StoreError::corrupt(&self.path, "no checkpoint in the file")),
        }
    }

    /// Runs one write transaction. On any failure the file is detached: it stays at its last durable commit, and has to
    /// be reopened before it can be written again.
    pub(crate) fn transact<T>(
        &self,
        durability: Durability,
        work: impl FnOnce(&redb::WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let result = guarded(&self.path, || {
            let mut transaction = self.db()?.begin_write()?;
            match durability {
                // Quick repair implies two-phase commit: rows are synced before the header refers to them, and
                // opening after a crash reads the allocator's state instead of the whole file.
                Durability::Checkpoint => transaction.set_quick_repair(true),
                Durability::None => transaction.set_durability(redb::Durability::None)?,
            }
            let value = work(&transaction)?;
            if self.paged.is_detached() {
                transaction.abort()?
            } else {
                transaction.commit()?
            }
            Ok(value)
        });
        if result.is_ok() && !self.paged.is_detached() {
            return result;
        }
        // The disk's error takes precedence over the library's interpretation of it.
        let io_error = |error| StoreError::io(&self.path, error);
        self.paged.detach().map_err(io_error)?;
        match self.paged.take_failure() {
            Some(error) => Err(io_error(error)),
            None => {
                result.and_then(|_| Err(StoreError::corrupt(&self.path, "the file was detached")))
            }
        }
    }
}

/// The rows of one checkpoint, readable from any thread while later checkpoints are written.
///
/// Table handles stay open for as long as this is the newest checkpoint: opening a transaction and a table per read
/// would double the cost of a cached read (0.6 µs to 1.3 µs).
pub(crate) struct View {
    tables: PerTable<Option<redb::ReadOnlyTable<Key, &'static [u8]>>>,
    /// Keeps the database open. Declared after the tables, so that it is dropped after them.
    file: Arc<StoreFile>,
}

impl View {
    /// The newest checkpoint in the file.
    pub(crate) fn newest(file: &Arc<StoreFile>) -> Result<Arc<View>, StoreError> {
        let tables = guarded(&file.path, || {
            let transaction = file.db()?.begin_read()?;
            PerTable::try_new(|table| {
                let rows = match transaction.open_table(definition(table)) {
                    // A file of version 1 gets this table with its first record.
                    Err(redb::TableError::TableDoesNotExist(_)) if table == Table::Record => {
                        return Ok(None);
                    }
                    opened => opened?,
                };
                // Skip empty tables on every read.
                Ok::<_, redb::Error>(if rows.is_empty()? { None } else { Some(rows) })
            })
        })?;
        Ok(Arc::new(View { tables, file: Arc::clone(file) }))
    }

    /// The file that contains the rows.
    pub(crate) fn file(&self) -> &Arc<StoreFile> {
        &self.file
    }

    pub(crate) fn get(&self, table: Table, key: Key) -> Result<Option<Bytes>, KvError> {
        let Some(rows) = self.tables.get(table) else {
            return Ok(None);
        };
        let path = &self.file.path;
        guarded_read(path, || match rows.get(key).map_err(read_error(path))? {
            Some(stored) => {
                decode(table, key, stored.value()).map(|value| Some(Bytes::copy_from_slice(value)))
            }
            None => Ok(None),
        })
    }

    /// The rows with `from <= key <= to`, from either end.
    pub(crate) fn range(&self, table: Table, from: Key, to: Key) -> Result<RowScan<'_>, KvError> {
        let path = self.file.path.as_path();
        let inner = match self.tables.get(table) {
            Some(rows) => {
                Some(guarded_read(path, || rows.range(from..=to).map_err(read_error(path)))?)
            }
            None => None,
        };
        Ok(RowScan { table, path, inner })
    }
}

/// Rows of one table, taken from either end.
pub(crate) struct RowScan<'a> {
    table: Table,
    path: &'a Path,
    inner: Option<redb::Range<'a, Key, &'static [u8]>>,
}

impl<'a> RowScan<'a> {
    /// The next row in the direction of the scan.
    pub(crate) fn step(&mut self, direction: Direction) -> Result<Option<Row<'a>>, KvError> {
        let Some(range) = &mut self.inner else {
            return Ok(None);
        };
        let next = guarded_read(self.path, || {
            Ok(match direction {
                Direction::Forward => range.next(),
                Direction::Reverse => range.next_back(),
            })
        })?;
        let Some(next) = next else { return Ok(None) };
        let (key, stored) = next.map_err(read_error(self.path))?;
        Ok(Some(Row { table: self.table, key: key.value(), stored }))
    }
}

/// One row, not yet copied out of its page: a scan only decodes rows that nothing shadows.
pub(crate) struct Row<'a> {
    table: Table,
    pub(crate) key: Key,
    stored: redb::AccessGuard<'a, &'static [u8]>,
}

impl Row<'_> {
    /// The row's value, checked and not copied.
    pub(crate) fn checked(&self) -> Result<&[u8], KvError> {
        decode(self.table, self.key, self.stored())
    }

    /// The row's value.
    pub(crate) fn value(&self) -> Result<Bytes, KvError> {
        self.checked().map(Bytes::copy_from_slice)
    }

    /// Checks the row.
    pub(crate) fn verify(&self) -> Result<(), KvError> {
        self.checked().map(drop)
    }

    /// The row as stored in the file.
    pub(crate) fn stored(&self) -> &[u8] {
        self.stored.value()
    }
}

fn decode(table: Table, key: Key, stored: &[u8]) -> Result<&[u8], KvError> {
    row::decode(key, stored).map_err(|reason| KvError::Corrupt {
        table,
        key,
        reason: reason.into(),
    })
}

fn read_error(path: &Path) -> impl FnOnce(redb::StorageError) -> KvError {
    |error| kv_error(&StoreError::redb(path, error))
}

/// The error for a failed read, without the types of the store.
pub(crate) fn kv_error(error: &StoreError) -> KvError {
    match error {
        StoreError::Corrupt { path, reason } => {
            KvError::Damaged { path: path.display().to_string(), reason: reason.clone() }
        }
        other => KvError::Read(other.to_string()),
    }
}

/// Refuses a checkpoint that belongs to another owner.
pub(crate) fn check_owner(
    path: &Path,
    found: CheckpointNumbers,
    expected: Option<Owner>,
) -> Result<CheckpointNumbers, StoreError> {
    match (found.owner, expected) {
        (Some(found), Some(expected)) if found != expected => {
            let what = format!("it holds the rows of {found}, not of {expected}");
            Err(StoreError::Foreign { path: path.to_owned(), what })
        }
        // A file that does not name its owner gets one with its next checkpoint.
        (owner, expected) => Ok(CheckpointNumbers { owner: owner.or(expected), ..found }),
    }
}

/// Runs `work` on the library, which trusts page contents in places and panics on some malformed ones. A damaged file
/// must produce an error that names the file, not end the thread.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| StoreError::redb(path, error)),
        Err(_) => Err(StoreError::corrupt(path, "a page is malformed")),
    }
}

fn guarded_read<T>(path: &Path, work: impl FnOnce() -> Result<T, KvError>) -> Result<T, KvError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(kv_error(&StoreError::corrupt(path, "a page is malformed"))))
}

/// Where the file of a store is built: under a temporary name next to its final one.
pub fn unfinished_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// Removes the remains of an interrupted build.
pub(crate) fn remove_leftover(disk: &SharedDisk, path: &Path) -> Result<(), StoreError> {
    let leftover = unfinished_path(path);
    let remove = || -> std::io::Result<()> {
        if disk.exists(&leftover)? { disk.remove(&leftover) } else { Ok(()) }
    };
    remove().map_err(|error| StoreError::io(&leftover, error))
}

/// Renames a finished file to its final name, durably.
pub(crate) fn publish(disk: &SharedDisk, path: &Path) -> Result<(), StoreError> {
    let dir = codeq_disk::containing_dir(path).unwrap_or(path);
    disk.rename(&unfinished_path(path), path)
        .and_then(|()| disk.sync_dir(dir))
        .map_err(|error| StoreError::io(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use codeq_disk::RealDisk;

    #[test]
    fn a_newer_format_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let disk: SharedDisk = Arc::new(RealDisk);
        let file = StoreFile::build(&disk, &path, &Options::default()).unwrap();
        file.transact(Durability::Checkpoint, |transaction| {
            CheckpointNumbers::default().save(transaction)?;
            transaction.open_table(NUMBERS)?.insert("format", FORMAT + 1)?;
            Ok(())
        })
        .unwrap();
        drop(file);
        let error = StoreFile::open(&disk, &path, &Options::default()).err().unwrap();
        assert!(matches!(error, StoreError::TooNew { found, .. } if found == FORMAT + 1));
        assert!(error.to_string().contains("start it with the newer release"), "{error}");
    }
}
