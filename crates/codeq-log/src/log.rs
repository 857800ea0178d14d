//! An open log: append, sync, replay, purge.
//!
//! One thread owns it; others read through [`Log::reader`]. This file decides the order of operations on disk: a segment
//! is synced before the next one is started, and the watermark follows the sync.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use codeq_disk::SharedDisk;

use crate::chain::Frames;
use crate::frame::{self, FRAME_HEADER_BYTES, Link, Records};
use crate::reader::{LogReader, Position};
use crate::segment::{self, SEGMENT_HEADER_BYTES, Segment, SegmentHeader};
use crate::watermark::Watermark;
use crate::{FrameIndex, LogError, Options, PREPARED_SEGMENTS, PrepareJob, Prepared};

/// A segment that is part of the log.
pub(crate) struct LiveSegment {
    pub(crate) segment: Segment,
    /// Index of its first frame, or of the next frame while it has none.
    pub(crate) first: FrameIndex,
}

/// A durable log, open for writing.
pub struct Log {
    pub(crate) disk: SharedDisk,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) log_id: u64,
    /// Oldest first; the last one is being written. Never empty.
    pub(crate) segments: Vec<LiveSegment>,
    /// Where the next frame goes in the current segment.
    pub(crate) end: u64,
    /// What the next frame continues from.
    pub(crate) link: Link,
    /// The last synced frame.
    pub(crate) synced: FrameIndex,
    pub(crate) watermark: Watermark,
    /// Segments ready for use, by epoch.
    pub(crate) prepared: VecDeque<Segment>,
    /// Epochs of files that have left the log but still have a segment's name.
    pub(crate) retired: Vec<u64>,
    pub(crate) next_epoch: u64,
    /// Buffer for the frame being written; kept so that an append does not allocate.
    pub(crate) buf: Vec<u8>,
    pub(crate) poisoned: Arc<OnceLock<String>>,
    /// Alive while a job or its result is in progress.
    pub(crate) job: Weak<()>,
    /// Epoch of the segment that the current job prepares.
    pub(crate) making: Option<u64>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("dir", &self.dir)
            .field("first_index", &self.first_index())
            .field("last_index", &self.last_index())
            .field("synced_index", &self.synced)
            .finish_non_exhaustive()
    }
}

impl Log {
    /// The oldest frame in the log; one past [`Log::last_index`] if the log is empty.
    ///
    /// May be lower after a reopen: purged segments that were not yet removed from the directory are part of the log
    /// again.
    pub fn first_index(&self) -> FrameIndex {
        self.segments.first().map_or(self.link.next, |live| live.first)
    }

    /// The newest frame in the log, synced or not.
    pub fn last_index(&self) -> FrameIndex {
        self.link.next.previous()
    }

    /// The newest frame that is durable.
    pub fn synced_index(&self) -> FrameIndex {
        self.synced
    }

    /// The random number that identifies the log.
    pub fn log_id(&self) -> u64 {
        self.log_id
    }

    /// How many bytes of frames (see [`crate::frame_len`]) can be appended for certain, in frames of any length,
    /// before a segment has to be provided.
    ///
    /// A caller that checks this before it changes any state never ends up with a change that it cannot log.
    pub fn room(&self) -> u64 {
        if self.poisoned.get().is_some() {
            return 0;
        }
        let current = self.current_room();
        let each = self.options.segment_bytes.saturating_sub(SEGMENT_HEADER_BYTES);
        // Moving on to the next segment may waste almost a whole frame at the end of the previous one. The last segment
        // is filled from its start, so it counts in full whatever came before.
        let ready = self.prepared.len() as u64;
        let wasted = ready.saturating_mul(self.options.max_frame_bytes());
        let all = each.saturating_mul(ready).saturating_add(current).saturating_sub(wasted);
        let last = if ready > 0 { each } else { 0 };
        all.max(current).max(last)
    }

    /// Writes one frame; the next [`Log::sync`] makes it durable. Returns where it is.
    ///
    /// Starts the next prepared segment if the frame does not fit into the current one. Errors other than
    /// [`LogError::NoSegment`] and [`LogError::FrameTooLarge`] poison the log.
    pub fn append(&mut self, records: &[(u16, &[u8])]) -> Result<Position, LogError> {
        self.check_poison()?;
        let len = frame::frame_len(records);
        let max = self.options.max_frame_bytes();
        if len > max {
            return Err(LogError::FrameTooLarge { len, max });
        }
        if len > self.current_room() {
            self.begin_segment(len)?;
        }
        let Some(live) = self.segments.last() else {
            return Err(LogError::NoSegment { needed: len });
        };
        let (epoch, offset) = (live.segment.epoch, self.end);
        let tag = segment::tag(self.log_id, epoch);
        let crc = frame::encode(&mut self.buf, tag, self.link, self.synced, records);
        if let Err(error) = live.segment.file.write_all_at(&self.buf, offset) {
            let error = LogError::io("write", &live.segment.path)(error);
            self.poison(&error);
            return Err(error);
        }
        let index = self.link.next;
        self.end += len;
        self.link = Link { next: index.next(), prev: crc };
        Ok(Position { index, epoch, offset, len: len as u32, crc })
    }

