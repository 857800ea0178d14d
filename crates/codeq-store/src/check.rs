//! Verifies a store's whole file without changing it.

use std::path::Path;

use codeq_core::kv::{Direction, Key, KvError, Table};
use codeq_disk::SharedDisk;

use crate::error::StoreError;
use crate::file::{StoreFile, View};
use crate::{Options, Owner};

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// Log index up to which the file is complete.
    pub position: u64,
    /// The owner of the rows; `None` in a file of an older release.
    pub owner: Option<Owner>,
    /// Number of rows per table.
    pub rows: Vec<(Table, u64)>,
    /// Bytes of all rows, including keys.
    pub live_bytes: u64,
}

/// Verifies the store at `path`: the checksum of every page, the allocation of pages, the checksum of every row, and
/// the counters. The store must not be open elsewhere. The file is not changed: whatever the library writes during
/// the check is kept in memory and discarded.
pub fn check(disk: &SharedDisk, path: &Path) -> Result<CheckReport, StoreError> {
    let mut file = StoreFile::open_unchanged(disk, path, &Options::default())?;
    let checkpoint = file.checkpoint()?;
    if !file.verify_pages()? {
        return Err(StoreError::corrupt(path, "pages or their allocation do not verify"));
    }
    let view = View::newest(&std::sync::Arc::new(file))?;
    let mut report = CheckReport {
        position: checkpoint.position,
        owner: checkpoint.owner,
        rows: Vec::new(),
        live_bytes: 0,
    };
    let damaged = |error: KvError| StoreError::corrupt(path, error);
    for table in Table::ALL {
        let mut count = 0;
        let mut rows = view.range(table, 0, Key::MAX).map_err(damaged)?;
        while let Some(row) = rows.step(Direction::Forward).map_err(damaged)? {
            row.verify().map_err(damaged)?;
            report.live_bytes += crate::row::live_bytes(row.stored());
            count += 1;
        }
        report.rows.push((table, count));
    }
    if report.live_bytes != checkpoint.live_bytes {
        let (found, counted) = (report.live_bytes, checkpoint.live_bytes);
        let reason = format!("the rows hold {found} bytes, but the checkpoint counted {counted}");
        return Err(StoreError::corrupt(path, reason));
    }
    Ok(report)
}
