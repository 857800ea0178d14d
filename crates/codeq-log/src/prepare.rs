//! Prepares the segments that the log will need, off the append path.
//!
//! A job shares no file with the log, and no memory but two flags: whether it is in progress, and whether the log is
//! poisoned. It works on the directory, and may run on another thread while the log is written. It can fail or be dropped
//! at any point, and the next job starts from what it finds. Its steps are ordered so that a crash always leaves a
//! directory that opens with all of its frames.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use codeq_disk::{SharedDisk, Shortage};

use crate::segment::{self, Kind, Segment, SegmentHeader};
use crate::{LogError, MAX_SPARE_SEGMENTS};

/// Work for the log's directory: files to retire, and a segment to prepare.
///
/// At most one job exists at a time; its [`Prepared`] result counts too.
pub struct PrepareJob {
    pub(crate) disk: SharedDisk,
    pub(crate) dir: PathBuf,
    /// Epochs of segments that are no longer part of the log, oldest first.
    pub(crate) retired: Vec<u64>,
    /// The segment to prepare.
    pub(crate) make: Option<SegmentHeader>,
    pub(crate) segment_bytes: u64,
    /// Set after a failure that cannot be retried, because the state of the disk is then unknown.
    pub(crate) poisoned: Arc<OnceLock<String>>,
    /// Shows the log that the job is still in progress.
    pub(crate) token: Arc<()>,
}

/// The result of a [`PrepareJob`], to be passed to [`crate::Log::provide`].
pub struct Prepared {
    pub(crate) retired: Vec<u64>,
    pub(crate) segment: Option<Segment>,
    pub(crate) _token: Arc<()>,
}

impl PrepareJob {
    /// Runs the job. Takes as long as writing a segment.
    ///
    /// After an error that [is a shortage](LogError::shortage), the log is as usable as before; ask it for another
    /// job after a pause. Any other error poisons the log: after a failed write or sync the state of the disk is
    /// unknown, and a second sync may succeed without the data.
    pub fn run(self) -> Result<Prepared, LogError> {
        let poisoned = Arc::clone(&self.poisoned);
        self.prepare().inspect_err(|error| {
            if error.shortage().is_none() {
                poisoned.get_or_init(|| error.to_string());
            }
        })
    }

    fn prepare(self) -> Result<Prepared, LogError> {
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
    /// This is durable before the next segment is retired, because the log must never have a gap, and before the file
    /// is overwritten, because a segment must never be seen with a wrong header.
    fn retire(&self, epoch: u64) -> Result<(), LogError> {
        let path = segment::path(&self.dir, epoch, Kind::Segment);
        // An earlier job may have got this far.
        if self.disk.exists(&path).map_err(LogError::io("look for", &path))? {
            let spare = segment::path(&self.dir, epoch, Kind::Spare);
            self.disk.rename(&path, &spare).map_err(LogError::io("rename", &path))?;
        }
        self.sync_dir()
    }

    /// Removes unneeded files, and picks a spare file for the segment to prepare.
    fn tidy(&self) -> Result<Option<PathBuf>, LogError> {
        let mut spares = Vec::new();
        let names = self.disk.list(&self.dir).map_err(LogError::io("list", &self.dir))?;
        for name in names {
            let path = self.dir.join(&name);
            match segment::parse_name(&name) {
                Some((_, Kind::New)) => self.remove(&path)?,
                Some((_, Kind::Spare)) => {
                    let len = || self.disk.open(&path)?.len();
                    if len().map_err(LogError::io("open", &path))? == self.segment_bytes {
                        spares.push(path);
                    } else {
                        self.remove(&path)?;
                    }
                }
                _ => {}
            }
        }
        let picked = self.make.and_then(|_| spares.pop());
        for path in spares.iter().skip(MAX_SPARE_SEGMENTS) {
            self.remove(path)?;
        }
        Ok(picked)
    }

    fn remove(&self, path: &Path) -> Result<(), LogError> {
        self.disk.remove(path).map_err(LogError::io("remove", path))
    }

    fn sync_dir(&self) -> Result<(), LogError> {
        self.disk.sync_dir(&self.dir).map_err(|error| match Shortage::of(&error) {
            // If the directory could not even be opened, no sync was attempted, so it can be repeated.
            Some(Shortage::Descriptors) => LogError::io("open", &self.dir)(error),
            // Not retried even if the disk is full: the sync itself failed.
            _ => LogError::SyncDir { dir: self.dir.clone(), source: error },
        })
    }
}
