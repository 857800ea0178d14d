//! The mark of a directory that is being created: by a first start, a backup or a restore.
//!
//! The mark is made durable before anything else, and removed once the MANIFEST, which comes last, is there. So a
//! directory without MANIFEST is one of these:
//!
//! | mark | what it is | what a start does |
//! |---|---|---|
//! | none, and nothing else | an empty directory | creates a data directory |
//! | none | not ours, or ours with its MANIFEST lost | refuses |
//! | creation | an interrupted first start; nothing was ever acknowledged | clears it and starts over |
//! | backup, restore | an incomplete one | refuses |
//!
//! With a MANIFEST the directory is complete, with or without the mark.

use std::path::{Path, PathBuf};

use codeq_disk::Disk;

use crate::error::{DirectoryOperation, OpenError};
use crate::layout;

const NAME: &str = "INCOMPLETE";
const UNFINISHED: &str = "INCOMPLETE.new";

fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// Creates and marks the directory, which must be empty or missing.
pub(crate) fn begin(
    disk: &dyn Disk,
    dir: &Path,
    operation: DirectoryOperation,
) -> Result<(), OpenError> {
    disk.create_dir_all(dir).map_err(OpenError::io("create", dir))?;
    let text = format!("unfinished {operation}\n");
    layout::replace(disk, dir, UNFINISHED, NAME, &text)?;
    sync_name(disk, dir)
}

/// Makes the directory's own name durable.
fn sync_name(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    let Some(above) = codeq_disk::containing_dir(dir) else { return Ok(()) };
    disk.sync_dir(above).map_err(OpenError::io("sync", above))
}

/// Removes the mark of a directory that has its MANIFEST.
pub(crate) fn end(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    let path = path(dir);
    if disk.exists(&path).map_err(OpenError::io("look for", &path))? {
        disk.remove(&path).map_err(OpenError::io("remove", &path))?;
        disk.sync_dir(dir).map_err(OpenError::io("sync", dir))?;
    }
    Ok(())
}

/// The mark of a directory, if it has one.
pub(crate) fn find(disk: &dyn Disk, dir: &Path) -> Result<Option<DirectoryOperation>, OpenError> {
    let path = path(dir);
    if !disk.exists(&path).map_err(OpenError::io("look for", &path))? {
        return Ok(None);
    }
    let text = layout::read(disk, &path).map_err(OpenError::io("read", &path))?;
    let operation = DirectoryOperation::ALL
        .into_iter()
        .find(|operation| text == format!("unfinished {operation}\n"));
    let damaged = || OpenError::Foreign {
        dir: dir.to_owned(),
        reason: format!("its file {NAME} is damaged: remove the directory, or choose another"),
    };
    operation.map(Some).ok_or_else(damaged)
}

/// Why a directory without MANIFEST cannot be used; `None` if it is empty.
pub fn refusal(disk: &dyn Disk, dir: &Path) -> Result<Option<OpenError>, OpenError> {
    let foreign = |reason: String| Some(OpenError::Foreign { dir: dir.to_owned(), reason });
    if !disk.exists(dir).map_err(OpenError::io("look for", dir))? {
        return Ok(None);
    }
    if let Some(operation) = find(disk, dir)? {
        return Ok(Some(OpenError::Unfinished { dir: dir.to_owned(), operation }));
    }
    let names = disk.list(dir).map_err(OpenError::io("list", dir))?;
    let held = names.iter().find(|name| !is_allowed(name));
    let ours = names.iter().any(|name| is_ours(name));
    Ok(match held {
        Some(_) if ours => foreign(
            "its MANIFEST is missing, but there is data; nothing was changed: restore it from a backup"
                .to_owned(),
        ),
        Some(name) => foreign(format!("it holds '{name}'; choose an empty directory")),
        None => None,
    })
}

/// What an empty directory may contain: the lock, what some file systems put into their root, and an unfinished mark.
pub(crate) fn is_allowed(name: &str) -> bool {
    matches!(name, "LOCK" | "lost+found" | UNFINISHED)
}

/// Whether a creation makes a directory of this name.
fn is_ours(name: &str) -> bool {
    layout::is_shard(name) || matches!(name, "log" | "raft")
}

/// Removes the remains of an interrupted creation, except for its mark, and completes what [`begin`] may not have.
pub(crate) fn clear(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    let names = disk.list(dir).map_err(OpenError::io("list", dir))?;
    let expected =
        |name: &str| is_allowed(name) || is_ours(name) || matches!(name, "MANIFEST.new" | NAME);
    if let Some(name) = names.iter().find(|name| !expected(name)) {
        let reason = format!("it holds '{name}'; choose an empty directory");
        return Err(OpenError::Foreign { dir: dir.to_owned(), reason });
    }
    for name in names.iter().filter(|name| is_ours(name)) {
        let sub = dir.join(name);
        for file in disk.list(&sub).map_err(OpenError::io("list", &sub))? {
            let file = sub.join(file);
            disk.remove(&file).map_err(OpenError::io("remove", &file))?;
        }
        disk.sync_dir(&sub).map_err(OpenError::io("sync", &sub))?;
    }
    sync_name(disk, dir)
}
