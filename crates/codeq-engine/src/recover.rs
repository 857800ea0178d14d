//! Opening a data directory: make it if it is new, else bring every shard up to the end of the log.

use std::path::Path;

use codeq_core::codec::read_group;
use codeq_core::state::State;
use codeq_disk::{Disk, SharedDisk};
use codeq_log::{Log, LogError, NewLog};
use codeq_store::{Store, StoreError};

use crate::error::OpenError;
use crate::layout::{self, Manifest};
use crate::options::{Options, SHARDS_MAX};
use crate::shard::Shard;

/// A data directory, recovered and ready.
pub struct Node {
    /// The log.
    pub log: Log,
    /// The shards, by number.
    pub shards: Vec<Shard>,
    /// What the directory is.
    pub manifest: Manifest,
}

impl Node {
    /// Opens the directory, or makes it if it is empty or missing. `log_id` is a random number for a new log.
    pub fn open(
        disk: &SharedDisk,
        dir: &Path,
        options: &Options,
        log_id: u64,
    ) -> Result<Node, OpenError> {
        let manifest = match Manifest::load(&**disk, dir)? {
            Some(manifest) => manifest,
            None => create(disk, dir, options, log_id)?,
        };
        if let Some(wanted) = options.shards
            && wanted != manifest.shards
        {
            let (dir, found) = (dir.to_owned(), manifest.shards);
            return Err(OpenError::Shards { dir, found, wanted });
        }
        let log = Log::open(disk.clone(), &layout::log_dir(dir), options.log())?;
        let mut loaded = Vec::new();
        for shard in 0..manifest.shards {
            let path = layout::store_path(dir, shard);
            let mut store = Store::open(disk.clone(), &path, options.store.clone())?;
            let mut state = State::load(&store, shard, manifest.shards)?;
            state.upgrade(&mut store)?;
            loaded.push((state, store));
        }
        replay(&log, &mut loaded, options)?;
        let shards = (0..).zip(loaded);
        let shards = shards.map(|(number, (state, store))| Shard::new(number, state, store));
        Ok(Node { log, shards: shards.collect(), manifest })
    }
}

fn create(
    disk: &SharedDisk,
    dir: &Path,
    options: &Options,
    log_id: u64,
) -> Result<Manifest, OpenError> {
    let shards = options.shards.unwrap_or(1);
    if !(1..=SHARDS_MAX).contains(&shards) {
        let reason = format!("{shards} shards asked for, 1 to {SHARDS_MAX} are possible");
        return Err(OpenError::Foreign { dir: dir.to_owned(), reason });
    }
    disk.create_dir_all(dir).map_err(OpenError::io("create", dir))?;
    clear_interrupted(&**disk, dir)?;
    for shard in 0..shards {
        let path = layout::shard_dir(dir, shard);
        disk.create_dir_all(&path).map_err(OpenError::io("create", &path))?;
        let store =
            Store::create(disk.clone(), &layout::store_path(dir, shard), options.store.clone())?;
        drop(store);
        disk.sync_dir(&path).map_err(OpenError::io("sync", &path))?;
    }
    let new = NewLog { first_index: 1, log_id };
    drop(Log::create(disk.clone(), &layout::log_dir(dir), options.log(), new)?);
    disk.sync_dir(dir).map_err(OpenError::io("sync", dir))?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.sync_dir(parent).map_err(OpenError::io("sync", parent))?;
    }
    let manifest = Manifest { shards, log_id };
    manifest.save(&**disk, dir)?;
    Ok(manifest)
}

/// A directory without a manifest is either somebody else's, or what an interrupted creation left. The
/// latter holds an empty log at most and is cleared; anything else is left alone.
fn clear_interrupted(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    let foreign =
        |reason: &str| OpenError::Foreign { dir: dir.to_owned(), reason: reason.to_owned() };
    let names = disk.list(dir).map_err(OpenError::io("list", dir))?;
    for name in &names {
        let ours = matches!(&**name, "LOCK" | "log" | "MANIFEST.new") || name.starts_with("shard-");
        // Some filesystems put this into their root.
        if !ours && name != "lost+found" {
            return Err(foreign(&format!("it holds '{name}'; choose an empty directory")));
        }
    }
    let log = layout::log_dir(dir);
    if names.iter().any(|name| name == "log") {
        match codeq_log::verify(disk, &log) {
            Ok(report) if report.last_index >= report.first_index => {
                return Err(foreign(
                    "its MANIFEST is missing but its log is not empty: restore it",
                ));
            }
            _ => {}
        }
    }
    for name in names.iter().filter(|name| *name == "log" || name.starts_with("shard-")) {
        let sub = dir.join(name);
        for file in disk.list(&sub).map_err(OpenError::io("list", &sub))? {
            let file = sub.join(file);
            disk.remove(&file).map_err(OpenError::io("remove", &file))?;
        }
        disk.sync_dir(&sub).map_err(OpenError::io("sync", &sub))?;
    }
    Ok(())
}

/// Applies what the log holds beyond each shard's checkpoint.
fn replay(log: &Log, shards: &mut [(State, Store)], options: &Options) -> Result<(), OpenError> {
    let Some(from) = shards.iter().map(|(_, store)| store.position()).min() else {
        return Ok(());
    };
    for (_, store) in shards.iter() {
        if store.position() > log.last_index() {
            let (from, last) = (store.position(), log.last_index());
            return Err(LogError::BeyondEnd { from, last }.into());
        }
    }
    let mut effects = Vec::new();
    let mut reached = 0;
    log.replay(from.saturating_add(1), |index, number, bytes| {
        if index != reached {
            reached = index;
            checkpoint_full(shards, index.saturating_sub(1), options)?;
        }
        let Some((state, store)) = shards.get_mut(usize::from(number)) else {
            let reason = format!("its log names shard {number}, which it does not have");
            return Err(OpenError::Foreign { dir: Default::default(), reason });
        };
        if index <= store.position() {
            return Ok(());
        }
        let (now, commands) = read_group(bytes).map_err(|source| OpenError::Record {
            index,
            shard: number,
            source,
        })?;
        effects.clear();
        for command in &commands {
            state.apply(store, now, command, &mut effects)?;
        }
        if let Some(observer) = &options.observer.0 {
            observer.recovered(number, &effects);
        }
        Ok(())
    })
}

/// Writes out memtables that a long replay has filled. `done` is the last frame applied in full.
fn checkpoint_full(
    shards: &mut [(State, Store)],
    done: u64,
    options: &Options,
) -> Result<(), OpenError> {
    for (state, store) in shards {
        if store.active_bytes() < options.memtable_bytes.saturating_mul(2) {
            continue;
        }
        state.write_back(store);
        if let Some(job) = store.freeze(done) {
            match store.flushed(&mut job.run()) {
                // A full disk is no reason not to start: reads work, and so will writes later.
                Ok(()) | Err(StoreError::Full { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
