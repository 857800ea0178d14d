//! Replaces the rows of all shards by those of another node, completely or not at all.
//!
//! 1. [`begin`]: the rows go to `store.incoming` of every shard. Nothing else changes.
//! 2. [`commit`]: once all of them are verified and durable, the file `INSTALL` is written. From then on, the directory
//!    counts as having the new rows.
//! 3. [`finish`]: the files get their names, the caller makes its own files agree with them, and `INSTALL` is removed.
//!
//! Every start calls [`finish`] too. With `INSTALL`, it repeats step 3; without, it removes what step 1 has left. So a
//! crash at any moment leaves either all of the old rows or all of the new ones. Nobody may use the stores between step
//! 2 and the end of step 3.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use codeq_core::id::ShardId;
use codeq_disk::{Disk, SharedDisk};
use codeq_store::Import;

use crate::error::OpenError;
use crate::layout::{self, Manifest};

const NAME: &str = "INSTALL";
const UNFINISHED: &str = "INSTALL.new";

/// The version of the file.
const FORMAT: u32 = 1;

/// The most that a caller may keep in the file: a position and the members of a cluster take far less.
pub const NOTE_BYTES_MAX: usize = 16 << 10;

fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// Starts an import for every shard, by number. Remains of an earlier attempt are removed.
pub fn begin(
    disk: &SharedDisk,
    dir: &Path,
    manifest: Manifest,
    options: &codeq_store::Options,
) -> Result<Vec<Import>, OpenError> {
    clear_unless_committed(&**disk, dir, manifest)?;
    let mut imports = Vec::new();
    for shard in ShardId::all(manifest.shards) {
        let options =
            codeq_store::Options { owner: Some(manifest.owner(shard)), ..options.clone() };
        let path = layout::incoming_path(dir, shard);
        imports.push(Import::begin(disk.clone(), &path, options)?);
    }
    Ok(imports)
}

/// Commits the installation: all imports are finished, and their rows become those of the directory. [`finish`] returns
/// `note` to the caller.
pub fn commit(
    disk: &dyn Disk,
    dir: &Path,
    manifest: Manifest,
    note: &[u8],
) -> Result<(), OpenError> {
    for shard in ShardId::all(manifest.shards) {
        let path = layout::incoming_path(dir, shard);
        if !disk.exists(&path).map_err(OpenError::io("look for", &path))? {
            let reason = format!("the rows of shard {shard} have not arrived");
            return Err(OpenError::Mixed { dir: dir.to_owned(), reason });
        }
    }
    if note.len() > NOTE_BYTES_MAX {
        let source = io::ErrorKind::FileTooLarge.into();
        return Err(OpenError::io("write", &path(dir))(source));
    }
    layout::replace(disk, dir, UNFINISHED, NAME, &text(manifest, note))
}

/// Finishes a committed installation: gives the stores their names, calls `match_log_to_rows` with the caller's note, and
/// removes `INSTALL`. `match_log_to_rows` makes everything else that depends on the rows agree with them, durably; after a
/// crash it is called again. Returns whether there was an installation. Without one, removes what an uncommitted one has
/// left.
pub fn finish<E: From<OpenError>>(
    disk: &dyn Disk,
    dir: &Path,
    manifest: Manifest,
    match_log_to_rows: impl FnOnce(&[u8]) -> Result<(), E>,
) -> Result<bool, E> {
    let note = load(disk, dir, manifest)?;
    // The previous process may have died after it created or removed INSTALL and before that was durable. A later
    // crash must not undo it when the stores have moved on.
    disk.sync_dir(dir).map_err(OpenError::io("sync", dir))?;
    let Some(note) = note else {
        clear(disk, dir, manifest)?;
        return Ok(false);
    };
    for shard in ShardId::all(manifest.shards) {
        let (from, to) = (layout::incoming_path(dir, shard), layout::store_path(dir, shard));
        let rename = || {
            // After a crash, some may have their names already.
            if disk.exists(&from)? {
                disk.rename(&from, &to)?;
            }
            disk.sync_dir(&layout::shard_dir(dir, shard))
        };
        rename().map_err(OpenError::io("install", &to))?;
    }
    match_log_to_rows(&note)?;
    let remove = || disk.remove(&path(dir)).and_then(|()| disk.sync_dir(dir));
    remove().map_err(OpenError::io("remove", &path(dir)))?;
    Ok(true)
}

/// Refuses a directory with a committed installation, and removes what an uncommitted one has left.
pub(crate) fn clear_unless_committed(
    disk: &dyn Disk,
    dir: &Path,
    manifest: Manifest,
) -> Result<(), OpenError> {
    match load(disk, dir, manifest)? {
        Some(_) => {
            let reason =
                "the rows of another node were being installed in it; nothing was changed: \
                          start it as a member of its cluster"
                    .to_owned();
            Err(OpenError::Mixed { dir: dir.to_owned(), reason })
        }
        None => clear(disk, dir, manifest),
    }
}

/// Removes rows that were not committed.
fn clear(disk: &dyn Disk, dir: &Path, manifest: Manifest) -> Result<(), OpenError> {
    let remove = |path: &Path| -> Result<(), OpenError> {
        if disk.exists(path).map_err(OpenError::io("look for", path))? {
            disk.remove(path).map_err(OpenError::io("remove", path))?;
        }
        Ok(())
    };
    remove(&dir.join(UNFINISHED))?;
    for shard in ShardId::all(manifest.shards) {
        let incoming = layout::incoming_path(dir, shard);
        remove(&incoming)?;
        remove(&codeq_store::unfinished_path(&incoming))?;
    }
    Ok(())
}

/// The note of a committed installation, if there is one.
fn load(disk: &dyn Disk, dir: &Path, manifest: Manifest) -> Result<Option<Vec<u8>>, OpenError> {
    let path = path(dir);
    if !disk.exists(&path).map_err(OpenError::io("look for", &path))? {
        return Ok(None);
    }
    let damaged = || manifest.mixed(dir, "its file INSTALL is damaged");
    let file = match layout::read(disk, &path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(damaged()),
        read => read.map_err(OpenError::io("read", &path))?,
    };
    let field =
        |name: &str| file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let found = field("codeq-install").and_then(|text| text.parse().ok()).unwrap_or(0);
    if found > FORMAT {
        return Err(OpenError::TooNew { dir: dir.to_owned(), found, supported: FORMAT });
    }
    let note = field("note").and_then(from_hex);
    // Byte for byte what would be written: there is only one way to write it.
    note.filter(|note| text(manifest, note) == file).map(Some).ok_or_else(damaged)
}

fn text(manifest: Manifest, note: &[u8]) -> String {
    let Manifest { shards, log_id, .. } = manifest;
    let mut text = format!("codeq-install: {FORMAT}\nshards: {shards}\nlog-id: {log_id}\nnote: ");
    for byte in note {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    let sum = crc32c::crc32c(text.as_bytes());
    let _ = writeln!(text, "checksum: {sum:08x}");
    text
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
