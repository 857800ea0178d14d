//! Opens a data directory: creates it if it is new, otherwise brings every shard up to the end of the log.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use codeq_core::id::ShardId;
use codeq_core::kv::KvError;
use codeq_core::state::State;
use codeq_disk::{Disk, SharedDisk};
use codeq_log::{FrameIndex, Log, LogError, NewLog};
use codeq_store::{Store, StoreError};

use crate::error::{DirectoryOperation, OpenError};
use crate::incomplete;
use crate::install;
use crate::layout::{self, FORMAT, Manifest};
use crate::options::{Options, SHARDS_MAX};
use crate::shard::Shard;

/// A data directory, recovered and ready.
pub struct OpenedDir {
    /// The log.
    pub log: Log,
    /// The shards, by number.
    pub shards: Vec<Shard>,
    /// Describes the directory.
    pub manifest: Manifest,
    /// Damaged stores that were rebuilt from the log: what was found and done, one sentence each.
    pub rebuilt: Vec<String>,
    /// Whether every row of the stores was verified.
    pub verified: bool,
}

impl OpenedDir {
    /// Opens the directory, or creates it if it is empty or missing. `log_id` is a random number for a new log.
    pub fn open(
        disk: &SharedDisk,
        dir: &Path,
        options: &Options,
        log_id: u64,
    ) -> Result<OpenedDir, OpenError> {
        let manifest = match Manifest::load(&**disk, dir)? {
            Some(manifest) => manifest,
            None => create(disk, dir, options, log_id)?,
        };
        check_shard_count(dir, options, manifest)?;
        layout::refuse_member(&**disk, dir)?;
        manifest.check_shards(&**disk, dir)?;
        manifest.check_log(&**disk, dir)?;
        install::clear_unless_committed(&**disk, dir, manifest)?;
        let log = Log::open(disk.clone(), &layout::log_dir(dir), options.log())?;
        let verify = store_bytes(&**disk, dir, manifest)? <= options.verify_bytes_max;
        let mut shards = Vec::new();
        let mut rebuilt = Vec::new();
        for shard in ShardId::all(manifest.shards) {
            let location = StoreLocation { disk, dir, shard, manifest, options };
            let (state, store) = match location.open(verify) {
                // Nothing was ever purged: the rows can be rebuilt from the log alone.
                Err(error) if is_damage(&error) && log.first_index() == FrameIndex(1) => {
                    rebuilt.push(location.set_aside(&error)?);
                    location.create()?
                }
                opened => opened?,
            };
            shards.push(Shard::new(shard, state, store));
        }
        replay(&log, &mut shards, options)?;
        if manifest.format < FORMAT {
            manifest.save(&**disk, dir)?;
        }
        incomplete::end(&**disk, dir)?;
        Ok(OpenedDir { log, shards, manifest, rebuilt, verified: verify })
    }
}

fn check_shard_count(dir: &Path, options: &Options, manifest: Manifest) -> Result<(), OpenError> {
    let found = manifest.shards;
    match options.shards {
        Some(wanted) if wanted != found => {
            Err(OpenError::Shards { dir: dir.to_owned(), found, wanted })
        }
        _ => Ok(()),
    }
}

/// Describes the directory of a member of a cluster.
pub fn manifest_of_member(
    disk: &dyn Disk,
    dir: &Path,
    options: &Options,
) -> Result<Manifest, OpenError> {
    let Some(manifest) = Manifest::load(disk, dir)? else {
        let reason = "it does not belong to a member of a cluster".to_owned();
        let foreign = OpenError::Foreign { dir: dir.to_owned(), reason };
        return Err(incomplete::refusal(disk, dir)?.unwrap_or(foreign));
    };
    check_shard_count(dir, options, manifest)?;
    Ok(manifest)
}

/// The shards of a member of a cluster, as of their last checkpoints. The caller applies what the cluster has committed
/// since.
pub fn open_shards(
    disk: &SharedDisk,
    dir: &Path,
    options: &Options,
    manifest: Manifest,
) -> Result<Vec<Shard>, OpenError> {
    manifest.check_shards(&**disk, dir)?;
    manifest.check_log(&**disk, dir)?;
    let verify = store_bytes(&**disk, dir, manifest)? <= options.verify_bytes_max;
    let open = |shard| {
        let (state, store) = StoreLocation { disk, dir, shard, manifest, options }.open(verify)?;
        Ok(Shard::new(shard, state, store))
    };
    ShardId::all(manifest.shards).map(open).collect()
}

