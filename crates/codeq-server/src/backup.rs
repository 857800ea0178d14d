//! Online backups: one at a time, to the configured target.
//!
//! The engine writes and verifies a backup in a directory. A backup for a bucket is first written
//! to the data directory, then uploaded. Its MANIFEST goes last, after every other object has been
//! read back, so a backup without a MANIFEST is incomplete, in a bucket as in a directory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use codeq_engine::Engine;
use codeq_engine::backup::Backup;
use futures_util::StreamExt;
use object_store::path::Path as Key;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, oneshot};

use crate::artifacts::store::{Store, generic};
use crate::config::Config;

/// Its presence marks a backup as complete.
const MANIFEST: &str = "MANIFEST";
/// Staging directory for bucket uploads, inside the data directory.
const STAGING: &str = "backup.tmp";
/// Part size of uploads: a bucket allows 10,000 parts, so 160 GB per shard.
const PART_BYTES: usize = 16 << 20;
/// Nice value of the backup thread.
const NICE: i32 = 10;

/// Makes backups, one at a time.
pub struct Backups {
    target: RwLock<Option<String>>,
    staging: PathBuf,
    running: Arc<Mutex<()>>,
}

/// A completed backup and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedBackup {
    /// Directory or URL, as `codeq restore` takes it.
    pub location: String,
    /// Content summary.
    pub backup: Backup,
    /// Time taken.
    pub took: Duration,
}

/// Why a backup was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// `backup.target` is not set.
    #[error(
        "no place for backups is configured: set backup.target to file:///directory, s3://bucket/prefix, \
         gs://bucket/prefix or az://container/prefix, and reload the configuration"
    )]
    NotConfigured,
    /// Another backup is in progress.
    #[error("a backup is already running: wait until it is complete")]
    Running,
    /// The backup failed; partial data is removed as far as possible.
    #[error("{0}")]
    Failed(String),
}

/// A parsed `backup.target`.
enum Target {
    Directory(PathBuf),
    Bucket(Store),
}

impl Target {
    fn open(url: &str) -> Result<Target, String> {
        let parsed = url::Url::parse(url).map_err(|error| error.to_string())?;
        if parsed.scheme() != "file" {
            return Ok(Target::Bucket(Store::at(url, true)?));
        }
        let dir = parsed.to_file_path().map_err(|()| "not a directory on this machine")?;
        Ok(Target::Directory(dir))
    }
}

/// Checks a backup target without I/O.
pub fn check_target(url: &str) -> Result<(), String> {
    Target::open(url).map(drop)
}

impl Backups {
    /// Uses the target and data directory of the configuration.
    pub fn new(config: &Config) -> Backups {
        Backups {
            target: RwLock::new(config.backup.target.clone()),
            staging: config.data_dir.join(STAGING),
            running: Arc::default(),
        }
    }

    /// Changes the target for later backups.
    pub fn set_target(&self, target: Option<String>) {
        *self.target.write() = target;
    }

    /// Makes a backup under a new name. Continues if the caller disconnects; the log records the outcome.
    pub async fn make(&self, engine: &Arc<Engine>) -> Result<FinishedBackup, BackupError> {
        let url = self.target.read().clone().ok_or(BackupError::NotConfigured)?;
        let running = Arc::clone(&self.running).try_lock_owned();
        let running = running.map_err(|_| BackupError::Running)?;
        let (engine, staging) = (Arc::clone(engine), self.staging.clone());
        let (runtime, (done, made)) = (Handle::current(), oneshot::channel());
        // A dedicated thread, because a lowered priority cannot be raised again.
        let thread = std::thread::Builder::new().name("codeq-backup".to_owned());
        let spawned = thread.spawn(move || {
            // If refused, the backup runs at normal priority.
            let _ = rustix::process::nice(NICE);
            let start = Instant::now();
            let outcome = make(&url, &engine, &staging, &runtime);
            let outcome = outcome.map(|(location, backup)| {
                let took = start.elapsed();
                FinishedBackup { location, backup, took }
            });
            drop((engine, running));
            log(&outcome);
            // The caller may have disconnected.
            let _ = done.send(outcome);
        });
        spawned.map_err(|error| {
            BackupError::Failed(format!("cannot start the backup thread: {error}"))
        })?;
        let lost = || {
            BackupError::Failed("the backup thread ended without a result; see the log".to_owned())
        };
        made.await.map_err(|_| lost())?.map_err(BackupError::Failed)
    }
}

