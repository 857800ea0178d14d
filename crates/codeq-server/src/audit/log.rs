//! The files of the audit log.
//!
//! New lines are appended to the newest file. A file is named after the number of the first line that was appended to
//! it, and all lines of older files have smaller numbers. A new file begins when one is full. If all files together are
//! then too large, the oldest lines of the tenants that have more than their fair share are removed, so that no tenant
//! can push out the lines of others. If few lines of a file remain, they are moved to the next file. An unfinished line,
//! left by a crash, is skipped.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Action;

/// How large the log may get. Tests make it small.
#[derive(Clone, Copy)]
struct Sizes {
    /// A file that has this many bytes is full.
    file: u64,
    /// Bytes of all files. The newest one may exceed it by its last line.
    all: u64,
}

const SIZES: Sizes = Sizes { file: 4 << 20, all: 32 << 20 };

/// An entry of the audit log.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AdminAction")]
pub struct Line<'a> {
    /// Grows with every entry.
    id: u64,
    #[serde(flatten)]
    action: &'a Action,
}

/// The fields by which lines are found.
#[derive(Deserialize)]
struct LineKey<'a> {
    id: u64,
    #[serde(rename = "tenantId", borrow)]
    tenant: std::borrow::Cow<'a, str>,
}

/// Some lines, oldest first.
#[derive(Debug, Default)]
pub struct AuditPage {
    /// The lines as they are in the file.
    pub items: Vec<Box<RawValue>>,
    /// The number after which newer lines begin.
    pub next_after: u64,
}

/// The audit log of a data directory.
pub struct AuditLog {
    dir: PathBuf,
    sizes: Sizes,
    /// Syncs every line.
    sync: bool,
    tail: Mutex<Option<Tail>>,
}

/// The end of the newest file.
struct Tail {
    file: File,
    bytes: u64,
    next: u64,
}

impl AuditLog {
    /// The log in a data directory. Nothing is created before the first action.
    pub fn new(data_dir: &Path, sync: bool) -> AuditLog {
        AuditLog { dir: data_dir.join("audit"), sizes: SIZES, sync, tail: Mutex::new(None) }
    }

    /// Appends an action. Blocks.
    pub fn append(&self, action: &Action) -> io::Result<()> {
        let mut tail = self.tail.lock();
        // After an error the file is opened again: it may end with a part of a line.
        let mut open = match tail.take() {
            Some(open) => open,
            None => self.open()?,
        };
        if open.bytes >= self.sizes.file {
            self.remove_old(self.sizes.all - self.sizes.file)?;
            open = self.begin(open.next)?;
        }
        let mut line = serde_json::to_vec(&Line { id: open.next, action })?;
        line.push(b'\n');
        open.file.write_all(&line)?;
        if self.sync {
            open.file.sync_data()?;
        }
        open.bytes += line.len() as u64;
        open.next += 1;
        *tail = Some(open);
        Ok(())
    }

    /// At most `limit` lines, of one tenant or of all: the first ones whose number is larger than `after`, or the newest
    /// ones without `after`. Blocks.
    pub fn read(
        &self,
        tenant: Option<&str>,
        after: Option<u64>,
        limit: usize,
    ) -> io::Result<AuditPage> {
        let files = self.files()?;
        match after {
            Some(after) => self.read_after(&files, tenant, after, limit),
            None => self.read_newest(&files, tenant, limit),
        }
    }

    fn read_after(
        &self,
        files: &[u64],
        tenant: Option<&str>,
        after: u64,
        limit: usize,
    ) -> io::Result<AuditPage> {
        let mut page = AuditPage { items: Vec::new(), next_after: after };
        let skipped = files.partition_point(|first| *first <= after).saturating_sub(1);
        for first in files.iter().skip(skipped) {
            let text = self.text(*first)?;
            for (key, line) in lines(&text) {
                if key.id <= page.next_after {
                    continue;
                }
                if page.items.len() == limit {
                    return Ok(page);
                }
                page.next_after = key.id;
                if tenant.is_none_or(|tenant| *tenant == *key.tenant) {
                    page.items.push(line.to_owned());
                }
            }
        }
        Ok(page)
    }

