//! The log in use: appending, syncing, reading back, purging.
//!
//! One owner thread. The order of things on the disk is decided here: a segment is synced before
//! the next one is begun, and the watermark follows the sync.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use codeq_disk::SharedDisk;

use crate::frame::{self, FRAME_HEADER_BYTES, Link, Records};
use crate::reader::Frames;
use crate::segment::{self, SEGMENT_HEADER_BYTES, Segment, SegmentHeader};
use crate::watermark::Watermark;
use crate::{FrameIndex, LogError, Options, PREPARED_SEGMENTS, PrepareJob, Prepared};

/// A segment that holds part of the log.
pub(crate) struct Held {
    pub(crate) segment: Segment,
    /// The index of its first frame; of the next one, as long as it has none.
    pub(crate) first: FrameIndex,
}

/// A durable log, open for writing.
pub struct Log {
    pub(crate) disk: SharedDisk,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) log_id: u64,
    /// Oldest first; the last one is the current one. Never empty.
    pub(crate) held: Vec<Held>,
    /// Where the next frame goes in the current segment.
    pub(crate) end: u64,
    /// What the next frame continues from.
    pub(crate) link: Link,
    /// The last frame that is synced.
    pub(crate) synced: FrameIndex,
    pub(crate) watermark: Watermark,
    /// Segments that stand ready, in the order of their epochs.
    pub(crate) prepared: VecDeque<Segment>,
    /// Epochs of files that are no longer part of the log but still named so.
    pub(crate) retired: Vec<u64>,
    pub(crate) next_epoch: u64,
    /// The frame being written; kept so that an append allocates nothing.
    pub(crate) buf: Vec<u8>,
    pub(crate) poisoned: Arc<OnceLock<String>>,
    /// Alive as long as a job or its result is under way.
    pub(crate) job: Weak<()>,
    /// The epoch of the segment that the job under way is to make.
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
    /// The oldest frame in the log; one more than [`Log::last_index`] if it is empty.
    ///
    /// After a reopen it can be lower than it was: purged segments that were not yet taken out of
    /// the directory are part of the log again.
    pub fn first_index(&self) -> FrameIndex {
        self.held.first().map_or(self.link.next, |held| held.first)
    }

    /// The newest frame in the log, synced or not.
    pub fn last_index(&self) -> FrameIndex {
        self.link.next.saturating_sub(1)
    }

    /// The newest frame that is durable.
    pub fn synced_index(&self) -> FrameIndex {
        self.synced
    }

    /// The number that the log was created with.
    pub fn log_id(&self) -> u64 {
        self.log_id
    }

    /// How many bytes of frames (see [`crate::frame_len`]) can certainly be appended, in frames of
    /// any lengths, before a segment has to be provided.
    ///
    /// A caller that checks this before it changes any state is never left with a change that
    /// cannot be logged.
    pub fn room(&self) -> u64 {
        if self.poisoned.get().is_some() {
            return 0;
        }
        let current = self.current_room();
        let each = self.options.segment_bytes.saturating_sub(SEGMENT_HEADER_BYTES);
        // Every segment that is left for the next one may waste nearly a whole frame at its end. The
        // last one is filled from its start, so that it counts in full whatever came before.
        let ready = self.prepared.len() as u64;
        let wasted = ready.saturating_mul(self.options.max_frame_bytes());
        let all = each.saturating_mul(ready).saturating_add(current).saturating_sub(wasted);
        let last = if ready > 0 { each } else { 0 };
        all.max(current).max(last)
    }

    /// Writes one frame, to be made durable by the next [`Log::sync`].
    ///
    /// Begins the next prepared segment if the frame does not fit the current one. Errors other
    /// than [`LogError::NoSegment`] and [`LogError::FrameTooLarge`] poison the log.
    pub fn append(&mut self, records: &[(u16, &[u8])]) -> Result<FrameIndex, LogError> {
        self.check_poison()?;
        let len = frame::frame_len(records);
        let max = self.options.max_frame_bytes();
        if len > max {
            return Err(LogError::FrameTooLarge { len, max });
        }
        if len > self.current_room() {
            self.begin_segment(len)?;
        }
        let Some(held) = self.held.last() else {
            return Err(LogError::NoSegment { needed: len });
        };
        let tag = segment::tag(self.log_id, held.segment.epoch);
        let crc = frame::encode(&mut self.buf, tag, self.link, self.synced, records);
        if let Err(error) = held.segment.file.write_all_at(&self.buf, self.end) {
            let error = LogError::io("write", &held.segment.path)(error);
            self.poison(&error);
            return Err(error);
        }
        let index = self.link.next;
        self.end += len;
        self.link = Link { next: index.saturating_add(1), prev: crc };
        Ok(index)
    }

    /// Makes everything appended so far durable. Costs nothing if it is already.
    ///
    /// An error poisons the log: the frames may or may not be on the disk, and only a reopen can
    /// tell.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.check_poison()?;
        if self.synced == self.last_index() {
            return Ok(());
        }
        let result = self.sync_current();
        result.inspect_err(|error| self.poison(error))
    }

    /// Calls `each` with every record from frame `from` on, in order.
    ///
    /// A `from` that the log does not reach back or forward to is an error: records would be
    /// missing. One more than the last frame is fine and gives none.
    pub fn replay<E: From<LogError>>(
        &self,
        from: FrameIndex,
        mut each: impl FnMut(FrameIndex, u16, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (first, last) = (self.first_index(), self.last_index());
        if from < first {
            return Err(LogError::Purged { from, first }.into());
        }
        if from > self.link.next {
            return Err(LogError::BeyondEnd { from, last }.into());
        }
        let ends = self.held.iter().skip(1).map(|next| next.first).chain([self.link.next]);
        for (held, end) in self.held.iter().zip(ends).filter(|(_, end)| from < *end) {
            let path = &held.segment.path;
            let tag = segment::tag(self.log_id, held.segment.epoch);
            let mut frames = Frames::new(&held.segment, tag, None);
            for index in held.first..end {
                let at = frames.offset();
                let corrupt = |what: &str| {
                    let what = format!("{what} in frame {index}");
                    E::from(LogError::Corrupt { file: path.clone(), offset: at, what })
                };
                let (header, frame) = frames
                    .next()
                    .map_err(LogError::io("read", path))?
                    .filter(|(header, _)| header.index == index)
                    .ok_or_else(|| corrupt("damage since the log was opened"))?;
                if index < from {
                    continue;
                }
                let mut records = Records::new(&header, frame);
                while let Some((shard, bytes)) = records.next() {
                    each(index, shard, bytes)?;
                }
                if !records.is_complete() {
                    return Err(corrupt("records that do not fill it"));
                }
            }
        }
        Ok(())
    }

    /// Says that the frames up to and including `up_to` are not needed any more.
    ///
    /// Segments that hold no others leave the log; their files are taken out by the next
    /// [`PrepareJob`]. The current segment always stays, and so does one whose successor holds
    /// nothing durable yet: the log must not lose its beginning to a crash.
    pub fn purge(&mut self, up_to: FrameIndex) {
        let end = up_to.saturating_add(1).min(self.synced);
        let count = self.held.iter().skip(1).take_while(|next| next.first <= end).count();
        self.retired.extend(self.held.drain(..count).map(|held| held.segment.epoch));
    }

    /// Work to be done for the log, if there is any and none is under way.
    ///
    /// Run it, on another thread or right here, and hand the result to [`Log::provide`]; then ask
    /// again. If it failed for a [shortage](LogError::shortage) ask again after a pause; any other error has
    /// poisoned the log.
    pub fn wanted(&mut self) -> Option<PrepareJob> {
        if self.job.strong_count() > 0 || self.poisoned.get().is_some() {
            return None;
        }
        // A job that ended without a result may have left its segment behind. Never the same epoch
        // twice: nobody needs to know then how far the failed job came.
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

    /// Takes over what a job has prepared.
    pub fn provide(&mut self, prepared: Prepared) {
        self.retired.retain(|epoch| !prepared.retired.contains(epoch));
        self.prepared.extend(prepared.segment);
        self.making = None;
    }

    /// The bytes left in the current segment.
    fn current_room(&self) -> u64 {
        self.held.last().map_or(0, |held| held.segment.len.saturating_sub(self.end))
    }

    /// Leaves the current segment, durable, for the next prepared one.
    fn begin_segment(&mut self, needed: u64) -> Result<(), LogError> {
        if self.prepared.is_empty() {
            return Err(LogError::NoSegment { needed });
        }
        self.sync()?;
        self.held.extend(
            self.prepared.pop_front().map(|segment| Held { segment, first: self.link.next }),
        );
        self.end = SEGMENT_HEADER_BYTES;
        Ok(())
    }

    fn sync_current(&mut self) -> Result<(), LogError> {
        if let Some(held) = self.held.last() {
            held.segment.file.sync_data().map_err(LogError::io("sync", &held.segment.path))?;
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

    /// The first reason stays.
    fn poison(&self, error: &LogError) {
        self.poisoned.get_or_init(|| error.to_string());
    }
}

const _: () = assert!(FRAME_HEADER_BYTES + SEGMENT_HEADER_BYTES < crate::MIN_SEGMENT_BYTES);
