//! Builds a store from the chunks of an [`crate::Export`].
//!
//! The file is built under a temporary name and gets its final one only when every row is there, synced and read back. An
//! import that fails or is cut off leaves nothing that could be opened.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use codeq_core::kv::{Key, Table};
use codeq_disk::SharedDisk;

use crate::Options;
use crate::build::StoreBuilder;
use crate::check::check;
use crate::error::StoreError;
use crate::export::{END, HEADER_BYTES, ROWS, Totals, VERSION};
use crate::file::{CheckpointNumbers, publish, unfinished_path};
use crate::memtable::Memtable;

/// What an import made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// Log index up to which the rows are complete.
    pub position: u64,
    /// Number of rows.
    pub rows: u64,
}

/// A store that is being filled with the rows of another one. It needs memory for one chunk and a small cache.
pub struct Import {
    disk: SharedDisk,
    path: PathBuf,
    options: Options,
    /// The file; `None` after a failure, which also gives its space back.
    file: Option<StoreBuilder>,
    /// Log index and write digest of the rows; `None` before the first chunk.
    origin: Option<(u64, u64)>,
    number: u32,
    previous: u32,
    /// The highest row so far.
    last: Option<(Table, Key)>,
    totals: Totals,
    ended: bool,
}

impl Import {
    /// Starts a store at `path`, which must not exist, in a directory that does. Its owner is that of the options, and
    /// only chunks of that owner's shard are accepted.
    pub fn begin(disk: SharedDisk, path: &Path, options: Options) -> Result<Import, StoreError> {
        if disk.exists(path).map_err(|error| StoreError::io(path, error))? {
            return Err(StoreError::io(path, std::io::ErrorKind::AlreadyExists.into()));
        }
        let file = StoreBuilder::begin(&disk, path, &options)?;
        Ok(Import {
            disk,
            path: path.to_owned(),
            options,
            file: Some(file),
            origin: None,
            number: 0,
            previous: 0,
            last: None,
            totals: Totals::default(),
            ended: false,
        })
    }

    /// Adds the next chunk. After an error the import is over: nothing more is accepted, and it cannot be finished.
    pub fn add(&mut self, chunk: &[u8]) -> Result<(), StoreError> {
        let Some(mut file) = self.file.take() else {
            return Err(self.refused("it was given up after an earlier error"));
        };
        if let Some(rows) = self.read(chunk)? {
            file.add(&rows)?;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Makes the store durable under its name. It is read back and verified first.
    pub fn finish(mut self) -> Result<Imported, StoreError> {
        let file = self.file.take();
        let (Some(file), Some((position, digest)), true) = (file, self.origin, self.ended) else {
            return Err(self.refused("the last chunk is missing"));
        };
        let live_bytes = self.totals.live_bytes();
        let checkpoint =
            CheckpointNumbers { position, live_bytes, digest, owner: self.options.owner };
        file.finish(&self.path, checkpoint)?;
        let unfinished = unfinished_path(&self.path);
        let verified = check(&self.disk, &unfinished).and_then(|report| {
            let rows: u64 = report.rows.iter().map(|(_, count)| count).sum();
            match rows == self.totals.rows {
                true => publish(&self.disk, &self.path),
                false => Err(StoreError::corrupt(&unfinished, "rows are missing")),
            }
        });
        if verified.is_err() {
            // If this fails too, the next import removes it.
            let _ = self.disk.remove(&unfinished);
        }
        verified.map(|()| Imported { position, rows: self.totals.rows })
    }

    /// Checks a chunk and returns its rows; `None` for the last chunk.
    fn read(&mut self, chunk: &[u8]) -> Result<Option<Memtable>, StoreError> {
        let header = Header::read(chunk).map_err(|reason| self.refused(reason))?;
        let shard = self.options.owner.map_or(header.shard, |owner| owner.shard);
        let origin = (header.position, header.digest);
        let wrong = if self.ended {
            "it comes after the last one"
        } else if header.shard != shard {
            "it belongs to another shard"
        } else if *self.origin.get_or_insert(origin) != origin {
            "it belongs to another checkpoint"
        } else if (header.number, header.previous) != (self.number, self.previous) {
            "it does not follow the one before"
        } else {
            ""
        };
        if !wrong.is_empty() {
            return Err(self.refused(wrong));
        }
        let rest = chunk.get(HEADER_BYTES..).unwrap_or_default();
        let read = match header.kind {
            ROWS => self.rows(rest).map(Some),
            _ => self.totals(rest).map(|()| None),
        };
        let read = read.map_err(|reason| self.refused(reason))?;
        (self.number, self.previous) = (self.number.saturating_add(1), header.crc);
        Ok(read)
    }

    fn rows(&mut self, mut rest: &[u8]) -> Result<Memtable, &'static str> {
        let mut rows = Memtable::default();
        while !rest.is_empty() {
            let (table, key, value, tail) = row(rest).ok_or("a row is malformed")?;
            if self.last.is_some_and(|last| last >= (table, key)) {
                return Err("its rows are not in order");
            }
            self.last = Some((table, key));
            self.totals.add(value);
            rows.insert(table, key, Bytes::copy_from_slice(value));
            rest = tail;
        }
        Ok(rows)
    }

    fn totals(&mut self, rest: &[u8]) -> Result<(), &'static str> {
        let totals = rest.split_first_chunk::<8>().and_then(|(rows, rest)| {
            let bytes = u64::from_le_bytes(*rest.first_chunk()?);
            (rest.len() == 8).then_some(Totals { rows: u64::from_le_bytes(*rows), bytes })
        });
        if totals != Some(self.totals) {
            return Err("the totals do not match the rows");
        }
        self.ended = true;
        Ok(())
    }

    fn refused(&self, reason: &str) -> StoreError {
        let (path, chunk) = (self.path.clone(), self.number);
        StoreError::Import { path, chunk, reason: reason.to_owned() }
    }
}

struct Header {
    crc: u32,
    kind: u8,
    shard: u16,
    position: u64,
    number: u32,
    previous: u32,
    digest: u64,
}

impl Header {
    fn read(chunk: &[u8]) -> Result<Header, &'static str> {
        let (crc, rest) = chunk.split_first_chunk::<4>().ok_or("it is too short")?;
        let crc = u32::from_le_bytes(*crc);
        if crc32c::crc32c(rest) != crc {
            return Err("its checksum does not match");
        }
        let fields = || {
            let (&[version, kind], rest) = rest.split_first_chunk::<2>()?;
            let (shard, rest) = rest.split_first_chunk()?;
            let (position, rest) = rest.split_first_chunk()?;
            let (number, rest) = rest.split_first_chunk()?;
            let (previous, rest) = rest.split_first_chunk()?;
            let digest = u64::from_le_bytes(*rest.first_chunk()?);
            let (shard, position) = (u16::from_le_bytes(*shard), u64::from_le_bytes(*position));
            let (number, previous) = (u32::from_le_bytes(*number), u32::from_le_bytes(*previous));
            Some((version, Header { crc, kind, shard, position, number, previous, digest }))
        };
        match fields() {
            None => Err("it is too short"),
            Some((VERSION, header)) if matches!(header.kind, ROWS | END) => Ok(header),
            Some(_) => Err("a newer release made it: upgrade the receiver first"),
        }
    }
}

/// Splits off the first row.
fn row(bytes: &[u8]) -> Option<(Table, Key, &[u8], &[u8])> {
    let (&number, rest) = bytes.split_first()?;
    let (key, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let table = Table::ALL.into_iter().find(|table| *table as u8 == number)?;
    Some((table, Key::from_le_bytes(*key), value, rest))
}
