//! Follows the chain of frames through segments, and searches for frames outside of it.
//!
//! Read-only and defensive: every length is checked against the file before it is used.

use std::io;

use codeq_disk::DiskFile;

use crate::frame::{self, FRAME_HEADER_BYTES, FrameHeader, Link, TAG_OFFSET};
use crate::segment::{SEGMENT_HEADER_BYTES, Segment};
use crate::{FrameIndex, MAX_FRAME_BYTES};

/// Files are read in chunks of this length.
const CHUNK: u64 = 1024 * 1024;

/// A part of a file in memory, advanced as bytes are requested.
struct Window<'a> {
    file: &'a dyn DiskFile,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(segment: &'a Segment) -> Self {
        Self { file: &*segment.file, len: segment.len, start: 0, bytes: Vec::new() }
    }

    /// The `count` bytes at `offset`; `None` if the file ends earlier.
    fn at(&mut self, offset: u64, count: u64) -> io::Result<Option<&[u8]>> {
        Ok(self.rest(offset, count)?.and_then(|bytes| bytes.get(..count as usize)))
    }

    /// At least `least` bytes from `offset` on, plus whatever is already in memory; `None` if the file ends earlier.
    fn rest(&mut self, offset: u64, least: u64) -> io::Result<Option<&[u8]>> {
        let Some(end) = offset.checked_add(least).filter(|end| *end <= self.len) else {
            return Ok(None);
        };
        if offset < self.start || end > self.start + self.bytes.len() as u64 {
            let want = least.max(CHUNK).min(self.len - offset);
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.resize(want as usize, 0);
            self.file.read_exact_at(&mut bytes, offset)?;
            (self.start, self.bytes) = (offset, bytes);
        }
        Ok(self.bytes.get((offset - self.start) as usize..))
    }

    /// The intact frame with this tag at `offset`, if there is one.
    fn frame(&mut self, offset: u64, tag: u64) -> io::Result<Option<(FrameHeader, &[u8])>> {
        let Some(header) = self.at(offset, FRAME_HEADER_BYTES)?.and_then(FrameHeader::decode)
        else {
            return Ok(None);
        };
        let plausible = header.tag == tag
            && header.synced < header.index
            && header.frame_len() <= MAX_FRAME_BYTES;
        if !plausible {
            return Ok(None);
        }
        let frame = self.at(offset, header.frame_len())?;
        Ok(frame.filter(|frame| frame::is_intact(frame)).map(|frame| (header, frame)))
    }
}

/// The frames of one segment that follow the chain.
pub(crate) struct Frames<'a> {
    window: Window<'a>,
    tag: u64,
    offset: u64,
    link: Option<Link>,
}

impl<'a> Frames<'a> {
    /// Starts at the segment's first frame, which has to continue from `link`; without a link, any first frame is
    /// accepted.
    pub(crate) fn new(segment: &'a Segment, tag: u64, link: Option<Link>) -> Self {
        Self { window: Window::new(segment), tag, offset: SEGMENT_HEADER_BYTES, link }
    }

    /// The next frame; `None` if no intact frame continues the chain.
    pub(crate) fn next(&mut self) -> io::Result<Option<(FrameHeader, &[u8])>> {
        let Some((header, frame)) = self.window.frame(self.offset, self.tag)? else {
            return Ok(None);
        };
        let here = Link { next: header.index, prev: header.prev };
        if self.link.is_some_and(|link| link != here) {
            return Ok(None);
        }
        self.offset += header.frame_len();
        self.link = Some(Link { next: header.index.next(), prev: header.crc });
        Ok(Some((header, frame)))
    }

    /// Where the frames read so far end.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// What the next frame has to continue from.
    pub(crate) fn link(&self) -> Option<Link> {
        self.link
    }
}

/// Intact frames outside the chain.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Strays {
    /// Where the last one ends; 0 if there are none.
    pub(crate) end: u64,
    /// The highest frame that any of them says was synced.
    pub(crate) synced: FrameIndex,
}

/// Searches a segment at every byte from `from` on for intact frames with the tag.
///
/// Zeros and the remains of earlier uses do not contain the tag, so this is as fast as a search for eight bytes.
pub(crate) fn find_strays(segment: &Segment, tag: u64, from: u64) -> io::Result<Strays> {
    let mut window = Window::new(segment);
    let mut strays = Strays::default();
    let mut at = from;
    while let Some(bytes) = window.rest(at, FRAME_HEADER_BYTES)? {
        let count = bytes.len() as u64;
        let pattern = tag.to_le_bytes();
        let tail = bytes.get(TAG_OFFSET as usize..).unwrap_or_default();
        match tail.windows(pattern.len()).position(|eight| eight == pattern) {
            Some(skip) => {
                at += skip as u64;
                if let Some((header, _)) = window.frame(at, tag)? {
                    strays.end = at + header.frame_len();
                    strays.synced = strays.synced.max(header.synced);
                    at = strays.end;
                } else {
                    at += 1;
                }
            }
            // The end of this chunk may hold the start of a header: include it in the next one.
            None => at += count - (FRAME_HEADER_BYTES - 1),
        }
    }
    Ok(strays)
}

/// Where the frame at `offset` would have ended, if its header is there but the rest is not.
pub(crate) fn torn_end(segment: &Segment, tag: u64, offset: u64) -> io::Result<Option<u64>> {
    let mut window = Window::new(segment);
    let header = window.at(offset, FRAME_HEADER_BYTES)?.and_then(FrameHeader::decode);
    Ok(header
        .filter(|header| header.tag == tag)
        .map(|header| (offset + header.frame_len()).min(segment.len)))
}
