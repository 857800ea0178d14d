//! Reads single frames by their position, from any thread, while the log is written, purged and recycled.
//!
//! A reader shares no memory and no file with the log. It opens segments by name, and no name is ever used twice. A
//! segment that leaves the log is renamed before it is overwritten, so bytes that do not match are either damage or, if
//! the name is gone, a segment that was purged in the meantime.

use std::io;
use std::path::PathBuf;

use codeq_disk::SharedDisk;

use crate::frame::{self, FrameHeader, Records};
use crate::segment::{self, Kind, Segment};
use crate::{FrameIndex, LogError};

/// Where a frame is. Valid only for the [`crate::Log`] that returned it, until that is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The frame's index.
    pub index: FrameIndex,
    /// Epoch of its segment.
    pub(crate) epoch: u64,
    pub(crate) offset: u64,
    /// Length of the whole frame. A frame is far shorter than 4 GiB; see [`crate::MAX_FRAME_BYTES`].
    pub(crate) len: u32,
    /// Tells the frame from any other that was or will be written to the same place.
    pub(crate) crc: u32,
}

impl Position {
    /// Length of the frame in bytes, including its header.
    pub fn frame_bytes(&self) -> u64 {
        u64::from(self.len)
    }
}

/// A frame read from the log.
#[derive(Debug)]
pub struct Frame {
    header: FrameHeader,
    bytes: Vec<u8>,
}

impl Frame {
    /// Its index.
    pub fn index(&self) -> FrameIndex {
        self.header.index
    }

    /// Its records in order: shard and content.
    pub fn records(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let mut records = Records::new(&self.header, &self.bytes);
        std::iter::from_fn(move || records.next())
    }

    /// All bytes of the frame, which contain its [`Frame::records`].
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads frames of a log from another thread; see [`crate::Log::reader`].
pub struct LogReader {
    disk: SharedDisk,
    dir: PathBuf,
    log_id: u64,
    /// The segment read last. Frames are usually read in order.
    last: Option<Segment>,
}

impl Clone for LogReader {
    fn clone(&self) -> Self {
        Self::new(self.disk.clone(), self.dir.clone(), self.log_id)
    }
}

impl LogReader {
    pub(crate) fn new(disk: SharedDisk, dir: PathBuf, log_id: u64) -> Self {
        Self { disk, dir, log_id, last: None }
    }

    /// Reads a frame, whether it is durable yet or not.
    ///
    /// Returns [`LogError::Gone`] if the frame's segment is no longer part of the log, and never another frame than the
    /// one whose position was given. Until the segment's file is retired, a purged frame can still be read.
    pub fn read(&mut self, position: Position) -> Result<Frame, LogError> {
        let segment = match self.last.take() {
            Some(segment) if segment.epoch == position.epoch => segment,
            _ => self.open(position)?,
        };
        let mut bytes = vec![0; position.len as usize];
        let read = segment.file.read_exact_at(&mut bytes, position.offset);
        let tag = segment::tag(self.log_id, position.epoch);
        let header = read.as_ref().ok().and_then(|()| intact(position, tag, &bytes));
        match header {
            Some(header) => {
                self.last = Some(segment);
                Ok(Frame { header, bytes })
            }
            None => Err(self.failure(position, segment, read)),
        }
    }

    fn open(&self, position: Position) -> Result<Segment, LogError> {
        match Segment::open(&*self.disk, &self.dir, position.epoch) {
            Ok((segment, _)) => Ok(segment),
            Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(LogError::Gone { index: position.index })
            }
            Err(error) => Err(error),
        }
    }

    /// Why the frame could not be read.
    fn failure(&self, position: Position, segment: Segment, read: io::Result<()>) -> LogError {
        let path = segment::path(&self.dir, position.epoch, Kind::Segment);
        match self.disk.exists(&path) {
            Ok(false) => return LogError::Gone { index: position.index },
            Ok(true) => {}
            Err(error) => return LogError::io("look for", &path)(error),
        }
        match read {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                LogError::io("read", &path)(error)
            }
            _ => LogError::Corrupt {
                file: segment.path,
                offset: position.offset,
                what: format!("frame {} is not there any more", position.index),
            },
        }
    }
}

/// The header of the bytes, if they are the frame that was written at the position.
fn intact(position: Position, tag: u64, bytes: &[u8]) -> Option<FrameHeader> {
    let header = FrameHeader::decode(bytes)?;
    let same = header.crc == position.crc
        && header.index == position.index
        && header.tag == tag
        && header.frame_len() == position.frame_bytes();
    if !same || !frame::is_intact(bytes) {
        return None;
    }
    let mut records = Records::new(&header, bytes);
    while records.next().is_some() {}
    records.is_complete().then_some(header)
}
