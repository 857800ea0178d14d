//! The real files, opened read-only, with changes that stay in memory.
//!
//! Recovery writes: it cuts a torn tail, moves the watermark, recycles files. On this disk it can do all of that without
//! changing the directory, even on a read-only medium.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_disk::{Disk, DiskFile, RealDisk};
use parking_lot::{Mutex, RwLock};

const PAGE: usize = 4_096;

/// A disk whose changes are lost on drop.
#[derive(Default)]
pub struct ScratchDisk {
    names: Mutex<Names>,
}

/// The changes to the real directories.
#[derive(Default)]
struct Names {
    /// Files by name; `None` for a real file that has been removed.
    files: BTreeMap<PathBuf, Option<Arc<Content>>>,
    dirs: BTreeSet<PathBuf>,
}

impl Names {
    fn find(&mut self, path: &Path) -> io::Result<Arc<Content>> {
        if let Some(known) = self.files.get(path) {
            return known.clone().ok_or_else(|| io::ErrorKind::NotFound.into());
        }
        let content = Arc::new(Content::real(File::open(path)?)?);
        self.files.insert(path.to_owned(), Some(Arc::clone(&content)));
        Ok(content)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.files.get(path) {
            Some(known) => Ok(known.is_some()),
            None => Ok(self.dirs.contains(path) || path.try_exists()?),
        }
    }
}