    /// Makes everything appended so far durable. Does nothing if it already is.
    ///
    /// An error poisons the log: the frames may or may not be on disk, and only a reopen can tell.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.check_poison()?;
        if self.synced == self.last_index() {
            return Ok(());
        }
        let result = self.sync_current();
        result.inspect_err(|error| self.poison(error))
    }

    /// A reader of single frames, for any thread. It stays usable while the log is written and purged.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.disk.clone(), self.dir.clone(), self.log_id)
    }

    /// Calls `each` with every record from frame `from` on, in order, and with the position of the record's frame.
    ///
    /// Returns an error if `from` is before the first frame or more than one past the last, because records would be
    /// missing. One past the last frame is fine and yields none.
    pub fn replay<E: From<LogError>>(
        &self,
        from: FrameIndex,
        mut each: impl FnMut(Position, u16, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (first, last) = (self.first_index(), self.last_index());
        if from < first {
            return Err(LogError::Purged { from, first }.into());
        }
        if from > self.link.next {
            return Err(LogError::BeyondEnd { from, last }.into());
        }
        let ends = self.segments.iter().skip(1).map(|next| next.first).chain([self.link.next]);
        for (live, end) in self.segments.iter().zip(ends).filter(|(_, end)| from < *end) {
            let path = &live.segment.path;
            let tag = segment::tag(self.log_id, live.segment.epoch);
            let mut frames = Frames::new(&live.segment, tag, None);
            for index in (live.first.0..end.0).map(FrameIndex) {
                let at = frames.offset();
                let corrupt = |what: &str| {
                    let what = format!("{what} in frame {index}");
                    E::from(LogError::Corrupt { file: path.clone(), offset: at, what })
                };
                let (header, frame) = frames
                    .next()
                    .map_err(LogError::io("read", path))?
                    .filter(|(header, _)| header.index == index)
                    .ok_or_else(|| corrupt("damage that appeared after the log was opened"))?;
                if index < from {
                    continue;
                }
                let (epoch, len) = (live.segment.epoch, frame.len() as u32);
                let position = Position { index, epoch, offset: at, len, crc: header.crc };
                let mut records = Records::new(&header, frame);
                while let Some((shard, bytes)) = records.next() {
                    each(position, shard, bytes)?;
                }
                if !records.is_complete() {
                    return Err(corrupt("records that do not fill the frame"));
                }
            }
        }
        Ok(())
    }

    /// Drops frames up to and including `up_to`, which are no longer needed.
    ///
    /// Segments without later frames leave the log, and the next [`PrepareJob`] retires their files. The current
    /// segment always stays, and so does a segment whose successor holds nothing durable yet: a crash must not cost
    /// the log its beginning.
    pub fn purge(&mut self, up_to: FrameIndex) {
        let end = up_to.next().min(self.synced);
        let count = self.segments.iter().skip(1).take_while(|next| next.first <= end).count();
        self.retired.extend(self.segments.drain(..count).map(|live| live.segment.epoch));
    }

    /// The next job for the log, if there is one and none is in progress.
    ///
    /// Run it, here or on another thread, pass the result to [`Log::provide`], and ask again. If it failed because of a
    /// [shortage](LogError::shortage), ask again after a pause; any other error has poisoned the log.
    pub fn next_job(&mut self) -> Option<PrepareJob> {
        if self.job.strong_count() > 0 || self.poisoned.get().is_some() {
            return None;
        }
        // A job that ended without a result may have left its segment behind. The epoch is never used again, so it does
        // not matter how far the job got.
        self.retired.extend(self.making.take());
        if self.prepared.len() < PREPARED_SEGMENTS {
            self.making = Some(self.next_epoch);
            self.next_epoch = self.next_epoch.saturating_add(1);
        } else if self.retired.is_empty() {
            return None;
        }
        let (log_id, start) = (self.log_id, None);
        let make = self.making.map(|epoch| SegmentHeader { log_id, epoch, start });
        let token = Arc::new(());
        self.job = Arc::downgrade(&token);
        Some(PrepareJob {
            disk: self.disk.clone(),
            dir: self.dir.clone(),
            retired: self.retired.clone(),
            make,
            segment_bytes: self.options.segment_bytes,
            poisoned: self.poisoned.clone(),
            token,
        })
    }

    /// Whether there is a job to run, or one that is not finished.
    pub fn has_job(&self) -> bool {
        let wants_segment = self.prepared.len() < PREPARED_SEGMENTS;
        wants_segment || self.making.is_some() || !self.retired.is_empty()
    }

    /// Adds the segment that a job prepared.
    pub fn provide(&mut self, prepared: Prepared) {
        self.retired.retain(|epoch| !prepared.retired.contains(epoch));
        self.prepared.extend(prepared.segment);
        self.making = None;
    }

    /// The bytes left in the current segment.
    fn current_room(&self) -> u64 {
        self.segments.last().map_or(0, |live| live.segment.len.saturating_sub(self.end))
    }

    /// Syncs the current segment and continues in the next prepared one.
    fn begin_segment(&mut self, needed: u64) -> Result<(), LogError> {
        if self.prepared.is_empty() {
            return Err(LogError::NoSegment { needed });
        }
        self.sync()?;
        self.segments.extend(
            self.prepared.pop_front().map(|segment| LiveSegment { segment, first: self.link.next }),
        );
        self.end = SEGMENT_HEADER_BYTES;
        Ok(())
    }

    fn sync_current(&mut self) -> Result<(), LogError> {
        if let Some(live) = self.segments.last() {
            live.segment.file.sync_data().map_err(LogError::io("sync", &live.segment.path))?;
        }
        self.synced = self.last_index();
        self.watermark.write(self.synced)
    }

    fn check_poison(&self) -> Result<(), LogError> {
        match self.poisoned.get() {
            Some(reason) => Err(LogError::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Poisons the log, keeping the first reason.
    fn poison(&self, error: &LogError) {
        self.poisoned.get_or_init(|| error.to_string());
    }
}

const _: () = assert!(FRAME_HEADER_BYTES + SEGMENT_HEADER_BYTES < crate::MIN_SEGMENT_BYTES);
