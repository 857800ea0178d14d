//! Streams the rows of a checkpoint out of a store, to be imported elsewhere.
//!
//! The stream depends neither on the B-tree library nor on how rows are stored, so two releases that differ in both can
//! exchange rows. It is a sequence of chunks, each about [`CHUNK_BYTES`] long. All numbers are little-endian, and CRC
//! means CRC32C.
//!
//! | Offset | Bytes | Field |
//! |---|---|---|
//! | 0 | 4 | CRC of the rest of the chunk |
//! | 4 | 1 | format version, 1 |
//! | 5 | 1 | kind: 0 for rows, 1 for the end |
//! | 6 | 2 | the shard |
//! | 8 | 8 | log index up to which the rows are complete |
//! | 16 | 4 | number of the chunk: 0, 1, 2… |
//! | 20 | 4 | the CRC at offset 0 of the previous chunk; 0 in the first one |
//! | 24 | 8 | the write digest at that log index; 0 if none is kept |
//! | 32 | … | rows, or totals |
//!
//! A row is a table (1 byte), a key (16 bytes), a length (4 bytes), and that many bytes. Rows ascend by table and key
//! over the whole stream. The last chunk holds totals instead: the number of rows, and the bytes of keys and values (8
//! bytes each). The chain of CRCs shows a chunk that is missing, repeated or from another stream; only the last chunk
//! shows that nothing follows.
//!
//! Changing the format: a released version never changes. A new one gets the next number, keeps CRC and version where
//! they are, and is written only once every receiver reads it.

use std::sync::Arc;

use codeq_core::kv::{Direction, Key, KvError, Table};

use crate::error::StoreError;
use crate::file::{CheckpointNumbers, View};
use crate::row;

/// A chunk ends with the row that reaches this length. Large enough that its cost per row does not matter, small enough
/// to hold several in memory.
pub const CHUNK_BYTES: usize = 1 << 20;

/// The version of the stream.
pub(crate) const VERSION: u8 = 1;
/// Bytes before the rows of a chunk.
pub(crate) const HEADER_BYTES: usize = 32;
/// Kind of a chunk with rows.
pub(crate) const ROWS: u8 = 0;
/// Kind of the last chunk.
pub(crate) const END: u8 = 1;

/// What a stream holds in total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) rows: u64,
    /// Bytes of keys and values.
    pub(crate) bytes: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, value: &[u8]) {
        self.rows += 1;
        self.bytes += (size_of::<Key>() + value.len()) as u64;
    }

    /// The bytes that a store counts for these rows.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.rows.saturating_mul(row::TRAILER as u64))
    }
}

/// The rows of a store's last checkpoint, in chunks. The store stays in use meanwhile.
///
/// The pages of the checkpoint cannot be reused as long as this exists, so the store's file grows by whatever is
/// checkpointed in that time.
pub struct Export {
    view: Arc<View>,
    checkpoint: CheckpointNumbers,
    shard: u16,
    /// The first row that is not exported yet; `None` after the last one.
    next: Option<(Table, Key)>,
    number: u32,
    previous: u32,
    totals: Totals,
    ended: bool,
}

impl Export {
    pub(crate) fn new(view: Arc<View>, checkpoint: CheckpointNumbers) -> Export {
        let shard = checkpoint.owner.map_or(0, |owner| owner.shard);
        let [first, ..] = Table::ALL;
        Export {
            view,
            checkpoint,
            shard,
            next: Some((first, 0)),
            number: 0,
            previous: 0,
            totals: Totals::default(),
            ended: false,
        }
    }

    /// Log index up to which the rows are complete.
    pub fn position(&self) -> u64 {
        self.checkpoint.position
    }

    /// The next chunk, or `None` after the last one. Every row is checked on the way; an error names the file.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        if self.ended {
            return Ok(None);
        }
        let mut chunk = vec![0; HEADER_BYTES];
        self.fill(&mut chunk)?;
        if chunk.len() > HEADER_BYTES {
            return Ok(Some(self.seal(ROWS, chunk)));
        }
        let (found, counted) = (self.totals.live_bytes(), self.checkpoint.live_bytes);
        if found != counted {
            // Rows hidden by a damaged page must not get lost for good.
            let reason =
                format!("the rows hold {found} bytes, but the checkpoint counted {counted}");
            return Err(StoreError::corrupt(&self.view.file().path, reason));
        }
        chunk.extend_from_slice(&self.totals.rows.to_le_bytes());
        chunk.extend_from_slice(&self.totals.bytes.to_le_bytes());
        self.ended = true;
        Ok(Some(self.seal(END, chunk)))
    }

    /// Appends rows until the chunk is full or none are left.
    fn fill(&mut self, chunk: &mut Vec<u8>) -> Result<(), StoreError> {
        let Some((first, mut from)) = self.next else {
            return Ok(());
        };
        let path = &self.view.file().path;
        let damaged = |error: KvError| StoreError::corrupt(path, error);
        for table in Table::ALL.into_iter().filter(|table| *table >= first) {
            let mut rows = self.view.range(table, from, Key::MAX).map_err(damaged)?;
            while let Some(row) = rows.step(Direction::Forward).map_err(damaged)? {
                if chunk.len() >= CHUNK_BYTES {
                    self.next = Some((table, row.key));
                    return Ok(());
                }
                let value = row.checked().map_err(damaged)?;
                self.totals.add(value);
                chunk.push(table as u8);
                chunk.extend_from_slice(&row.key.to_le_bytes());
                chunk.extend_from_slice(&(value.len() as u32).to_le_bytes());
                chunk.extend_from_slice(value);
            }
            from = 0;
        }
        self.next = None;
        Ok(())
    }

    /// Writes the header of a chunk.
    fn seal(&mut self, kind: u8, mut chunk: Vec<u8>) -> Vec<u8> {
        let fields = [VERSION, kind]
            .into_iter()
            .chain(self.shard.to_le_bytes())
            .chain(self.checkpoint.position.to_le_bytes())
            .chain(self.number.to_le_bytes())
            .chain(self.previous.to_le_bytes())
            .chain(self.checkpoint.digest.to_le_bytes());
        for (slot, byte) in chunk.iter_mut().skip(4).zip(fields) {
            *slot = byte;
        }
        if let Some((slot, rest)) = chunk.split_first_chunk_mut::<4>() {
            self.previous = crc32c::crc32c(rest);
            *slot = self.previous.to_le_bytes();
        }
        self.number += 1;
        chunk
    }
}