impl Disk for ScratchDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(ScratchFile(self.names.lock().find(path)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut names = self.names.lock();
        if names.exists(path)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let content = Arc::new(Content::default());
        names.files.insert(path.to_owned(), Some(Arc::clone(&content)));
        Ok(Box::new(ScratchFile(content)))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.names.lock().exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = self.names.lock();
        let mut found: BTreeSet<String> = match RealDisk.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && names.dirs.contains(dir) => {
                BTreeSet::new()
            }
            listed => listed?.into_iter().collect(),
        };
        for (path, content) in &names.files {
            let Some(name) = path.file_name().filter(|_| path.parent() == Some(dir)) else {
                continue;
            };
            let name = name.to_string_lossy().into_owned();
            match content {
                Some(_) => found.insert(name),
                None => found.remove(&name),
            };
        }
        Ok(found.into_iter().collect())
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.names.lock().dirs.insert(dir.to_owned());
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let content = names.find(from)?;
        names.files.insert(from.to_owned(), None);
        names.files.insert(to.to_owned(), Some(content));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        names.find(path)?;
        names.files.insert(path.to_owned(), None);
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

struct ScratchFile(Arc<Content>);

/// A file: the real one, and the pages written since.
#[derive(Default)]
struct Content {
    base: Option<File>,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    len: u64,
    /// The length of the real file that still counts.
    base_len: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Content {
    fn real(file: File) -> io::Result<Content> {
        let len = file.metadata()?.len();
        let state = State { len, base_len: len, pages: BTreeMap::new() };
        Ok(Content { base: Some(file), state: RwLock::new(state) })
    }

    /// Fills `buf` from the real file, with zeros beyond its end.
    fn read_base(&self, base_len: u64, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let real = base_len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (real, beyond) = buf.split_at_mut(real);
        beyond.fill(0);
        match &self.base {
            Some(base) if !real.is_empty() => base.read_exact_at(real, offset),
            _ => Ok(()),
        }
    }
}

/// The part of a page that lies in `offset..offset + len`, as a range of the page and where it starts in
/// the buffer.
fn overlap(number: u64, offset: u64, len: usize) -> (std::ops::Range<usize>, usize) {
    let start = number * PAGE as u64;
    let from = offset.max(start);
    let to = (offset + len as u64).min(start + PAGE as u64);
    ((from - start) as usize..(to - start) as usize, (from - offset) as usize)
}

/// The pages that `offset..offset + len` touches.
fn pages(offset: u64, len: usize) -> std::ops::Range<u64> {
    offset / PAGE as u64..(offset + len as u64).div_ceil(PAGE as u64)
}

impl DiskFile for ScratchFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.0.state.read();
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > state.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.0.read_base(state.base_len, buf, offset)?;
        for (number, page) in state.pages.range(pages(offset, buf.len())) {
            let (part, at) = overlap(*number, offset, buf.len());
            let part = page.get(part).unwrap_or_default();
            if let Some(target) = buf.get_mut(at..at + part.len()) {
                target.copy_from_slice(part);
            }
        }
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.0.state.write();
        for number in pages(offset, data.len()) {
            if !state.pages.contains_key(&number) {
                let mut page = Box::new([0; PAGE]);
                self.0.read_base(state.base_len, &mut page[..], number * PAGE as u64)?;
                state.pages.insert(number, page);
            }
            let (part, at) = overlap(number, offset, data.len());
            let target = state.pages.get_mut(&number).and_then(|page| page.get_mut(part));
            if let Some(target) = target
                && let Some(source) = data.get(at..at + target.len())
            {
                target.copy_from_slice(source);
            }
        }
        state.len = state.len.max(offset + data.len() as u64);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.state.write();
        if len < state.len {
            drop(state.pages.split_off(&len.div_ceil(PAGE as u64)));
            let last = state.pages.get_mut(&(len / PAGE as u64));
            if let Some(cut) = last.and_then(|page| page.get_mut((len % PAGE as u64) as usize..)) {
                cut.fill(0);
            }
            state.base_len = state.base_len.min(len);
        }
        state.len = len;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state.read().len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator: the tests need variety, not quality.
    struct Draws(u64);

    impl Draws {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % bound
        }
    }

    #[test]
    fn a_file_behaves_like_a_vector_and_the_real_one_stays() {
        for seed in 0..20 {
            let mut draws = Draws(seed);
            let tmp = tempfile::tempdir().unwrap();
            let path = tmp.path().join("file");
            let original: Vec<u8> = (0..draws.below(20_000)).map(|n| n as u8 | 1).collect();
            std::fs::write(&path, &original).unwrap();
            let disk = ScratchDisk::default();
            let file = disk.open(&path).unwrap();
            let mut expected = original.clone();
            for _ in 0..200 {
                let offset = draws.below(25_000);
                if draws.below(5) == 0 {
                    file.set_len(offset).unwrap();
                    expected.resize(offset as usize, 0);
                } else {
                    let data = vec![draws.below(256) as u8; draws.below(9_000) as usize];
                    let end = offset as usize + data.len();
                    file.write_all_at(&data, offset).unwrap();
                    expected.resize(expected.len().max(end), 0);
                    expected[offset as usize..end].copy_from_slice(&data);
                }
                assert_eq!(file.len().unwrap(), expected.len() as u64);
                // Through another handle: changes belong to the disk.
                let mut read = vec![0; expected.len()];
                disk.open(&path).unwrap().read_exact_at(&mut read, 0).unwrap();
                assert!(read == expected, "seed {seed}");
                let from = draws.below(expected.len() as u64 + 1) as usize;
                let mut part = vec![0; expected.len() - from];
                file.read_exact_at(&mut part, from as u64).unwrap();
                assert!(part == expected[from..], "seed {seed}");
                assert!(file.read_exact_at(&mut [0], expected.len() as u64).is_err());
            }
            assert_eq!(std::fs::read(&path).unwrap(), original);
        }
    }

    #[test]
    fn names_change_in_memory_only() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        std::fs::write(at("a"), "1").unwrap();
        std::fs::write(at("b"), "22").unwrap();
        let disk = ScratchDisk::default();
        disk.rename(&at("a"), &at("c")).unwrap();
        disk.remove(&at("b")).unwrap();
        disk.create(&at("d")).unwrap().write_all_at(b"333", 0).unwrap();
        assert_eq!(disk.list(tmp.path()).unwrap(), ["c", "d"]);
        assert!(!disk.exists(&at("a")).unwrap() && disk.exists(&at("c")).unwrap());
        assert_eq!(disk.open(&at("b")).err().unwrap().kind(), io::ErrorKind::NotFound);
        assert_eq!(disk.remove(&at("b")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(disk.create(&at("c")).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(disk.open(&at("c")).unwrap().len().unwrap(), 1);
        disk.create(&at("b")).unwrap();
        disk.create_dir_all(&at("sub")).unwrap();
        assert!(disk.list(&at("sub")).unwrap().is_empty());
        assert_eq!(RealDisk.list(tmp.path()).unwrap(), ["a", "b"]);
    }
}
