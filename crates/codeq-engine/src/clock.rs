//! The two clocks: engine time, which only counts elapsed time, and the wall clock, which may be set at any moment.
//!
//! All durations end by engine time. In a new directory, engine time starts at the wall clock's reading and never
//! consults the wall clock again, so starting with a wrong clock ends no lease or delay early. After a restart, it
//! advances by the time that has certainly passed, which the machine knows unless it was rebooted; see `clock_file`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
#[cfg(not(target_os = "linux"))]
use std::time::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

use codeq_core::command::Millis;
use codeq_core::id::fnv1a64;
use codeq_core::moment::Moment;

/// The source of time. The simulator has its own.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch, as the machine believes.
    fn wall(&self) -> Millis;
    /// The same in microseconds.
    fn wall_micros(&self) -> u64 {
        self.wall().saturating_mul(1_000)
    }
    /// Time since some fixed moment. Never runs backwards. On Linux it also advances while the machine sleeps.
    fn monotonic(&self) -> Duration;
    /// Identifies that fixed moment if it outlives the process: readings of [`Clock::monotonic`] with the same number
    /// can be compared.
    fn boot(&self) -> Option<u64>;
}

/// The operating system's clocks.
pub struct SystemClock {
    boot: Option<u64>,
    #[cfg(not(target_os = "linux"))]
    start: Instant,
}

impl SystemClock {
    /// Determines which boot of the machine this is.
    pub fn new() -> Arc<SystemClock> {
        Arc::new(SystemClock {
            boot: boot_number(),
            #[cfg(not(target_os = "linux"))]
            start: Instant::now(),
        })
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> Millis {
        self.wall_micros() / 1_000
    }

    fn wall_micros(&self) -> u64 {
        micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    #[cfg(target_os = "linux")]
    fn monotonic(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::try_from(time).unwrap_or_default()
    }

    #[cfg(not(target_os = "linux"))]
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn boot(&self) -> Option<u64> {
        self.boot
    }
}

/// Processes that see the same number count time from the same boot. A container may have its own boot clock, so the
/// time namespace is included.
#[cfg(target_os = "linux")]
fn boot_number() -> Option<u64> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(fnv1a64(format!("{} {}", boot.trim(), namespace.display()).as_bytes()))
}

#[cfg(not(target_os = "linux"))]
fn boot_number() -> Option<u64> {
    None
}

/// A reading of engine time and of the clock that counts it: enough to continue from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Identifies the boot of the machine; 0 if unknown.
    pub boot: u64,
    /// The monotonic clock in microseconds.
    pub monotonic: u64,
    /// Engine time in microseconds.
    pub engine: u64,
}

/// The two clocks are read one after the other: a difference up to this is not a step of the wall clock.
const READ_MICROS: i64 = 100;
/// The wall clock may gain this much on engine time before that counts; otherwise displayed deadlines would flicker.
const STEP_MIN_MS: i64 = 2;

/// The clocks of all shards.
pub struct EngineClock {
    clock: Arc<dyn Clock>,
    start: Reading,
    /// Milliseconds by which the wall clock is ahead of engine time.
    ahead: AtomicI64,
}

impl EngineClock {
    /// Continues from `last`, the engine time of the last logged command, or from a later reading. With neither, the
    /// directory is new and engine time starts at the wall clock's reading.
    pub fn start(clock: Arc<dyn Clock>, last: Millis, read: Option<Reading>) -> EngineClock {
        let monotonic = micros(clock.monotonic());
        let boot = clock.boot();
        let engine = match read {
            None if last == 0 => clock.wall_micros(),
            None => 0,
            Some(read) => {
                // After a reboot it is unknown how long the machine was off, or whether it is the same machine.
                // Deadlines are then late by that time, but never early.
                let same = boot == Some(read.boot);
                let passed = if same { monotonic.saturating_sub(read.monotonic) } else { 0 };
                read.engine.saturating_add(passed)
            }
        };
        let engine = engine.max(last.saturating_mul(1_000));
        let start = Reading { boot: boot.unwrap_or(0), monotonic, engine };
        let clock = EngineClock { clock, start, ahead: AtomicI64::new(0) };
        clock.ahead.store(clock.measure_closely().1, Ordering::Relaxed);
        clock
    }

    /// The current moment on both clocks.
    pub fn moment(&self) -> Moment {
        let (mut now, mut ahead) = self.measure();
        let kept = self.ahead.load(Ordering::Relaxed);
        if (kept..=kept.saturating_add(STEP_MIN_MS)).contains(&ahead) {
            ahead = kept;
        } else {
            (now, ahead) = self.measure_closely();
            self.ahead.store(ahead, Ordering::Relaxed);
        }
        Moment { now, wall: now.saturating_add_signed(ahead) }
    }

    /// Engine time, and the milliseconds by which the wall clock is ahead of it.
    fn measure(&self) -> (Millis, i64) {
        let wall = self.clock.wall_micros();
        let engine = self.read().engine;
        let ahead = (wall as i64).saturating_sub(engine as i64).saturating_add(READ_MICROS);
        (engine / 1_000, ahead.div_euclid(1_000))
    }

