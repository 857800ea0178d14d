//! Process statistics from `/proc`. Empty on systems without it.

use std::fs;

/// The kernel reports CPU time in `/proc` in hundredths of a second on all supported machines.
const TICKS_PER_SECOND: f64 = 100.0;

/// Statistics of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Process {
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    /// CPU time in user and kernel mode.
    pub cpu_seconds: Option<f64>,
    /// Open files and sockets.
    pub open_fds: Option<u64>,
}

impl Process {
    /// Reads the current values.
    pub fn now() -> Process {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Process {
            resident_bytes: resident(&read("/proc/self/status")),
            cpu_seconds: cpu(&read("/proc/self/stat")),
            // One of the entries is the directory being read.
            open_fds: fs::read_dir("/proc/self/fd")
                .ok()
                .map(|fds| (fds.count() as u64).saturating_sub(1)),
        }
    }
}

/// Reads `status`, which reports kibibytes. `statm` reports pages, whose size only the C library
/// knows.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1_024)
}

/// The process name before the numbers is in parentheses and may contain any character.
fn cpu(stat: &str) -> Option<f64> {
    let (_, numbers) = stat.rsplit_once(')')?;
    let mut ticks = numbers.split_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    Some(user.saturating_add(system) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(resident("VmPeak:\t 9 kB\nVmRSS:\t    1024 kB\n"), Some(1 << 20));
        assert_eq!(resident("VmRSS: much\n"), None);
        let stat = "7 (a) b) 1) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(cpu(stat), Some(3.0));
        assert_eq!(cpu("7 (a) S 1"), None);
    }

    #[test]
    fn the_statistics_of_this_process_are_read() {
        let now = Process::now();
        assert!(now.resident_bytes.is_some_and(|bytes| bytes > 100_000), "{now:?}");
        assert!(now.cpu_seconds.is_some(), "{now:?}");
        assert!(now.open_fds.is_some_and(|fds| fds >= 3), "{now:?}");
    }
}
