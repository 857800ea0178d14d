//! The encoding of a frame: one commit group under one checksum.
//!
//! Pure functions on slices. Where a frame is stored and whether it belongs to the chain is up to the reader.

use crate::FrameIndex;
use crate::bytes::{u32_at, u64_at};

/// Length of a frame's header.
pub const FRAME_HEADER_BYTES: u64 = 40;

/// Length of each record's header.
pub const RECORD_HEADER_BYTES: u64 = 6;

/// The checksum comes first and covers everything after it, including the length.
const CRC_BYTES: usize = 4;
const HEADER: usize = FRAME_HEADER_BYTES as usize;
const RECORD_HEADER: usize = RECORD_HEADER_BYTES as usize;

/// Offset of the tag in a frame; the search for stray frames looks for it first.
pub(crate) const TAG_OFFSET: u64 = 8;

/// Length of a frame with these records.
pub fn frame_len(records: &[(u16, &[u8])]) -> u64 {
    let records: u64 =
        records.iter().map(|(_, bytes)| RECORD_HEADER_BYTES + bytes.len() as u64).sum();
    FRAME_HEADER_BYTES + records
}

/// The position in the chain that the next frame takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// Index of the next frame.
    pub(crate) next: FrameIndex,
    /// Checksum of the frame before it; 0 at the start of a log.
    pub(crate) prev: u32,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameHeader {
    pub(crate) crc: u32,
    /// Length of the records in bytes.
    pub(crate) payload: u32,
    /// Identifies the log, the segment and its use; see [`crate::segment::tag`].
    pub(crate) tag: u64,
    pub(crate) index: FrameIndex,
    /// The highest frame known to be synced when this one was written.
    pub(crate) synced: FrameIndex,
    /// The checksum of the previous frame.
    pub(crate) prev: u32,
    pub(crate) records: u32,
}

impl FrameHeader {
    /// Decodes a header without validating the frame.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            crc: u32_at(bytes, 0)?,
            payload: u32_at(bytes, 4)?,
            tag: u64_at(bytes, 8)?,
            index: FrameIndex(u64_at(bytes, 16)?),
            synced: FrameIndex(u64_at(bytes, 24)?),
            prev: u32_at(bytes, 32)?,
            records: u32_at(bytes, 36)?,
        })
    }

    /// The length of the whole frame.
    pub(crate) fn frame_len(&self) -> u64 {
        FRAME_HEADER_BYTES + u64::from(self.payload)
    }
}

/// Whether a whole frame matches its checksum.
pub(crate) fn is_intact(frame: &[u8]) -> bool {
    match frame.split_first_chunk::<CRC_BYTES>() {
        Some((crc, rest)) => u32::from_le_bytes(*crc) == crc32c::crc32c(rest),
        None => false,
    }
}

/// Encodes a frame into `buf`, replacing its content, and returns the checksum.
///
/// The caller has checked [`frame_len`] against [`crate::MAX_FRAME_BYTES`], so the lengths fit their fields.
pub(crate) fn encode(
    buf: &mut Vec<u8>,
    tag: u64,
    link: Link,
    synced: FrameIndex,
    records: &[(u16, &[u8])],
) -> u32 {
    let len = frame_len(records);
    buf.clear();
    buf.reserve(len as usize);
    buf.extend_from_slice(&[0; CRC_BYTES]);
    buf.extend_from_slice(&((len - FRAME_HEADER_BYTES) as u32).to_le_bytes());
    buf.extend_from_slice(&tag.to_le_bytes());
    buf.extend_from_slice(&link.next.0.to_le_bytes());
    buf.extend_from_slice(&synced.0.to_le_bytes());
    buf.extend_from_slice(&link.prev.to_le_bytes());
    buf.extend_from_slice(&(records.len() as u32).to_le_bytes());
    for (shard, bytes) in records {
        buf.extend_from_slice(&shard.to_le_bytes());
        buf.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        buf.extend_from_slice(bytes);
    }
    let mut crc = 0;
    if let Some((slot, rest)) = buf.split_first_chunk_mut::<CRC_BYTES>() {
        crc = crc32c::crc32c(rest);
        *slot = crc.to_le_bytes();
    }
    crc
}

/// The records of an intact frame.
pub(crate) struct Records<'a> {
    rest: &'a [u8],
    left: u32,
}

impl<'a> Records<'a> {
    /// Starts at the first record of a complete frame.
    pub(crate) fn new(header: &FrameHeader, frame: &'a [u8]) -> Self {
        Self { rest: frame.get(HEADER..).unwrap_or_default(), left: header.records }
    }

    /// The next record; `None` after the last one, or if the bytes do not hold one.
    pub(crate) fn next(&mut self) -> Option<(u16, &'a [u8])> {
        self.left = self.left.checked_sub(1)?;
        let (head, rest) = self.rest.split_at_checked(RECORD_HEADER)?;
        let shard = u16::from_le_bytes(*head.first_chunk()?);
        let (bytes, rest) = rest.split_at_checked(u32_at(head, 2)? as usize)?;
        self.rest = rest;
        Some((shard, bytes))
    }

    /// Whether the frame held exactly as many records and bytes as its header says.
    pub(crate) fn is_complete(&self) -> bool {
        self.left == 0 && self.rest.is_empty()
    }
}
