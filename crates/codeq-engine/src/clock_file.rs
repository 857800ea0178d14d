//! The file `CLOCK`: a reading of engine time, from which a restart learns how much time has passed.
//!
//! ```text
//! codeq-clock: 1
//! log-id: …             the directory that it belongs to
//! boot: …               which boot of the machine
//! monotonic: …          microseconds since then
//! engine: …             engine time in microseconds
//! crc: …
//! ```
//!
//! It is written at startup, every minute and at shutdown, in place and without a sync. If it is lost, torn, stale or
//! from another directory, deadlines are late by the time it does not account for, but never early. That is also why
//! nothing here fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_disk::SharedDisk;

use crate::clock::{Clock, EngineClock, Reading};
use crate::layout::{self, Manifest};

/// How often the time is recorded. After a power cut, deadlines are late by up to this, plus the time that the
/// machine was off.
pub const NOTE_EVERY: Duration = Duration::from_secs(60);

/// The clock file of one directory.
#[derive(Clone)]
pub struct ClockFile {
    disk: SharedDisk,
    path: PathBuf,
    log_id: u64,
}

impl ClockFile {
    /// The clock file of a directory; it need not exist.
    pub fn new(disk: &SharedDisk, dir: &Path, manifest: &Manifest) -> ClockFile {
        ClockFile { disk: Arc::clone(disk), path: layout::clock_path(dir), log_id: manifest.log_id }
    }

    /// Starts the clock of the directory; `last` is the engine time of its last logged command.
    pub fn start(&self, clock: Arc<dyn Clock>, last: Millis) -> EngineClock {
        let clock = EngineClock::start(clock, last, self.load());
        self.note(&clock);
        clock
    }

    /// Records the current engine time.
    pub fn note(&self, clock: &EngineClock) {
        let text = encode(self.log_id, clock.read());
        let exists = self.disk.exists(&self.path).unwrap_or(false);
        let file = if exists { self.disk.open(&self.path) } else { self.disk.create(&self.path) };
        // Without the file, the next start continues from the time of the last logged command.
        let _ = file.and_then(|file| file.write_all_at(text.as_bytes(), 0));
    }

    fn load(&self) -> Option<Reading> {
        let file = self.disk.open(&self.path).ok()?;
        let mut bytes = vec![0; encode(0, Reading { boot: 0, monotonic: 0, engine: 0 }).len()];
        file.read_exact_at(&mut bytes, 0).ok()?;
        decode(self.log_id, std::str::from_utf8(&bytes).ok()?)
    }
}

/// Always the same length, so that it can be overwritten in place.
fn encode(log_id: u64, reading: Reading) -> String {
    let Reading { boot, monotonic, engine } = reading;
    let text = format!(
        "codeq-clock: 1\nlog-id: {log_id:020}\nboot: {boot:020}\nmonotonic: {monotonic:020}\n\
         engine: {engine:020}\n"
    );
    let crc = crc32c::crc32c(text.as_bytes());
    format!("{text}crc: {crc:08x}\n")
}

fn decode(log_id: u64, text: &str) -> Option<Reading> {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
        value.parse::<u64>().ok()
    };
    let reading =
        Reading { boot: field("boot")?, monotonic: field("monotonic")?, engine: field("engine")? };
    (encode(log_id, reading) == text).then_some(reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: Reading =
        Reading { boot: u64::MAX, monotonic: 5, engine: 1_700_000_000_000_000 };

    #[test]
    fn a_reading_is_used_only_in_its_own_directory() {
        let text = encode(7, READING);
        assert_eq!(decode(7, &text), Some(READING));
        assert_eq!(decode(8, &text), None);
    }

    #[test]
    fn a_damaged_file_counts_as_missing() {
        let text = encode(7, READING);
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let damaged = String::from_utf8(bytes).ok();
                assert_eq!(damaged.and_then(|text| decode(7, &text)), None, "byte {at} bit {bit}");
            }
            assert_eq!(decode(7, &text[..at]), None, "cut at {at}");
        }
        // Half of one reading and half of another.
        let other = encode(7, Reading { engine: 1_800_000_000_000_000, ..READING });
        for at in 0..text.len() {
            let torn = format!("{}{}", &text[..at], &other[at..]);
            let read = decode(7, &torn);
            assert!(read.is_none() || torn == text || torn == other, "torn at {at}: {read:?}");
        }
    }
}
