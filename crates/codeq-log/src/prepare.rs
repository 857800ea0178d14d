//! Making the segments that the log will need, away from the append path.
//!
//! A job owns no memory of the log and shares no file with it: it works on the directory alone and
//! may run on another thread while the log is written. It can fail or be dropped at any point; the
//! next one starts from what it finds. Every step is ordered so that a crash leaves a directory
//! that opens with all of its frames.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use codeq_disk::SharedDisk;

use crate::MAX_SPARE_SEGMENTS;
use crate::segment::{self, Kind, Segment, SegmentHeader};

/// Work that the log wants done: files to be retired, and a segment to be made ready.
///
/// At most one exists at a time, as a job or as its result.
pub struct PrepareJob {
    pub(crate) disk: SharedDisk,
    pub(crate) dir: PathBuf,
    /// Epochs of segments that are no longer part of the log, oldest first.
    pub(crate) retired: Vec<u64>,
    /// The segment to be made.
    pub(crate) make: Option<SegmentHeader>,
    pub(crate) segment_bytes: u64,
    /// Set when a directory could not be synced: what the disk holds is then unknown.
    pub(crate) poisoned: Arc<AtomicBool>,
    /// Lets the log see that the job is still under way.
    pub(crate) token: Arc<()>,
}

/// The result of a [`PrepareJob`], to be handed to [`crate::Log::provide`].
pub struct Prepared {
    pub(crate) retired: Vec<u64>,
    pub(crate) segment: Option<Segment>,
    pub(crate) _token: Arc<()>,
}

impl PrepareJob {
    /// Does the work. Takes as long as writing a segment takes.
    ///
    /// After an error, a full disk for one, the log is as usable as before; ask it for another job
    /// after a pause. Only if a directory could not be synced the log is poisoned.
    pub fn run(self) -> io::Result<Prepared> {
        for epoch in &self.retired {
            self.retire(*epoch)?;
        }
        let spare = self.tidy()?;
        let mut made = None;
        if let Some(header) = self.make {
            made = Some(Segment::make(&*self.disk, &self.dir, header, self.segment_bytes, spare)?);
            self.sync_dir()?;
        }
        Ok(Prepared { retired: self.retired, segment: made, _token: self.token })
    }

    /// Takes a segment out of the log.
    ///
    /// Each one is out durably before the next one goes: the log must never be seen with a hole.
    /// And before anything is written to it: a segment must never be seen with a wrong header.
    fn retire(&self, epoch: u64) -> io::Result<()> {
        let path = segment::path(&self.dir, epoch, Kind::Segment);
        // An earlier job may have come this far.
        if self.disk.exists(&path)? {
            self.disk.rename(&path, &segment::path(&self.dir, epoch, Kind::Spare))?;
        }
        self.sync_dir()
    }

    /// Removes what is not worth keeping, and picks a spare file for the segment to be made.
    fn tidy(&self) -> io::Result<Option<PathBuf>> {
        let mut spares = Vec::new();
        for name in self.disk.list(&self.dir)? {
            let path = self.dir.join(&name);
            match segment::parse_name(&name) {
                Some((_, Kind::New)) => self.disk.remove(&path)?,
                Some((_, Kind::Spare)) => {
                    if self.disk.open(&path)?.len()? == self.segment_bytes {
                        spares.push(path);
                    } else {
                        self.disk.remove(&path)?;
                    }
                }
                _ => {}
            }
        }
        let picked = self.make.and_then(|_| spares.pop());
        for path in spares.iter().skip(MAX_SPARE_SEGMENTS) {
            self.disk.remove(path)?;
        }
        Ok(picked)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir(&self.dir).inspect_err(|_| self.poisoned.store(true, Ordering::Release))
    }
}
