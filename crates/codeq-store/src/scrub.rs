//! Looks for damage in rows that nothing reads, step by step.
//!
//! Each step reads the newest checkpoint and releases it, so that the file does not grow meanwhile. A row that exists
//! from the first step to the last is read once, along with every page on the path to it; rows that a checkpoint
//! writes in between may be missed.

use std::sync::Arc;

use codeq_core::kv::{Direction, Key, KvError, Table};

use crate::error::StoreError;
use crate::file::{View, kv_error};

/// The first row that a scrub has not verified yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubPlace(Table, Key);

impl Default for ScrubPlace {
    fn default() -> ScrubPlace {
        let [first, ..] = Table::ALL;
        ScrubPlace(first, 0)
    }
}

/// The outcome of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes of the verified rows.
    pub bytes: u64,
    /// Where to continue; `None` at the end.
    pub next: Option<ScrubPlace>,
}

/// One step of a scrub; see [`crate::Store::scrub`].
pub struct ScrubJob {
    pub(crate) view: Arc<View>,
    pub(crate) place: ScrubPlace,
}

impl ScrubJob {
    /// Verifies about `bytes` bytes of rows. An error names the file, and the block if a block is damaged.
    pub fn run(self, bytes: u64) -> Result<Scrubbed, KvError> {
        let path = &self.view.file().path;
        let damaged = |error| match error {
            KvError::Corrupt { .. } => kv_error(&StoreError::corrupt(path, error)),
            other => other,
        };
        let ScrubPlace(first, mut from) = self.place;
        let mut seen = 0;
        for table in Table::ALL.into_iter().filter(|table| *table >= first) {
            let mut rows = self.view.range(table, from, Key::MAX)?;
            while let Some(row) = rows.step(Direction::Forward)? {
                if seen >= bytes {
                    return Ok(Scrubbed { bytes: seen, next: Some(ScrubPlace(table, row.key)) });
                }
                row.verify().map_err(damaged)?;
                seen += crate::row::live_bytes(row.stored());
            }
            from = 0;
        }
        Ok(Scrubbed { bytes: seen, next: None })
    }
}
