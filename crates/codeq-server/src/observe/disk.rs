//! Space on the filesystem of the data directory, for the metrics.

use std::path::Path;

/// Size and free space of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Total size.
    pub size_bytes: u64,
    /// Space that this process can use: without the blocks reserved for root.
    pub free_bytes: u64,
}

impl Disk {
    /// Reads the current values for the filesystem that holds `dir`.
    pub fn of(dir: &Path) -> Option<Disk> {
        let of = rustix::fs::statvfs(dir).ok()?;
        Some(Disk {
            size_bytes: of.f_blocks.saturating_mul(of.f_frsize),
            free_bytes: of.f_bavail.saturating_mul(of.f_frsize),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_the_filesystem_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::of(dir.path()).unwrap();
        assert!(disk.size_bytes > disk.free_bytes, "{disk:?}");
        assert_eq!(Disk::of(&dir.path().join("missing")), None);
    }
}
