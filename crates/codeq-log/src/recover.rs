//! Examines a log's directory without changing anything.
//!
//! Frames are followed along their chain from the oldest segment on. Where the chain stops, the question is whether a
//! crash stopped it: frames after the last synced one may be lost or torn in any way, earlier ones may not. So the
//! rest of that segment and all later segments are searched for intact frames. If one of them says that the missing
//! frame was synced, the log is corrupt. The watermark says how far the log has to reach even if no frame follows.

use std::path::{Path, PathBuf};

use codeq_disk::Disk;

use crate::chain::{Frames, find_strays, torn_end};
use crate::frame::Link;
use crate::segment::{self, Kind, SEGMENT_HEADER_BYTES, Segment, SegmentHeader};
use crate::watermark::{self, Mark};
use crate::{FrameIndex, LogError};

/// What a segment is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Holds frames from `first` on, or is the only segment of an empty log.
    Used { first: FrameIndex },
    /// Intact, but holds no frames.
    Unused,
    /// Holds no frames, and its header is damaged.
    Broken,
}

/// A segment found in the directory.
pub(crate) struct Found {
    pub(crate) segment: Segment,
    pub(crate) role: Role,
    /// Where its frames end.
    pub(crate) end: u64,
    /// Where torn, unsynced frames after `end` end; equal to `end` if there are none.
    pub(crate) torn_end: u64,
}

/// The state of a directory that can be opened.
pub(crate) struct Recovery {
    pub(crate) mark: Mark,
    /// All segments, by epoch.
    pub(crate) segments: Vec<Found>,
    /// Position in `segments` of the one to write next.
    pub(crate) current: usize,
    pub(crate) link: Link,
    /// The highest frame known to be synced.
    pub(crate) synced: FrameIndex,
    /// An epoch that no file has used.
    pub(crate) next_epoch: u64,
}

impl Recovery {
    /// Segments with torn, unsynced frames. Only the current segment and later ones can have any, because a segment is
    /// synced before the next one is started.
    pub(crate) fn torn(&self) -> impl Iterator<Item = &Found> {
        self.segments.iter().skip(self.current).filter(|found| found.torn_end > found.end)
    }
}

/// Reads a log's directory and decides whether it can be opened.
pub(crate) fn recover(disk: &dyn Disk, dir: &Path) -> Result<Recovery, LogError> {
    let (epochs, next_epoch) = list(disk, dir)?;
    let mark = match watermark::read(disk, dir)? {
        Some(mark) => mark,
        None if holds_frames(disk, dir)? => {
            return Err(LogError::NoWatermark { file: watermark::path(dir), what: "missing" });
        }
        None => {
            return Err(LogError::NotFound { dir: dir.to_owned() });
        }
    };

    let mut walk =
        Walk { log_id: mark.log_id, link: None, known: mark.index, stray_synced: FrameIndex(0) };
    let mut segments = Vec::with_capacity(epochs.len());
    for epoch in epochs {
        let (segment, header) = Segment::open(disk, dir, epoch)?;
        segments.push(walk.visit(segment, header)?);
    }
    walk.judge(dir, segments, mark, next_epoch)
}

