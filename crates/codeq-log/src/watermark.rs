//! The watermark: how far the log is known to reach.
//!
//! From inside the segments, a crash and a lost tail look the same. Therefore the index of the last synced frame is
//! also written to a separate file after every sync, alternating between two slots. This is a plain write: the
//! operating system keeps it when the process dies and writes it to disk within seconds. After a power cut it may be
//! older than the log, but never newer.
//!
//! A log has this file from its creation, with both slots valid. Each slot is inside one disk sector, on a page of
//! its own, so that no crash and no single fault can destroy both.

use std::path::{Path, PathBuf};

use codeq_disk::{Disk, DiskFile};

use crate::bytes::{u32_at, u64_at};
use crate::segment::FORMAT_VERSION;
use crate::{FrameIndex, LogError};

const NAME: &str = "watermark";
const UNFINISHED: &str = "watermark.new";
const MAGIC: [u8; 8] = *b"codeQmrk";
const SLOT: usize = 32;
const CRC_OFFSET: usize = SLOT - 4;
/// Distance between the slots: one disk page.
const SLOT_STEP: u64 = 4096;

/// The path of the watermark file.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// The content of the watermark file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) log_id: u64,
    /// The last frame known to be synced.
    pub(crate) index: FrameIndex,
    /// The slot to write next: the damaged one, or else the older one.
    next_slot: u64,
}

/// The watermark file, open for writing.
pub(crate) struct Watermark {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    log_id: u64,
    next_slot: u64,
}

impl Watermark {
    /// Creates the file for a new log; the caller syncs the directory.
    pub(crate) fn create(
        disk: &dyn Disk,
        dir: &Path,
        log_id: u64,
        index: FrameIndex,
    ) -> Result<(), LogError> {
        let (path, unfinished) = (path(dir), dir.join(UNFINISHED));
        let write = || {
            if disk.exists(&unfinished)? {
                disk.remove(&unfinished)?;
            }
            let file = disk.create(&unfinished)?;
            file.set_len(2 * SLOT_STEP)?;
            for slot in [0, 1] {
                file.write_all_at(&encode(log_id, index), slot * SLOT_STEP)?;
            }
            file.sync_data()?;
            disk.rename(&unfinished, &path)
        };
        write().map_err(LogError::io("create", &path))
    }

    /// Opens the file for writing, in the state that [`read`] found.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, mark: Mark) -> Result<Self, LogError> {
        let path = path(dir);
        let file = disk.open(&path).map_err(LogError::io("open", &path))?;
        Ok(Self { path, file, log_id: mark.log_id, next_slot: mark.next_slot })
    }

    /// Records that the log is durable up to `index`. Must follow the sync, never precede it.
    pub(crate) fn write(&mut self, index: FrameIndex) -> Result<(), LogError> {
        self.file
            .write_all_at(&encode(self.log_id, index), self.next_slot * SLOT_STEP)
            .map_err(LogError::io("write", &self.path))?;
        self.next_slot ^= 1;
        Ok(())
    }
}

/// Reads the watermark; `None` if the file does not exist.
pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Mark>, LogError> {
    let path = path(dir);
    if !disk.exists(&path).map_err(LogError::io("look for", &path))? {
        return Ok(None);
    }
    let file = disk.open(&path).map_err(LogError::io("open", &path))?;
    let len = file.len().map_err(LogError::io("measure", &path))?;
    let slot = |slot: u64| {
        let mut bytes = [0; SLOT];
        if len < slot * SLOT_STEP + SLOT as u64 {
            return Ok(None);
        }
        file.read_exact_at(&mut bytes, slot * SLOT_STEP).map_err(LogError::io("read", &path))?;
        decode(&bytes, &path)
    };
    match (slot(0)?, slot(1)?) {
        // Both slots are valid from creation, and only one is written at a time, so this is damage.
        (None, None) => Err(LogError::NoWatermark { file: path, what: "damaged in both slots" }),
        (Some((log_id, index)), None) => Ok(Some(Mark { log_id, index, next_slot: 1 })),
        (None, Some((log_id, index))) => Ok(Some(Mark { log_id, index, next_slot: 0 })),
        (Some((id, _)), Some((other, _))) if id != other => Err(LogError::Foreign {
            file: path,
            what: format!("its slots name the logs {id:016x} and {other:016x}"),
        }),
        (Some((log_id, a)), Some((_, b))) => {
            Ok(Some(Mark { log_id, index: a.max(b), next_slot: u64::from(a > b) }))
        }
    }
}

fn encode(log_id: u64, index: FrameIndex) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    let fields = MAGIC
        .into_iter()
        .chain(FORMAT_VERSION.to_le_bytes())
        .chain(log_id.to_le_bytes())
        .chain(index.0.to_le_bytes());
    for (slot, byte) in bytes.iter_mut().zip(fields) {
        *slot = byte;
    }
    if let Some((covered, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32c::crc32c(covered).to_le_bytes();
    }
    bytes
}

/// The log id and index of a slot; `None` if it is damaged.
fn decode(bytes: &[u8; SLOT], file: &Path) -> Result<Option<(u64, FrameIndex)>, LogError> {
    let fields = || {
        let (covered, _) = bytes.split_at_checked(CRC_OFFSET)?;
        let whole =
            covered.starts_with(&MAGIC) && crc32c::crc32c(covered) == u32_at(bytes, CRC_OFFSET)?;
        whole.then_some((u32_at(bytes, 8)?, u64_at(bytes, 12)?, u64_at(bytes, 20)?))
    };
    match fields() {
        None => Ok(None),
        Some((FORMAT_VERSION, log_id, index)) => Ok(Some((log_id, FrameIndex(index)))),
        Some((found, ..)) => {
            Err(LogError::NewerFormat { file: file.to_owned(), found, supported: FORMAT_VERSION })
        }
    }
}
