//! The bare limit: the same bytes appended to a pre-written file and synced, nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;

const FILE_BYTES: u64 = 64 << 20;

/// A pre-written file to append to.
pub struct Bare {
    file: File,
    at: u64,
}

impl Bare {
    /// Writes the file once, so that appending to it allocates no blocks.
    pub fn new(dir: &Path) -> anyhow::Result<Bare> {
        let path = dir.join("bare");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        let zeros = vec![0; 1 << 20];
        for offset in (0..FILE_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, offset)?;
        }
        file.sync_all()?;
        Ok(Bare { file, at: 0 })
    }

    /// Operations per second when `group` of them, `bytes` each, share one append and one `fdatasync`.
    pub fn operations_per_second(
        &mut self,
        group: usize,
        bytes: usize,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let size = (group * bytes).clamp(1, FILE_BYTES as usize / 2);
        // Not zeros: a device may treat those specially.
        let data: Vec<u8> = (0..size).map(|i| (i * 31 + 7) as u8).collect();
        let start = Instant::now();
        let mut operations = 0;
        while start.elapsed() < time {
            if self.at + size as u64 > FILE_BYTES {
                self.at = 0;
            }
            self.file.write_all_at(&data, self.at)?;
            self.file.sync_data()?;
            self.at += size as u64;
            operations += group;
        }
        Ok(operations as f64 / start.elapsed().as_secs_f64())
    }
}