/// Whether any segment holds a frame. Tells directories without a watermark apart: one without frames may be an
/// interrupted creation; one with frames is a log that has lost its watermark.
pub(crate) fn holds_frames(disk: &dyn Disk, dir: &Path) -> Result<bool, LogError> {
    for epoch in list(disk, dir)?.0 {
        let (segment, header) = Segment::open(disk, dir, epoch)?;
        // Without a header there is no tag to search for. An unfinished creation does not explain such a file, because
        // a segment is named only after its header is durable.
        let Some(header) = header else {
            return Ok(true);
        };
        let tag = segment::tag(header.log_id, header.epoch);
        let strays = find_strays(&segment, tag, SEGMENT_HEADER_BYTES)
            .map_err(LogError::io("read", &segment.path))?;
        if strays.end > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The epochs of the segments, sorted, and an epoch that no file here has.
fn list(disk: &dyn Disk, dir: &Path) -> Result<(Vec<u64>, u64), LogError> {
    if !disk.exists(dir).map_err(LogError::io("look for", dir))? {
        return Ok((Vec::new(), 1));
    }
    let names = disk.list(dir).map_err(LogError::io("list", dir))?;
    let files: Vec<_> = names.iter().filter_map(|name| segment::parse_name(name)).collect();
    let next_epoch = files.iter().map(|(epoch, _)| epoch.saturating_add(1)).max().unwrap_or(1);
    let mut epochs: Vec<_> =
        files.iter().filter(|(_, kind)| *kind == Kind::Segment).map(|(epoch, _)| *epoch).collect();
    epochs.sort_unstable();
    Ok((epochs, next_epoch))
}

/// State of the walk along the chain.
struct Walk {
    log_id: u64,
    /// What the next frame has to continue from; `None` until the log's first frame is found.
    link: Option<Link>,
    /// The highest frame known to be synced, from a frame in the chain or from the watermark.
    known: FrameIndex,
    /// The highest frame known to be synced, from a frame outside the chain.
    stray_synced: FrameIndex,
}

impl Walk {
    /// Follows the chain through the next segment.
    fn visit(
        &mut self,
        segment: Segment,
        header: Option<SegmentHeader>,
    ) -> Result<Found, LogError> {
        let tag = segment::tag(self.log_id, segment.epoch);
        let Some(header) = header else {
            // Headers are synced before the segment gets its name, so no crash explains this. It does not matter,
            // though, in a segment that was never written to.
            let strays =
                find_strays(&segment, tag, 0).map_err(LogError::io("read", &segment.path))?;
            if strays.end > 0 || self.link.is_none() {
                return Err(corrupt(&segment.path, 0, "the header of a segment in use is damaged"));
            }
            let end = SEGMENT_HEADER_BYTES.min(segment.len);
            return Ok(Found { segment, role: Role::Broken, end, torn_end: end });
        };
        self.check_header(&segment, &header)?;

        let start = header.start.filter(|_| self.link.is_none());
        self.link = self.link.or(start);
        let mut first = None;
        let mut frames = Frames::new(&segment, tag, self.link);
        while let Some((frame, _)) = frames.next().map_err(LogError::io("read", &segment.path))? {
            first.get_or_insert(frame.index);
            self.known = self.known.max(frame.synced);
        }
        let end = frames.offset();
        self.link = frames.link();

        if self.link.is_none() {
            // Earlier frames were purged, and a purge waits until the first frame here is durable, so it must be
            // intact.
            return Err(corrupt(&segment.path, end, "the oldest frame of the log is damaged"));
        }

        let strays =
            find_strays(&segment, tag, end).map_err(LogError::io("read", &segment.path))?;
        let begun = torn_end(&segment, tag, end).map_err(LogError::io("read", &segment.path))?;
        self.stray_synced = self.stray_synced.max(strays.synced);
        let first = first.or(start.map(|link| link.next));
        let role = first.map_or(Role::Unused, |first| Role::Used { first });
        Ok(Found { segment, role, end, torn_end: end.max(strays.end).max(begun.unwrap_or(0)) })
    }

    fn check_header(&self, segment: &Segment, header: &SegmentHeader) -> Result<(), LogError> {
        let what = if header.log_id != self.log_id {
            format!("it belongs to log {:016x}, this is log {:016x}", header.log_id, self.log_id)
        } else if header.epoch != segment.epoch {
            format!("it is a copy of segment {:016x} under another name", header.epoch)
        } else {
            return Ok(());
        };
        Err(LogError::Foreign { file: segment.path.clone(), what })
    }

    /// Decides, from everything seen, whether the log can be opened.
    fn judge(
        self,
        dir: &Path,
        segments: Vec<Found>,
        mark: Mark,
        next_epoch: u64,
    ) -> Result<Recovery, LogError> {
        let used = |found: &Found| matches!(found.role, Role::Used { .. });
        let current = segments.iter().enumerate().rfind(|(_, found)| used(found));
        let (Some((current, ending)), Some(link)) = (current, self.link) else {
            return Err(corrupt(dir, 0, "all segments are missing"));
        };
        let file = ending.segment.path.clone();
        if self.stray_synced >= link.next {
            let what = format!(
                "frame {} is missing or damaged, but later frames show that it was synced",
                link.next
            );
            return Err(corrupt(&file, ending.end, &what));
        }
        let last = link.next.previous();
        if last < mark.index {
            return Err(LogError::ShorterThanAcknowledged { file, last, acknowledged: mark.index });
        }
        Ok(Recovery { mark, segments, current, link, synced: self.known, next_epoch })
    }
}

fn corrupt(file: &Path, offset: u64, what: &str) -> LogError {
    LogError::Corrupt { file: PathBuf::from(file), offset, what: what.to_owned() }
}