/// Creates the directory of a member of a cluster; `make_log` creates its log. Like the directory of a single node, it
/// counts only once it is complete.
pub fn create_member<E: From<OpenError>>(
    disk: &SharedDisk,
    dir: &Path,
    options: &Options,
    log_id: u64,
    make_log: impl FnOnce(Manifest) -> Result<(), E>,
) -> Result<Manifest, E> {
    let manifest = create_stores(disk, dir, options, log_id)?;
    make_log(manifest)?;
    disk.sync_dir(dir).map_err(OpenError::io("sync", dir))?;
    manifest.save(&**disk, dir)?;
    incomplete::end(&**disk, dir)?;
    Ok(manifest)
}

/// Total size of the stores in bytes.
fn store_bytes(disk: &dyn Disk, dir: &Path, manifest: Manifest) -> Result<u64, OpenError> {
    let mut bytes = 0_u64;
    for shard in ShardId::all(manifest.shards) {
        let path = layout::store_path(dir, shard);
        // Opening reports a missing store.
        if disk.exists(&path).map_err(OpenError::io("look for", &path))? {
            let len = disk.open(&path).and_then(|file| file.len());
            bytes = bytes.saturating_add(len.map_err(OpenError::io("measure", &path))?);
        }
    }
    Ok(bytes)
}

/// Whether a store is lost or does not verify, as opposed to unreachable, too new or belonging elsewhere.
fn is_damage(error: &OpenError) -> bool {
    match error {
        OpenError::Store(StoreError::Corrupt { .. }) => true,
        OpenError::Rows(KvError::Corrupt { .. } | KvError::Damaged { .. }) => true,
        OpenError::Store(StoreError::Io { source, .. }) => source.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

/// Where a shard's rows are.
struct StoreLocation<'a> {
    disk: &'a SharedDisk,
    dir: &'a Path,
    shard: ShardId,
    manifest: Manifest,
    options: &'a Options,
}

impl StoreLocation<'_> {
    fn path(&self) -> PathBuf {
        layout::store_path(self.dir, self.shard)
    }

    fn options(&self) -> codeq_store::Options {
        let owner = Some(self.manifest.owner(self.shard));
        codeq_store::Options { owner, ..self.options.store.clone() }
    }

    fn load(&self, mut store: Store) -> Result<(State, Store), OpenError> {
        let mut state = State::load(&store, self.shard, self.manifest.shards)?;
        state.upgrade(&mut store)?;
        Ok((state, store))
    }

    fn open(&self, verify: bool) -> Result<(State, Store), OpenError> {
        if verify {
            codeq_store::check(self.disk, &self.path())?;
        }
        self.load(Store::open(self.disk.clone(), &self.path(), self.options())?)
    }

    /// Creates an empty store in a new directory.
    fn create(&self) -> Result<(State, Store), OpenError> {
        let dir = layout::shard_dir(self.dir, self.shard);
        self.disk.create_dir_all(&dir).map_err(OpenError::io("create", &dir))?;
        let store = Store::create(self.disk.clone(), &self.path(), self.options())?;
        self.disk.sync_dir(&dir).map_err(OpenError::io("sync", &dir))?;
        self.load(store)
    }

    /// Moves a damaged store out of the way. Returns what was done, for the operator.
    fn set_aside(&self, damage: &OpenError) -> Result<String, OpenError> {
        let path = self.path();
        let exists = |path: &Path| self.disk.exists(path).map_err(OpenError::io("look for", path));
        if !exists(&path)? {
            return Ok(format!(
                "store {} is missing; its rows were rebuilt from the log",
                path.display()
            ));
        }
        let reason = match damage {
            OpenError::Store(StoreError::Corrupt { reason, .. })
            | OpenError::Rows(KvError::Damaged { reason, .. }) => reason.clone(),
            other => other.to_string(),
        };
        let found = format!("store {} is damaged ({reason})", path.display());
        for number in 1..=ASIDE_MAX {
            let aside = path.with_extension(format!("damaged-{number}"));
            if exists(&aside)? {
                continue;
            }
            let dir = layout::shard_dir(self.dir, self.shard);
            let moved = self.disk.rename(&path, &aside).and_then(|()| self.disk.sync_dir(&dir));
            moved.map_err(OpenError::io("move", &path))?;
            let aside = aside.display();
            return Ok(format!(
                "{found}; its rows were rebuilt from the log, and the damaged file is now {aside}"
            ));
        }
        let reason = format!(
            "{found}; {ASIDE_MAX} damaged stores are already kept next to it: check the disk, then delete them"
        );
        Err(OpenError::Foreign { dir: self.dir.to_owned(), reason })
    }
}

