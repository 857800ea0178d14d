//! The two system calls that the standard library does not offer. The only module with `unsafe`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `EXT4_IOC_SHUTDOWN`, which takes a pointer to a flag.
const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// `EXT4_GOING_FLAGS_NOLOGFLUSH`: nothing that was not synced reaches the disk any more, not even the journal. As
/// close to pulling the plug as software gets.
const NO_LOG_FLUSH: u32 = 2;

/// Nanoseconds of a clock that all processes of this machine share.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that lives through the call, which writes nothing else.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) } != 0;
    if failed {
        return 0;
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Cuts the power of the ext4 filesystem that is mounted at `mount_point`.
pub fn cut_power(mount_point: &Path) -> io::Result<()> {
    let dir = File::open(mount_point)?;
    let flag = NO_LOG_FLUSH;
    // SAFETY: the descriptor is open for the length of the call; this request reads one u32 from the
    // pointer, which is valid, and writes nothing.
    let failed = unsafe { libc::ioctl(dir.as_raw_fd(), EXT4_IOC_SHUTDOWN, &raw const flag) } != 0;
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
