//! The memory available to this process: the machine's, or less if a control group limits it.

use std::fs;
use std::path::{Path, PathBuf};

/// Default budget for clients: the memory divided by this…
const PART: u64 = 8;
/// …within these bounds. The engine needs a few hundred megabytes of its own.
const LEAST: u64 = 64 << 20;
const MOST: u64 = 1 << 30;

/// Default budget for clients on this machine, but at least `least`.
pub fn buffered_bytes(least: usize) -> usize {
    let part = (limit(Path::new("/")).unwrap_or(0) / PART).clamp(LEAST, MOST);
    usize::try_from(part).unwrap_or(usize::MAX).max(least)
}

/// The smallest limit that applies to this process; `None` without `/proc`.
fn limit(root: &Path) -> Option<u64> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let machine = read("proc/meminfo").lines().find_map(|line| {
        let kibibytes = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim();
        kibibytes.parse::<u64>().ok()?.checked_mul(1_024)
    });
    let groups = read("proc/self/cgroup");
    let groups = groups.lines().flat_map(|line| group_limits(root, line));
    machine.into_iter().chain(groups).min()
}

/// The limits for one line of `/proc/self/cgroup`: the group's own and its ancestors'. In a
/// container the path may be the host's, where only the topmost limit is readable.
fn group_limits(root: &Path, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    let (mount, file) = if controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return Vec::new();
    };
    let path = PathBuf::from(path.trim_start_matches('/'));
    let places = path.ancestors().map(|group| root.join(mount).join(group).join(file));
    let texts = places.filter_map(|place| fs::read_to_string(place).ok());
    // "max" means no limit and does not parse.
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    /// A path and its content.
    type File = (&'static str, &'static str);

    const MEMORY: File = ("proc/meminfo", "MemFree: 1 kB\nMemTotal:  8388608 kB\n");

    #[test]
    fn the_smallest_memory_limit_applies() {
        let cases: [(&[File], Option<u64>); 6] = [
            (&[], None),
            (&[MEMORY], Some(8 << 30)),
            (
                &[
                    MEMORY,
                    ("proc/self/cgroup", "0::/a/b\n"),
                    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                    ("sys/fs/cgroup/a/memory.max", "536870912\n"),
                ],
                Some(512 << 20),
            ),
            (
                &[
                    MEMORY,
                    ("proc/self/cgroup", "5:cpu:/x\n4:pids,memory:/x\n"),
                    ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "268435456\n"),
                ],
                Some(256 << 20),
            ),
            // The host's path, which does not exist in the container.
            (
                &[
                    MEMORY,
                    ("proc/self/cgroup", "0::/system.slice/docker-1.scope\n"),
                    ("sys/fs/cgroup/memory.max", "1073741824\n"),
                ],
                Some(1 << 30),
            ),
            (&[MEMORY, ("proc/self/cgroup", "nonsense\n::\n")], Some(8 << 30)),
        ];
        for (files, want) in cases {
            assert_eq!(limit(machine(files).path()), want, "{files:?}");
        }
    }

    #[test]
    fn the_budget_is_never_below_its_minimum() {
        assert!(buffered_bytes(0) >= 64 << 20);
        assert_eq!(buffered_bytes(4 << 30), 4 << 30);
    }
}
