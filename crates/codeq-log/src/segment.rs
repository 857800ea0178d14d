//! A segment file: its name, its header, and how it is made.
//!
//! The suffix says what a file is for. `.seg` files are the log and the segments prepared for it; they are complete and
//! synced before they get that name. `.spare` files are former segments kept for reuse, and `.new` files are being
//! written. Both may disappear or be incomplete at any time, and only [`crate::prepare`] reads them.

use std::io;
use std::path::{Path, PathBuf};

use codeq_disk::{Disk, DiskFile};

use crate::bytes::{u32_at, u64_at};
use crate::frame::Link;
use crate::{FrameIndex, LogError};

/// Length of a segment's header; the first frame follows it.
pub const SEGMENT_HEADER_BYTES: u64 = 64;

/// The format version that is written, and the newest that can be read.
pub(crate) const FORMAT_VERSION: u32 = 1;

const HEADER: usize = SEGMENT_HEADER_BYTES as usize;
const CRC_OFFSET: usize = HEADER - 4;
const MAGIC: [u8; 8] = *b"codeQlog";

/// Zeros are written in chunks of this length: large enough for the disk, small enough for memory.
const ZEROS: usize = 1024 * 1024;

/// What a file in the log's directory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of the log, or prepared to be.
    Segment,
    /// A former segment: its content is irrelevant, its allocated blocks are reused.
    Spare,
    /// Still being written.
    New,
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::Segment, ".seg"), (Kind::Spare, ".spare"), (Kind::New, ".new")];

/// Path of a segment file. Names sort by epoch.
pub(crate) fn path(dir: &Path, epoch: u64, kind: Kind) -> PathBuf {
    let suffix = KINDS.iter().find(|(k, _)| *k == kind).map_or("", |(_, suffix)| suffix);
    dir.join(format!("{epoch:016x}{suffix}"))
}

/// Parses a file name; `None` if the file is not ours.
pub(crate) fn parse_name(name: &str) -> Option<(u64, Kind)> {
    let (kind, digits) =
        KINDS.iter().find_map(|(kind, suffix)| Some((*kind, name.strip_suffix(suffix)?)))?;
    let ours = digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    ours.then(|| u64::from_str_radix(digits, 16).ok().map(|epoch| (epoch, kind)))?
}

/// Identifies the frames of one use of one segment of one log.
///
/// A recycled segment is full of old frames that are valid in themselves; the new epoch gives them the wrong tag. The
/// log id is random and not shown to clients, so no payload can contain bytes that a search for frames would mistake
/// for one.
pub(crate) fn tag(log_id: u64, epoch: u64) -> u64 {
    log_id.wrapping_add(epoch)
}

/// The first bytes of a segment. Written and synced before the segment gets its name, and never changed afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) log_id: u64,
    /// Grows with every use of a segment file.
    pub(crate) epoch: u64,
    /// Where the chain starts; only set in the segment that the log was created with. Later segments are prepared
    /// before this is known; their first frame carries it instead.
    pub(crate) start: Option<Link>,
}

impl SegmentHeader {
    fn encode(&self) -> Vec<u8> {
        let start = self.start.unwrap_or(Link { next: FrameIndex(0), prev: 0 });
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&0_u32.to_le_bytes());
        bytes.extend_from_slice(&self.log_id.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&start.next.0.to_le_bytes());
        bytes.extend_from_slice(&start.prev.to_le_bytes());
        bytes.resize(CRC_OFFSET, 0);
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Decodes a header; `None` if it is damaged. Checks the checksum first, because the version number only means
    /// something in an intact header.
    fn decode(bytes: &[u8], file: &Path) -> Result<Option<Self>, LogError> {
        let fields = || {
            let (covered, _) = bytes.split_at_checked(CRC_OFFSET)?;
            let whole = covered.starts_with(&MAGIC)
                && crc32c::crc32c(covered) == u32_at(bytes, CRC_OFFSET)?;
            let next = FrameIndex(u64_at(bytes, 32)?);
            let start = (next.0 > 0).then_some(Link { next, prev: u32_at(bytes, 40)? });
            let header = Self { log_id: u64_at(bytes, 16)?, epoch: u64_at(bytes, 24)?, start };
            whole.then_some((u32_at(bytes, 8)?, header))
        };
        match fields() {
            None => Ok(None),
            Some((FORMAT_VERSION, header)) => Ok(Some(header)),
            Some((found, _)) => Err(LogError::NewerFormat {
                file: file.to_owned(),
                found,
                supported: FORMAT_VERSION,
            }),
        }
    }
}

/// An open segment file.
pub(crate) struct Segment {
    pub(crate) epoch: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Box<dyn DiskFile>,
    /// Length of the file, and thus the limit for the last frame.
    pub(crate) len: u64,
}

impl Segment {
    /// Opens a segment and reads its header; the header is `None` if it is damaged.
    pub(crate) fn open(
        disk: &dyn Disk,
        dir: &Path,
        epoch: u64,
    ) -> Result<(Self, Option<SegmentHeader>), LogError> {
        let path = path(dir, epoch, Kind::Segment);
        let file = disk.open(&path).map_err(LogError::io("open", &path))?;
        let len = file.len().map_err(LogError::io("measure", &path))?;
        let mut header = None;
        if len >= SEGMENT_HEADER_BYTES {
            let mut bytes = [0; HEADER];
            file.read_exact_at(&mut bytes, 0).map_err(LogError::io("read", &path))?;
            header = SegmentHeader::decode(&bytes, &path)?;
        }
        Ok((Self { epoch, path, file, len }, header))
    }

    /// Makes a segment under its final name, from a spare file or from new zeros. It is durable, including its name,
    /// once the directory has been synced.
    pub(crate) fn make(
        disk: &dyn Disk,
        dir: &Path,
        header: SegmentHeader,
        len: u64,
        spare: Option<PathBuf>,
    ) -> Result<Self, LogError> {
        let unfinished = spare.clone().unwrap_or_else(|| path(dir, header.epoch, Kind::New));
        let file = match spare {
            Some(spare) => disk.open(&spare).map_err(LogError::io("open", &spare))?,
            None => disk.create(&unfinished).map_err(LogError::io("create", &unfinished))?,
        };
        let path = path(dir, header.epoch, Kind::Segment);
        let write = || {
            write_zeros(&*file, file.len()?, len)?;
            file.write_all_at(&header.encode(), 0)
        };
        let fill = || {
            write().map_err(LogError::io("write", &unfinished))?;
            // A lack of space may only show here. The file holds nothing of the log yet.
            file.sync_data().map_err(LogError::io("sync", &unfinished))?;
            disk.rename(&unfinished, &path).map_err(LogError::io("rename", &unfinished))
        };
        if let Err(error) = fill() {
            // Whatever failed, the file is of no use, and on a full disk its space is needed. If the removal fails, the
            // next job writes the whole file again.
            let _ = disk.remove(&unfinished);
            return Err(error);
        }
        Ok(Self { epoch: header.epoch, path, file, len })
    }
}

/// Fills `from..to` of a file with zeros.
pub(crate) fn write_zeros(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    let zeros = vec![0; ZEROS.min((to - from) as usize)];
    let mut at = from;
    while at < to {
        let piece = zeros.get(..(to - at) as usize).unwrap_or(&zeros);
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}
