//! What a process has used: CPU time and memory.

use std::fmt::Display;
use std::time::Duration;

/// CPU time of all threads of a process, user and system. `self` is this one.
pub fn cpu_of(pid: impl Display) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Fields 14 and 15 of the line are user and system ticks; `rest` begins with field 3, after the command's bracket.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |n: usize| rest.split_whitespace().nth(n).and_then(|text| text.parse::<u64>().ok());
    let ticks = field(11).unwrap_or(0) + field(12).unwrap_or(0);
    const TICKS_PER_SECOND: u64 = 100;
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

/// Resident memory in bytes.
pub fn rss() -> u64 {
    rss_of("self")
}

/// Resident memory of a process in bytes.
pub fn rss_of(pid: impl Display) -> u64 {
    status_kib(pid, "VmRSS:") * 1_024
}

/// The most resident memory so far, in bytes.
pub fn peak_rss() -> u64 {
    status_kib("self", "VmHWM:") * 1_024
}

fn status_kib(pid: impl Display, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// CPU model and core count, for the record.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown CPU", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} x {model}, Linux {}", kernel.trim())
}