fn log(outcome: &Result<FinishedBackup, String>) {
    match outcome {
        Ok(FinishedBackup { location, backup, took }) => tracing::info!(
            target: "codeq::backup",
            location,
            bytes = backup.bytes,
            tasks = backup.tasks,
            took_ms = took.as_millis() as u64,
            "backup made and verified"
        ),
        Err(why) => tracing::error!(target: "codeq::backup", why, "backup failed"),
    }
}

/// A unique name that sorts by time.
fn new_name() -> String {
    jiff::Timestamp::now().strftime("codeq-%Y%m%dT%H%M%S.%3fZ").to_string()
}

fn make(
    url: &str,
    engine: &Engine,
    staging: &Path,
    runtime: &Handle,
) -> Result<(String, Backup), String> {
    let name = new_name();
    match Target::open(url)? {
        Target::Directory(dir) => {
            let dir = dir.join(&name);
            Ok((dir.display().to_string(), write(engine, &dir)?))
        }
        Target::Bucket(store) => {
            remove(staging)?;
            let made = write(engine, staging).and_then(|backup| {
                runtime.block_on(upload(&store, staging, &name))?;
                Ok(backup)
            });
            // The next backup removes the directory if this fails.
            let _ = remove(staging);
            Ok((format!("{}/{name}", url.trim_end_matches('/')), made?))
        }
    }
}

/// Writes a backup to a directory, removing it on failure.
fn write(engine: &Engine, dir: &Path) -> Result<Backup, String> {
    if dir.try_exists().map_err(|error| format!("{}: {error}", dir.display()))? {
        return Err(format!("{} exists already", dir.display()));
    }
    engine.backup(dir).map_err(|error| {
        let _ = remove(dir);
        error.to_string()
    })
}

