//! A data directory belongs to one process at a time.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;

use crate::error::OpenError;
use crate::layout;

/// A directory that this process has locked, until this is dropped.
pub struct DirLock(File);

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that another thread is just starting has a copy of it until
        // it execs, and the directory would seem to be in use.
        let _ = self.0.unlock();
    }
}

/// Locks the directory for this process, and creates it if it does not exist.
pub fn lock(dir: &Path) -> Result<DirLock, OpenError> {
    codeq_disk::private_dir(dir).map_err(OpenError::io("create", dir))?;
    let path = layout::lock_path(dir);
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(OpenError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(DirLock(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(OpenError::io("lock", &path)(source)),
    }
}

/// Keeps the directory from being opened while it is read, without writing to it. `None` if nobody has opened it yet.
pub fn share(dir: &Path) -> Result<Option<DirLock>, OpenError> {
    let path = layout::lock_path(dir);
    let file = match File::open(&path) {
        // Whoever has the directory open has made this file.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(OpenError::io("open", &path))?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(DirLock(file))),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(OpenError::io("lock", &path)(source)),
    }
}

/// Like [`share`], but creates a missing lock file first, if this process may, so that nobody opens the directory
/// meanwhile.
pub(crate) fn lock_source(dir: &Path) -> Result<Option<DirLock>, OpenError> {
    // On a read-only disk, nobody can open the directory for writing either.
    let _ = File::options().create(true).append(true).open(layout::lock_path(dir));
    share(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_free_at_once_though_somebody_else_holds_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        // The copy that a child process has until it execs.
        let _copy = held.0.try_clone().unwrap();
        assert!(matches!(lock(dir.path()), Err(OpenError::InUse(_))));
        drop(held);
        assert!(lock(dir.path()).is_ok());
    }
}