/// Maximum number of damaged stores kept next to a rebuilt one.
const ASIDE_MAX: u32 = 8;

fn create(
    disk: &SharedDisk,
    dir: &Path,
    options: &Options,
    log_id: u64,
) -> Result<Manifest, OpenError> {
    let manifest = create_stores(disk, dir, options, log_id)?;
    let new = NewLog { first_index: FrameIndex(1), log_id };
    drop(Log::create(disk.clone(), &layout::log_dir(dir), options.log(), new)?);
    disk.sync_dir(dir).map_err(OpenError::io("sync", dir))?;
    manifest.save(&**disk, dir)?;
    Ok(manifest)
}

/// Creates the stores of a new directory, marked as incomplete.
fn create_stores(
    disk: &SharedDisk,
    dir: &Path,
    options: &Options,
    log_id: u64,
) -> Result<Manifest, OpenError> {
    let shards = options.shards.unwrap_or(1);
    if !(1..=SHARDS_MAX).contains(&shards) {
        let reason = format!("{shards} shards were requested, but 1 to {SHARDS_MAX} are possible");
        return Err(OpenError::Foreign { dir: dir.to_owned(), reason });
    }
    match incomplete::refusal(&**disk, dir)? {
        None => incomplete::begin(&**disk, dir, DirectoryOperation::Creation)?,
        // The interrupted creation never answered anybody: start over.
        Some(OpenError::Unfinished { operation: DirectoryOperation::Creation, .. }) => {
            incomplete::clear(&**disk, dir)?
        }
        Some(refusal) => return Err(refusal),
    }
    let manifest = Manifest::new(shards, log_id);
    for shard in ShardId::all(shards) {
        drop(StoreLocation { disk, dir, shard, manifest, options }.create()?);
    }
    Ok(manifest)
}

/// Applies the commands of the log that each shard's checkpoint does not include.
fn replay(log: &Log, shards: &mut [Shard], options: &Options) -> Result<(), OpenError> {
    let position = |shard: &Shard| FrameIndex(shard.data().read().store.position());
    let Some(from) = shards.iter().map(position).min() else {
        return Ok(());
    };
    let last = log.last_index();
    if let Some(from) = shards.iter().map(position).find(|from| *from > last) {
        return Err(LogError::BeyondEnd { from, last }.into());
    }
    let mut reached = FrameIndex(0);
    log.replay(from.next(), |frame, number, record| {
        let (index, number) = (frame.index, ShardId(number));
        if index != reached {
            reached = index;
            checkpoint_full(shards, index.previous(), options)?;
        }
        let Some(shard) = shards.get_mut(usize::from(number)) else {
            return Err(OpenError::UnknownShard { index: index.0, shard: number });
        };
        let effects = shard.replay(index, record)?;
        if let Some(observer) = &options.observer.0 {
            observer.recovered(number, effects);
        }
        Ok(())
    })
}

/// Writes memtables that a long replay has filled. `done` is the last frame applied completely.
fn checkpoint_full(
    shards: &mut [Shard],
    done: FrameIndex,
    options: &Options,
) -> Result<(), OpenError> {
    let is_full = |shard: &Shard| {
        let store = &shard.data().read().store;
        // A checkpoint that failed is not repeated here: the next one would most likely fail too.
        store.active_bytes() >= options.memtable_bytes.saturating_mul(2)
            && store.frozen_bytes() == 0
    };
    for shard in shards.iter_mut().filter(|shard| is_full(shard)) {
        if let Some(job) = shard.freeze(done) {
            match shard.take_back(&mut job.run()) {
                Ok(()) => {}
                // Start even if the disk is full: reads work, and writes will once there is space.
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