fn remove(dir: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Uploads a backup, removing what it can on failure.
async fn upload(store: &Store, dir: &Path, name: &str) -> Result<(), String> {
    let files = files(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut sent = Vec::new();
    for file in &files {
        let key = Key::from(format!("{name}/{file}"));
        sent.push(key.clone());
        if let Err(error) = copy(store, &dir.join(file), &key).await {
            if let Ok(mut removed) = store.delete(sent).await {
                while removed.next().await.is_some() {}
            }
            return Err(format!("cannot upload {key}: {error}"));
        }
    }
    Ok(())
}

/// Relative paths of a backup's files, MANIFEST last.
fn files(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !entry.file_type()?.is_dir() {
            files.push(name);
            continue;
        }
        for inner in std::fs::read_dir(entry.path())? {
            files.push(format!("{name}/{}", inner?.file_name().to_string_lossy()));
        }
    }
    files.sort_by_key(|file| (file == MANIFEST, file.clone()));
    Ok(files)
}

/// Uploads a file and verifies it by reading it back.
async fn copy(store: &Store, path: &Path, key: &Key) -> Result<(), String> {
    let text = |error: object_store::Error| error.to_string();
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let mut digest = Sha256::new();
    let next = || read_part(&mut file, &mut digest).map_err(generic);
    store.put(key, PART_BYTES, next).await.map_err(text)?;
    let Some((_, mut body)) = store.get(key).await.map_err(text)? else {
        return Err("the object is missing after the upload".to_owned());
    };
    let mut found = Sha256::new();
    while let Some(piece) = body.next().await {
        found.update(&piece.map_err(text)?);
    }
    if found.finalize() != digest.finalize() {
        return Err("the uploaded object differs from the file".to_owned());
    }
    Ok(())
}

/// Reads the next part of a file; empty at the end. Blocks on the disk, so call it on the backup thread only.
fn read_part(file: &mut File, digest: &mut Sha256) -> std::io::Result<Bytes> {
    let mut part = Vec::with_capacity(PART_BYTES);
    file.by_ref().take(PART_BYTES as u64).read_to_end(&mut part)?;
    digest.update(&part);
    Ok(part.into())
}

/// Downloads a backup from a bucket into an empty or missing directory. `url` is the backup's own
/// URL. Restoring verifies the files.
pub async fn download(url: &str, dir: &Path) -> Result<(), String> {
    let store = Store::at(url, false)?;
    let text = |error: object_store::Error| error.to_string();
    let mut listed = store.list().await.map_err(text)?;
    let mut keys = Vec::new();
    while let Some(object) = listed.next().await {
        keys.push(object.map_err(text)?.location);
    }
    if !keys.iter().any(|key| key.as_ref() == MANIFEST) {
        return Err(format!(
            "{url} is not a complete backup: it has no MANIFEST; give the address of one backup, as the server \
             returned it"
        ));
    }
    for key in keys {
        fetch(&store, &key, dir)
            .await
            .map_err(|error| format!("cannot download {key}: {error}"))?;
    }
    Ok(())
}

async fn fetch(store: &Store, key: &Key, dir: &Path) -> Result<(), String> {
    let parts: Vec<_> = key.parts().collect();
    let name = |part: &object_store::path::PathPart<'_>| part.as_ref().to_owned();
    let path = parts.iter().fold(dir.to_owned(), |path, part| path.join(name(part)));
    let io = |error: std::io::Error| error.to_string();
    if let Some(parent) = path.parent() {
        codeq_disk::private_dir(parent).map_err(io)?;
    }
    let text = |error: object_store::Error| error.to_string();
    let Some((_, mut body)) = store.get(key).await.map_err(text)? else {
        return Err("the object no longer exists".to_owned());
    };
    let mut file = File::create_new(&path).map_err(io)?;
    while let Some(piece) = body.next().await {
        std::io::Write::write_all(&mut file, &piece.map_err(text)?).map_err(io)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use codeq_engine::Options;

    use super::*;

    #[tokio::test]
    async fn one_backup_runs_at_a_time_and_none_without_a_target() {
        let base = tempfile::tempdir().unwrap();
        let config = Config { data_dir: base.path().join("data"), ..Config::default() };
        let engine = Engine::open(&config.data_dir, Options::default()).unwrap();
        let (engine, backups) = (Arc::new(engine), Backups::new(&config));
        assert_eq!(backups.make(&engine).await, Err(BackupError::NotConfigured));
        let target = base.path().join("not yet/there");
        backups.set_target(Some(url::Url::from_file_path(&target).unwrap().to_string()));
        let running = Arc::clone(&backups.running).lock_owned().await;
        assert_eq!(backups.make(&engine).await, Err(BackupError::Running));
        assert!(!target.exists());
        drop(running);
        let made = backups.make(&engine).await.unwrap();
        let names: Vec<_> = std::fs::read_dir(&target).unwrap().flatten().collect();
        assert_eq!(names.len(), 1);
        assert_eq!(made.location, names[0].path().display().to_string());
        assert_eq!((made.backup.tasks, made.backup.shards), (0, 1));
    }

    #[tokio::test]
    async fn a_failed_backup_leaves_nothing_and_reports_why() {
        let base = tempfile::tempdir().unwrap();
        let data_dir = base.path().join("data");
        let taken = base.path().join("file");
        std::fs::write(&taken, "mine").unwrap();
        let engine = Arc::new(Engine::open(&data_dir, Options::default()).unwrap());
        let backups = Backups::new(&Config { data_dir, ..Config::default() });
        backups.set_target(Some(format!("file://{}", taken.display())));
        let failed = backups.make(&engine).await.unwrap_err();
        assert!(failed.to_string().contains(taken.to_str().unwrap()), "{failed}");
        engine.shutdown();
        let target = base.path().join("to");
        backups.set_target(Some(format!("file://{}", target.display())));
        assert!(matches!(backups.make(&engine).await, Err(BackupError::Failed(_))));
        let left = std::fs::read_dir(&target).map_or(0, |entries| entries.count());
        assert_eq!(left, 0);
    }
}