    /// Same as `measure`, from readings that are close together: to a thread that was interrupted in between, the
    /// wall clock would seem to have been set back.
    fn measure_closely(&self) -> (Millis, i64) {
        const TRIES: usize = 16;
        let mut closest = (u64::MAX, (0, 0));
        for _ in 0..TRIES {
            let before = self.read().engine;
            let measured = self.measure();
            let took = self.read().engine.saturating_sub(before);
            if took < closest.0 {
                closest = (took, measured);
            }
            if took < READ_MICROS as u64 / 2 {
                break;
            }
        }
        closest.1
    }

    /// A reading to continue from after a restart.
    pub fn read(&self) -> Reading {
        let monotonic = micros(self.clock.monotonic());
        let passed = monotonic.saturating_sub(self.start.monotonic);
        Reading { monotonic, engine: self.start.engine.saturating_add(passed), ..self.start }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    const HOUR: u64 = 3_600_000;

    struct Fake(Mutex<(Millis, Duration, Option<u64>)>);

    impl Fake {
        fn new(wall: Millis, monotonic: u64, boot: Option<u64>) -> Arc<Fake> {
            Arc::new(Fake(Mutex::new((wall, Duration::from_millis(monotonic), boot))))
        }

        fn pass(&self, wall: i64, monotonic: u64) {
            let mut now = self.0.lock();
            now.0 = now.0.saturating_add_signed(wall);
            now.1 += Duration::from_millis(monotonic);
        }
    }

    impl Clock for Fake {
        fn wall(&self) -> Millis {
            self.0.lock().0
        }
        fn monotonic(&self) -> Duration {
            self.0.lock().1
        }
        fn boot(&self) -> Option<u64> {
            self.0.lock().2
        }
    }

    #[test]
    fn a_new_directory_begins_with_the_wall_clock() {
        let fake = Fake::new(10 * HOUR, 7, Some(1));
        let clock = EngineClock::start(fake.clone(), 0, None);
        assert_eq!(clock.moment(), Moment::agreed(10 * HOUR));
        fake.pass(500, 500);
        assert_eq!(clock.moment(), Moment::agreed(10 * HOUR + 500));
    }

    #[test]
    fn engine_time_does_not_follow_the_wall_clock() {
        for jump in [10 * HOUR as i64, -(10 * HOUR as i64)] {
            let fake = Fake::new(100 * HOUR, 0, Some(1));
            let clock = EngineClock::start(fake.clone(), 0, None);
            fake.pass(jump, 0);
            fake.pass(1_000, 1_000);
            let wall = (100 * HOUR + 1_000).saturating_add_signed(jump);
            assert_eq!(clock.moment(), Moment { now: 100 * HOUR + 1_000, wall });
        }
    }

    /// The clocks' milliseconds do not start together, but a deadline must always be shown as the same date.
    #[test]
    fn displayed_deadlines_do_not_flicker() {
        struct Fine(AtomicI64);
        impl Clock for Fine {
            fn wall(&self) -> Millis {
                self.wall_micros() / 1_000
            }
            fn wall_micros(&self) -> u64 {
                5_000_000_000 + self.0.load(Ordering::Relaxed) as u64
            }
            fn monotonic(&self) -> Duration {
                Duration::from_micros(self.0.load(Ordering::Relaxed) as u64)
            }
            fn boot(&self) -> Option<u64> {
                None
            }
        }
        for phase in [0, 1, 333, 500, 899, 901, 999] {
            let fine = Arc::new(Fine(AtomicI64::new(0)));
            let read = Reading { boot: 0, monotonic: 0, engine: 1_000_000 + phase };
            let clock = EngineClock::start(fine.clone(), 0, Some(read));
            let date = clock.moment().date_of(9_999_999);
            for _ in 0..3_000 {
                fine.0.fetch_add(7, Ordering::Relaxed);
                let at = clock.moment();
                assert_eq!(at.date_of(9_999_999), date, "phase {phase}");
                assert!(at.wall * 1_000 <= fine.wall_micros() + READ_MICROS as u64);
            }
        }
    }

    #[test]
    fn a_restart_counts_the_time_in_between_whatever_the_wall_clock_shows() {
        let read = Reading { boot: 1, monotonic: 5_000_000, engine: 100_000_000 };
        for wall in [0, 1_000 * HOUR] {
            let fake = Fake::new(wall, 65_000, Some(1));
            assert_eq!(EngineClock::start(fake, 90_000, Some(read)).moment().now, 160_000);
        }
    }

    #[test]
    fn time_that_has_not_certainly_passed_does_not_count() {
        let read = Reading { boot: 1, monotonic: 5_000_000, engine: 100_000_000 };
        let start = |boot, monotonic, last, read| {
            EngineClock::start(Fake::new(900 * HOUR, monotonic, boot), last, read).moment().now
        };
        assert_eq!(start(Some(2), 999_000, 90_000, Some(read)), 100_000, "another boot");
        assert_eq!(start(None, 999_000, 90_000, Some(read)), 100_000, "no boot is known");
        assert_eq!(start(Some(1), 4_000, 90_000, Some(read)), 100_000, "it ran backwards");
        assert_eq!(start(Some(1), 6_000, 150_000, Some(read)), 150_000, "the log is later");
        assert_eq!(start(Some(1), 6_000, 90_000, None), 90_000, "the log alone");
    }

    #[test]
    fn the_system_clock_continues_across_processes() {
        let (one, other) = (SystemClock::new(), SystemClock::new());
        assert_eq!(one.boot(), other.boot());
        assert!(one.monotonic() <= other.monotonic());
    }
}