    fn read_newest(
        &self,
        files: &[u64],
        tenant: Option<&str>,
        limit: usize,
    ) -> io::Result<AuditPage> {
        let (mut items, mut next_after, mut below) = (VecDeque::new(), 0, u64::MAX);
        for first in files.iter().rev() {
            let text = self.text(*first)?;
            let mut of_file = VecDeque::new();
            // The newer file already has the lines from `below` on: they were moved to it.
            let older = lines(&text).take_while(|(key, _)| key.id < below);
            let mut lowest = below;
            for (key, line) in older {
                next_after = next_after.max(key.id);
                lowest = lowest.min(key.id);
                if tenant.is_none_or(|tenant| *tenant == *key.tenant) {
                    of_file.push_back(line);
                    if of_file.len() + items.len() > limit {
                        of_file.pop_front();
                    }
                }
            }
            below = lowest;
            of_file.into_iter().rev().for_each(|line| items.push_front(line.to_owned()));
            if items.len() == limit {
                break;
            }
        }
        Ok(AuditPage { items: items.into(), next_after })
    }

    /// The numbers of the first lines of all files, in order.
    fn files(&self) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("audit-"));
            let number: Option<u64> =
                number.and_then(|name| name.strip_suffix(".jsonl")?.parse().ok());
            files.extend(number);
        }
        files.sort_unstable();
        Ok(files)
    }

    fn path(&self, first: u64) -> PathBuf {
        self.dir.join(format!("audit-{first:020}.jsonl"))
    }

    /// A file's text; empty if the file was removed meanwhile.
    fn text(&self, first: u64) -> io::Result<String> {
        match fs::read(self.path(first)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => Ok(String::from_utf8_lossy(&read?).into_owned()),
        }
    }

    /// Opens the newest file, or begins the first.
    fn open(&self) -> io::Result<Tail> {
        let Some(first) = self.files()?.last().copied() else {
            return self.begin(1);
        };
        let text = self.text(first)?;
        let next = lines(&text).last().map_or(first, |(key, _)| key.id + 1);
        let mut file = OpenOptions::new().append(true).open(self.path(first))?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        Ok(Tail { file, bytes: text.len() as u64, next })
    }

    fn begin(&self, first: u64) -> io::Result<Tail> {
        fs::create_dir_all(&self.dir)?;
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(self.path(first))?;
        if self.sync {
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(Tail { file, bytes: 0, next: first })
    }

    /// Removes lines until all files together have at most `max` bytes. Each file is replaced or removed as a whole. Lines
    /// that move are written to their new file before their old one is removed, so that a crash loses nothing.
    fn remove_old(&self, max: u64) -> io::Result<()> {
        let files = self.files()?;
        let mut bytes = BytesByTenant::default();
        for first in &files {
            lines(&self.text(*first)?).for_each(|(key, line)| bytes.add(&key, line));
        }
        let mut removal = Removal::new(bytes, max);
        let (mut kept, mut emptied) = (Vec::new(), Vec::new());
        for (at, first) in files.iter().enumerate() {
            if removal.excess == 0 && kept.is_empty() {
                break;
            }
            let text = self.text(*first)?;
            let before = kept.len() + text.len();
            for (key, line) in lines(&text) {
                if removal.keeps(&key, line) {
                    kept.extend_from_slice(line.get().as_bytes());
                    kept.push(b'\n');
                }
            }
            if kept.is_empty() || self.fits(kept.len(), files.get(at + 1))? {
                emptied.push(*first);
                continue;
            }
            if kept.len() != before || !emptied.is_empty() {
                self.replace(*first, &kept)?;
            }
            kept.clear();
            emptied.drain(..).try_for_each(|first| fs::remove_file(self.path(first)))?;
        }
        emptied.into_iter().try_for_each(|first| fs::remove_file(self.path(first)))
    }

    /// Whether the remaining lines of a file should move to the next file.
    fn fits(&self, bytes: usize, next: Option<&u64>) -> io::Result<bool> {
        match next {
            Some(next) if (bytes as u64) < self.sizes.file / 2 => {
                let size = fs::metadata(self.path(*next))?.len();
                Ok(size + bytes as u64 <= 2 * self.sizes.file)
            }
            _ => Ok(false),
        }
    }

    fn replace(&self, first: u64, text: &[u8]) -> io::Result<()> {
        let (path, part) = (self.path(first), self.dir.join("audit.part"));
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(text)?;
        if self.sync {
            file.sync_data()?;
        }
        fs::rename(&part, &path)?;
        if self.sync {
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(())
    }
}

/// The bytes of each tenant's lines, while lines are removed.
#[derive(Default)]
struct BytesByTenant(HashMap<Box<str>, u64>);

impl BytesByTenant {
    fn add(&mut self, key: &LineKey<'_>, line: &RawValue) {
        match self.0.get_mut(&*key.tenant) {
            Some(bytes) => *bytes += length(line),
            None => drop(self.0.insert(key.tenant.as_ref().into(), length(line))),
        }
    }
}

/// Which lines to remove.
struct Removal {
    bytes: BytesByTenant,
    /// A tenant with at most this many bytes loses no lines.
    share: u64,
    /// Bytes still to be removed.
    excess: u64,
    last: u64,
}

impl Removal {
    fn new(bytes: BytesByTenant, max: u64) -> Removal {
        let mut each: Vec<u64> = bytes.0.values().copied().collect();
        each.sort_unstable();
        let excess = each.iter().sum::<u64>().saturating_sub(max);
        // Those with little leave the rest of their share to the others.
        let (mut room, mut left) = (max, each.len() as u64);
        let mut share = max;
        for bytes in each {
            share = room / left;
            if bytes > share {
                break;
            }
            (room, left) = (room - bytes, left - 1);
        }
        Removal { bytes, share, excess, last: 0 }
    }

    /// Whether a line stays. Lines come oldest first.
    fn keeps(&mut self, key: &LineKey<'_>, line: &RawValue) -> bool {
        // A crash may leave a line both where it was and where it was moved to.
        if key.id <= self.last {
            return false;
        }
        self.last = key.id;
        match self.bytes.0.get_mut(&*key.tenant) {
            Some(bytes) if self.excess > 0 && *bytes > self.share => {
                *bytes = bytes.saturating_sub(length(line));
                self.excess = self.excess.saturating_sub(length(line));
                false
            }
            _ => true,
        }
    }
}

/// The bytes of a line in its file.
fn length(line: &RawValue) -> u64 {
    line.get().len() as u64 + 1
}

/// The complete lines of a file.
fn lines(text: &str) -> impl Iterator<Item = (LineKey<'_>, &RawValue)> {
    let complete = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    complete.filter_map(parse)
}

fn parse(line: &str) -> Option<(LineKey<'_>, &RawValue)> {
    let raw: &RawValue = serde_json::from_str(line).ok()?;
    Some((serde_json::from_str(raw.get()).ok()?, raw))
}

#[cfg(test)]
mod tests {
    use super::super::tests::action;
    use super::*;
    use serde_json::Value;

    fn ids(
        log: &AuditLog,
        tenant: Option<&str>,
        after: Option<u64>,
        limit: usize,
    ) -> (Vec<u64>, u64) {
        let page = log.read(tenant, after, limit).unwrap();
        let id = |line: &RawValue| {
            serde_json::from_str::<Value>(line.get()).unwrap()["id"].as_u64().unwrap()
        };
        (page.items.iter().map(|line| id(line)).collect(), page.next_after)
    }

    #[test]
    fn lines_are_read_by_tenant_and_number_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::new(dir.path(), true);
        assert_eq!(ids(&log, None, None, 9), (vec![], 0));
        assert!(!dir.path().join("audit").exists(), "reading creates nothing");
        for n in 0..3 {
            log.append(&action("a", &n.to_string())).unwrap();
            log.append(&action("b", "x")).unwrap();
        }
        let log = AuditLog::new(dir.path(), false);
        log.append(&action("a", "3")).unwrap();
        assert_eq!(ids(&log, Some("a"), None, 9), (vec![1, 3, 5, 7], 7));
        assert_eq!(ids(&log, Some("a"), None, 2), (vec![5, 7], 7));
        assert_eq!(ids(&log, Some("a"), Some(1), 2), (vec![3, 5], 5));
        assert_eq!(ids(&log, Some("a"), Some(6), 2), (vec![7], 7));
        assert_eq!(ids(&log, None, Some(4), 9), (vec![5, 6, 7], 7));
        assert_eq!(ids(&log, Some("c"), Some(0), 9), (vec![], 7));
        assert_eq!(ids(&log, None, Some(99), 9), (vec![], 99));
    }

    #[test]
    fn a_torn_line_is_skipped_and_the_oldest_lines_give_way() {
        let dir = tempfile::tempdir().unwrap();
        small(dir.path(), false).append(&action("a", "0")).unwrap();
        let path = dir.path().join("audit/audit-00000000000000000001.jsonl");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(br#"{"id":2,"tenan"#).unwrap();
        let log = small(dir.path(), false);
        assert_eq!(ids(&log, None, None, 9), (vec![1], 1));
        log.append(&action("a", "1")).unwrap();
        assert_eq!(ids(&log, None, None, 9), (vec![1, 2], 2));
        let total = 40;
        flood(&log, "a", total - 2);
        let files = log.files().unwrap();
        let (all, _) = ids(&log, None, None, 1_000);
        assert_eq!((all[0], all.len() as u64), (total - all.len() as u64 + 1, total - all[0] + 1));
        assert!((28..=32).contains(&all.len()), "{all:?}");
        let middle = files[3];
        assert_eq!(ids(&log, None, Some(middle - 2), 3).0, [middle - 1, middle, middle + 1]);
        assert_eq!(ids(&log, None, None, 6).0.len(), 6, "from several files");
    }

    /// A log of 128 KiB.
    fn small(dir: &Path, sync: bool) -> AuditLog {
        AuditLog { sizes: Sizes { file: 16 << 10, all: 128 << 10 }, ..AuditLog::new(dir, sync) }
    }

    /// Appends lines of about 4 KiB.
    fn flood(log: &AuditLog, tenant: &str, count: u64) {
        let long = action(tenant, &"x".repeat(4 << 10));
        (0..count).for_each(|_| log.append(&long).unwrap());
    }

    fn size(log: &AuditLog) -> u64 {
        let files = log.files().unwrap();
        files.iter().map(|first| fs::metadata(log.path(*first)).unwrap().len()).sum()
    }

    #[test]
    fn no_tenant_pushes_out_the_lines_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let log = small(dir.path(), false);
        let mut quiet = Vec::new();
        for n in 0..20 {
            flood(&log, "loud", 7);
            quiet.push(8 * n + 8);
            log.append(&action("quiet", &n.to_string())).unwrap();
        }
        assert_eq!(ids(&log, Some("quiet"), None, 99), (quiet.clone(), 160));
        assert!(size(&log) <= log.sizes.all + (8 << 10), "{}", size(&log));
        assert!(log.files().unwrap().len() <= 9, "files with few lines are merged");
        let (all, _) = ids(&log, None, Some(0), 999);
        assert!(all.is_sorted() && all.len() < 60, "{all:?}");
        // Two tenants that write the same amount share the room.
        for _ in 0..40 {
            flood(&log, "loud", 1);
            flood(&log, "other", 1);
        }
        let count = |tenant: &str| ids(&log, Some(tenant), None, 999).0.len();
        assert_eq!(ids(&log, Some("quiet"), None, 99).0, quiet);
        assert!(count("loud").abs_diff(count("other")) <= 4, "{}", count("loud"));
        assert!(count("other") >= 13);
        // Tenants with one line each are equal: the oldest lines are removed first.
        let many = 400;
        for n in 0..many {
            log.append(&action(&format!("t{n}"), &"x".repeat(300))).unwrap();
        }
        assert!(size(&log) <= log.sizes.all + (8 << 10));
        assert_eq!((count("t0"), count(&format!("t{}", many - 1))), (0, 1));
        assert_eq!(count("t200"), 1, "no more lines are removed than necessary");
    }

    #[test]
    fn a_line_that_was_moved_before_a_crash_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = small(dir.path(), true);
        log.append(&action("quiet", "0")).unwrap();
        flood(&log, "loud", 25);
        let copies: Vec<(PathBuf, Vec<u8>)> = log
            .files()
            .unwrap()
            .iter()
            .map(|first| {
                let path = log.path(*first);
                let text = fs::read(&path).unwrap();
                (path, text)
            })
            .collect();
        flood(&log, "loud", 10);
        let before = (ids(&log, Some("quiet"), None, 9), ids(&log, Some("quiet"), Some(0), 9).0);
        assert_eq!(before, ((vec![1], 36), vec![1]));
        assert!(!copies[0].0.exists());
        fs::write(&copies[0].0, &copies[0].1).unwrap();
        let log = small(dir.path(), true);
        let after = (ids(&log, Some("quiet"), None, 9), ids(&log, Some("quiet"), Some(0), 9).0);
        assert_eq!(after, before);
        flood(&log, "loud", 10);
        assert!(!copies[0].0.exists());
        assert_eq!(ids(&log, Some("quiet"), None, 9), (vec![1], 46));
    }
}
