//! Creating a log, and opening one after a clean stop or a crash.
//!
//! Everything that recovery changes on disk is here: it cuts a torn tail, and makes what was read durable before
//! anything relies on it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Weak};

use codeq_disk::{Disk, SharedDisk};

use crate::chain::Frames;
use crate::frame::Link;
use crate::log::{LiveSegment, Log};
use crate::recover::{self, Found, Recovery, Role};
use crate::segment::{self, Segment, SegmentHeader, write_zeros};
use crate::watermark::{self, Watermark};
use crate::{FrameIndex, LogError, MIN_SEGMENT_BYTES, Options};

/// How a new log starts.
#[derive(Debug, Clone, Copy)]
pub struct NewLog {
    /// Index of its first frame: 1, or one past the last frame of a restored backup.
    pub first_index: FrameIndex,
    /// A random number that distinguishes this log's files from those of any other log.
    pub log_id: u64,
}

impl Log {
    /// Creates a log in a directory that has none, and opens it.
    ///
    /// An interrupted creation can simply be repeated.
    pub fn create(
        disk: SharedDisk,
        dir: &Path,
        options: Options,
        new: NewLog,
    ) -> Result<Log, LogError> {
        check(&options)?;
        let marked = disk.exists(&watermark::path(dir)).map_err(LogError::io("look for", dir))?;
        if marked || recover::holds_frames(&*disk, dir)? {
            return Err(LogError::AlreadyExists { dir: dir.to_owned() });
        }
        disk.create_dir_all(dir).map_err(LogError::io("create", dir))?;
        clear(&*disk, dir)?;

        // The watermark comes last: a log exists once it has one.
        let first_index = new.first_index.max(FrameIndex(1));
        let start = Some(Link { next: first_index, prev: 0 });
        let header = SegmentHeader { log_id: new.log_id, epoch: 1, start };
        Segment::make(&*disk, dir, header, options.segment_bytes, None)?;
        disk.sync_dir(dir).map_err(LogError::io("sync", dir))?;
        Watermark::create(&*disk, dir, new.log_id, first_index.previous())?;
        Log::open(disk, dir, options)
    }

    /// Opens a log: reads and checks all of its frames, cuts a torn tail, and makes the rest durable. If it refuses the
    /// log because of what the files contain, it has changed nothing.
    ///
    /// Also makes the directory's own entry durable; the entries of its ancestors are up to the caller.
    pub fn open(disk: SharedDisk, dir: &Path, options: Options) -> Result<Log, LogError> {
        check(&options)?;
        let found = recover::recover(&*disk, dir)?;
        make_durable(&*disk, dir, &found)?;
        let mut watermark = Watermark::open(&*disk, dir, found.mark)?;
        let last = found.link.next.previous();
        watermark.write(last)?;

        let (mut segments, mut prepared, mut retired) = (Vec::new(), VecDeque::new(), Vec::new());
        let mut end = 0;
        for (position, each) in found.segments.into_iter().enumerate() {
            let segment = each.segment;
            // A segment of a different length would make `Log::room` inexact.
            let fits = position > found.current && segment.len == options.segment_bytes;
            match each.role {
                Role::Used { first } => {
                    segments.push(LiveSegment { segment, first });
                    end = each.end;
                }
                Role::Unused if fits => prepared.push_back(segment),
                Role::Unused | Role::Broken => retired.push(segment.epoch),
            }
        }
        Ok(Log {
            disk,
            dir: dir.to_owned(),
            options,
            log_id: found.mark.log_id,
            segments,
            end,
            link: found.link,
            synced: last,
            watermark,
            prepared,
            retired,
            next_epoch: found.next_epoch,
            buf: Vec::new(),
            poisoned: Arc::default(),
            job: Weak::new(),
            making: None,
        })
    }
}

fn check(options: &Options) -> Result<(), LogError> {
    if options.segment_bytes < MIN_SEGMENT_BYTES {
        let (found, least) = (options.segment_bytes, MIN_SEGMENT_BYTES);
        return Err(LogError::SegmentTooSmall { found, least });
    }
    Ok(())
}

/// Removes the remains of an interrupted creation.
fn clear(disk: &dyn Disk, dir: &Path) -> Result<(), LogError> {
    for name in disk.list(dir).map_err(LogError::io("list", dir))? {
        if let Some((epoch, kind)) = segment::parse_name(&name) {
            let path = segment::path(dir, epoch, kind);
            disk.remove(&path).map_err(LogError::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Brings the disk into the state that recovery decided on.
fn make_durable(disk: &dyn Disk, dir: &Path, found: &Recovery) -> Result<(), LogError> {
    // The previous process may have died between a rename and its sync, or while creating the log. A frame synced to a
    // file without a durable name is lost along with the name.
    disk.sync_dir(dir).map_err(LogError::io("sync", dir))?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.sync_dir(parent).map_err(LogError::io("sync", parent))?;
    }
    for torn in found.torn() {
        // Otherwise the remains could become valid again if a frame identical to the lost one is written.
        let cut = || {
            write_zeros(&*torn.segment.file, torn.end, torn.torn_end)?;
            torn.segment.file.sync_data()
        };
        cut().map_err(LogError::io("cut", &torn.segment.path))?;
    }
    match found.segments.get(found.current) {
        Some(current) if found.link.next.previous() > found.synced => rewrite_tail(current, found),
        _ => Ok(()),
    }
}

/// Rewrites and syncs the frames that are not known to be synced.
///
/// They were read, but possibly from the page cache: if the previous process had a failed sync, the kernel considers
/// these pages clean, and another sync would succeed without writing them. Only the last segment can hold such
/// frames, because a segment is synced before the next one is started.
fn rewrite_tail(current: &Found, found: &Recovery) -> Result<(), LogError> {
    let segment = &current.segment;
    let tag = segment::tag(found.mark.log_id, segment.epoch);
    let rewrite = || {
        let mut frames = Frames::new(segment, tag, None);
        let mut at = frames.offset();
        while let Some((header, frame)) = frames.next()? {
            if header.index > found.synced {
                segment.file.write_all_at(frame, at)?;
            }
            at = frames.offset();
        }
        segment.file.sync_data()
    };
    rewrite().map_err(LogError::io("make durable", &segment.path))
}
