//! Finds and removes objects that no task's result references: left by a crash between upload and
//! submit, or by a store that was unavailable when their task was removed.
//!
//! Deliberately slow, holding at most one page in memory. Ignores keys this server did not create.

use std::path::Path as FilePath;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use codeq_core::id::TaskId;
use codeq_engine::Engine;
use futures_util::StreamExt;
use object_store::path::Path;

use super::Artifacts;
use super::address::parse_key;
use super::removal::stored;

/// Objects visited before a pause.
const PAGE: u64 = 1_000;
const PAUSE: Duration = Duration::from_secs(1);

/// The outcome of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Objects visited.
    pub looked_at: u64,
    /// Objects removed.
    pub removed: u64,
}

/// Visits every object once and removes those older than `older_than` that no result references.
pub async fn sweep(
    artifacts: &Artifacts,
    engine: &Engine,
    older_than: Duration,
) -> Result<Swept, String> {
    let said = |error: object_store::Error| error.to_string();
    let mut swept = Swept::default();
    let mut objects = artifacts.store.list().await.map_err(said)?;
    let mut page = Page::default();
    while let Some(object) = objects.next().await {
        let object = object.map_err(said)?;
        swept.looked_at += 1;
        let modified = u64::try_from(object.last_modified.timestamp()).unwrap_or_default();
        if let Some((id, upload, index)) = parse_key(&object.location)
            && is_older(UNIX_EPOCH + Duration::from_secs(modified), older_than)
            && !page.references(engine, id, (upload, index)).await?
        {
            page.left_over.push((id, object.location));
        }
        if swept.looked_at.is_multiple_of(PAGE) {
            swept.removed += page.clear(artifacts).await;
            tokio::time::sleep(PAUSE).await;
        }
    }
    swept.removed += page.clear(artifacts).await;
    if let Some(dir) = artifacts.store.dir().map(FilePath::to_owned) {
        let unfinished = move || sweep_unfinished(&dir, older_than);
        swept.removed += tokio::task::spawn_blocking(unfinished).await.unwrap_or_default();
    }
    Ok(swept)
}

#[derive(Default)]
struct Page {
    /// The last task looked up and the objects its result references: a task's objects are listed together.
    known: Option<(TaskId, Vec<(u128, usize)>)>,
    left_over: Vec<(TaskId, Path)>,
}

impl Page {
    /// Whether the task's result references this object.
    async fn references(
        &mut self,
        engine: &Engine,
        id: TaskId,
        object: (u128, usize),
    ) -> Result<bool, String> {
        if self.known.as_ref().is_none_or(|(known, _)| *known != id) {
            let shard = id.shard(engine.shards());
            let record = engine.read(shard, |reader| reader.artifacts(id)).await;
            let record = record.map_err(|error| error.to_string())?;
            self.known = Some((id, stored(id, &record.unwrap_or_default())));
        }
        Ok(self.known.as_ref().is_some_and(|(_, named)| named.contains(&object)))
    }

    async fn clear(&mut self, artifacts: &Artifacts) -> u64 {
        let mut removed = 0;
        let left_over = std::mem::take(&mut self.left_over);
        for of_task in left_over.chunk_by(|one, other| one.0 == other.0) {
            let Some((id, _)) = of_task.first() else { continue };
            let keys: Vec<Path> = of_task.iter().map(|(_, key)| key.clone()).collect();
            let count = keys.len() as u64;
            if artifacts.remove(*id, keys).await.is_ok() {
                removed += count;
            }
        }
        removed
    }
}

fn is_older(modified: SystemTime, than: Duration) -> bool {
    SystemTime::now().duration_since(modified).is_ok_and(|age| age >= than)
}

/// Removes unfinished files, which the store does not list, and empty directories.
fn sweep_unfinished(dir: &FilePath, older_than: Duration) -> u64 {
    let mut removed = 0;
    for task in entries(dir, |name| name.parse::<TaskId>().is_ok()) {
        for upload in entries(&task, |name| name.len() == 32) {
            for file in entries(&upload, |name| name.contains('#')) {
                if old(&file, older_than) && std::fs::remove_file(&file).is_ok() {
                    removed += 1;
                }
            }
            remove_empty(&upload, older_than);
        }
        remove_empty(&task, older_than);
    }
    removed
}

/// Removes a directory if it is empty, unless it is so young that it may be about to get a file.
fn remove_empty(dir: &FilePath, older_than: Duration) {
    if old(dir, older_than) {
        let _ = std::fs::remove_dir(dir);
    }
}

fn old(path: &FilePath, than: Duration) -> bool {
    let modified = std::fs::symlink_metadata(path).and_then(|about| about.modified());
    modified.is_ok_and(|modified| is_older(modified, than))
}

fn entries(
    dir: &FilePath,
    wanted: impl Fn(&str) -> bool,
) -> impl Iterator<Item = std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let named = move |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(&wanted);
    entries.filter(named).map(|entry| entry.path())
}
