//! Directories: which name refers to which file, now and after a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::rng::{mix, text_hash};

#[derive(Debug, Clone)]
enum Change {
    Dir(PathBuf),
    Create(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl Change {
    /// The directories whose sync makes the change durable.
    fn dirs(&self) -> [&Path; 2] {
        match self {
            Change::Dir(path) | Change::Create(path, _) | Change::Remove(path) => {
                [parent_of(path), parent_of(path)]
            }
            Change::Rename(from, to) => [parent_of(from), parent_of(to)],
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Tree {
    dirs: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, u64>,
}

impl Tree {
    /// Applies a change, if its preconditions hold.
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Dir(path) => {
                self.dirs.insert(path.clone());
            }
            Change::Create(path, file) => {
                self.files.insert(path.clone(), *file);
            }
            Change::Rename(from, to) => {
                if let Some(file) = self.files.remove(from) {
                    self.files.insert(to.clone(), file);
                }
            }
            Change::Remove(path) => {
                self.files.remove(path);
            }
        }
    }

    fn has_dir(&self, path: &Path) -> bool {
        is_root(path) || self.dirs.contains(path)
    }

    /// Removes files whose directory did not survive.
    fn prune(&mut self) {
        let dirs = self.dirs.clone();
        let reachable =
            |path: &Path| path.ancestors().skip(1).all(|dir| is_root(dir) || dirs.contains(dir));
        self.dirs.retain(|dir| reachable(dir));
        self.files.retain(|file, _| reachable(file));
    }
}

#[derive(Debug, Default)]
pub(super) struct Names {
    now: Tree,
    durable: Tree,
    /// Unsynced changes, in order.
    pending: Vec<Change>,
}

fn is_root(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.parent().is_none()
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

impl Names {
    pub(super) fn file(&self, path: &Path) -> Option<u64> {
        self.now.files.get(path).copied()
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.now.files.iter().map(|(path, file)| (path.as_path(), *file))
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.now.files.contains_key(path) || self.now.has_dir(path)
    }

    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        if !self.now.has_dir(dir) {
            return Err(super::not_found(dir));
        }
        let inside = |path: &&PathBuf| parent_of(path) == dir && !is_root(path);
        let paths = self.now.files.keys().chain(&self.now.dirs).filter(inside);
        let mut names: Vec<String> = paths
            .filter_map(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    pub(super) fn create(&mut self, path: &Path, file: u64) -> io::Result<()> {
        if self.exists(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if !self.now.has_dir(parent_of(path)) {
            return Err(super::not_found(path));
        }
        self.change(Change::Create(path.to_owned(), file));
        Ok(())
    }

    pub(super) fn create_dir_all(&mut self, dir: &Path) {
        let mut missing: Vec<&Path> =
            dir.ancestors().filter(|dir| !self.now.has_dir(dir)).collect();
        missing.reverse();
        let missing: Vec<PathBuf> = missing.into_iter().map(Path::to_owned).collect();
        missing.into_iter().for_each(|dir| self.change(Change::Dir(dir)));
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if self.file(from).is_none() || !self.now.has_dir(parent_of(to)) {
            return Err(super::not_found(from));
        }
        self.change(Change::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        if self.file(path).is_none() {
            return Err(super::not_found(path));
        }
        self.change(Change::Remove(path.to_owned()));
        Ok(())
    }

    fn change(&mut self, change: Change) {
        self.now.apply(&change);
        self.pending.push(change);
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        let dir = if dir == Path::new(".") { Path::new("") } else { dir };
        if !self.now.has_dir(dir) {
            return Err(super::not_found(dir));
        }
        let (done, left) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|change: &Change| change.dirs().contains(&dir));
        self.pending = left;
        done.iter().for_each(|change| self.durable.apply(change));
        Ok(())
    }

    /// The names without any unsynced change.
    pub(super) fn durable(&self) -> Names {
        let mut durable = self.durable.clone();
        durable.prune();
        Names { now: durable.clone(), durable, pending: Vec::new() }
    }

    /// Whether no unsynced change concerns any of these paths.
    pub(super) fn is_synced(&self, matters: impl Fn(&Path) -> bool) -> bool {
        !self.pending.iter().any(|change| match change {
            Change::Dir(path) | Change::Create(path, _) | Change::Remove(path) => matters(path),
            Change::Rename(from, to) => matters(from) || matters(to),
        })
    }

    /// Each unsynced change survives or gets lost. Half of the crashes keep the order, like a journaling file system:
    /// what survives is a prefix. In the other half, changes survive independently.
    pub(super) fn power_cut(&mut self, salt: u64) {
        let salt = mix(&[salt, text_hash("names")]);
        let pending = std::mem::take(&mut self.pending);
        let ordered = salt & 1 == 0;
        let kept = (salt >> 8) % (pending.len() as u64 + 1);
        for (number, change) in (0..).zip(&pending) {
            let survives = match ordered {
                true => number < kept,
                false => mix(&[salt, number]) & 1 == 0,
            };
            if survives {
                self.durable.apply(change);
            }
        }
        self.durable.prune();
        self.now = self.durable.clone();
    }
}
