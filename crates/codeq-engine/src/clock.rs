//! Time for the rules: milliseconds that never run backwards and never jump.
//!
//! Between two moments the clock moves with the monotonic clock, so that a lease lasts as long as it says
//! whatever happens to the wall clock. Towards the wall clock it is only nudged, by one part in a thousand.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use codeq_core::command::Millis;

/// Where time comes from. The simulator has its own.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch, as the machine believes.
    fn wall(&self) -> Millis;
    /// Time since some fixed moment; never runs backwards.
    fn monotonic(&self) -> Duration;
}

/// The operating system's clocks.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Starts counting.
    pub fn new() -> Arc<SystemClock> {
        Arc::new(SystemClock { start: Instant::now() })
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> Millis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_millis() as Millis
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// The part of elapsed time by which the clock may be nudged towards the wall clock.
const SLEW_PER_MILLE: u128 = 1;

/// The moments of one shard.
pub struct LogClock {
    clock: Arc<dyn Clock>,
    /// Microseconds since the epoch at `at`.
    micros: u128,
    at: Duration,
}

impl LogClock {
    /// A clock that goes on from `last`, the moment of the last group, or from the wall clock if that is
    /// later.
    pub fn new(clock: Arc<dyn Clock>, last: Millis) -> LogClock {
        let micros = u128::from(last.max(clock.wall())) * 1_000;
        let at = clock.monotonic();
        LogClock { clock, micros, at }
    }

    /// The moment now.
    pub fn now(&mut self) -> Millis {
        let monotonic = self.clock.monotonic();
        let elapsed = monotonic.saturating_sub(self.at).as_micros();
        self.at = self.at.max(monotonic);
        let steady = self.micros + elapsed;
        let wall = u128::from(self.clock.wall()) * 1_000;
        // Rounded up: many short steps must be able to close a gap just as few long ones are.
        let nudge = (elapsed * SLEW_PER_MILLE).div_ceil(1_000);
        self.micros = if wall >= steady {
            steady + nudge.min(wall - steady)
        } else {
            // Slower than real time, but never backwards.
            (steady - nudge.min(steady - wall)).max(self.micros)
        };
        (self.micros / 1_000) as Millis
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    struct Fake(Mutex<(Millis, Duration)>);

    impl Clock for Fake {
        fn wall(&self) -> Millis {
            self.0.lock().0
        }
        fn monotonic(&self) -> Duration {
            self.0.lock().1
        }
    }

    fn fake(wall: Millis) -> (Arc<Fake>, impl Fn(i64, u64)) {
        let fake = Arc::new(Fake(Mutex::new((wall, Duration::ZERO))));
        let handle = Arc::clone(&fake);
        let step = move |wall_ms: i64, mono_ms: u64| {
            let mut now = handle.0.lock();
            now.0 = now.0.saturating_add_signed(wall_ms);
            now.1 += Duration::from_millis(mono_ms);
        };
        (fake, step)
    }

    #[test]
    fn follows_real_time() {
        let (clock, step) = fake(1_000_000);
        let mut log = LogClock::new(clock, 0);
        assert_eq!(log.now(), 1_000_000);
        step(500, 500);
        assert_eq!(log.now(), 1_000_500);
    }

    #[test]
    fn a_jump_of_the_wall_clock_moves_it_by_a_thousandth_at_most() {
        for jump in [3_600_000, -3_600_000] {
            let (clock, step) = fake(10_000_000);
            let mut log = LogClock::new(clock, 0);
            step(jump, 0);
            assert_eq!(log.now(), 10_000_000);
            step(300_000, 300_000);
            let passed = log.now() - 10_000_000;
            assert!((299_700..=300_300).contains(&passed), "{jump}: {passed}");
        }
    }

    #[test]
    fn never_runs_backwards_and_goes_on_from_the_log() {
        let (clock, step) = fake(5_000);
        let mut log = LogClock::new(clock, 90_000);
        let mut last = log.now();
        assert_eq!(last, 90_000);
        for _ in 0..1_000 {
            step(1, 1);
            let now = log.now();
            assert!(now >= last);
            last = now;
        }
        assert!(last >= 90_990, "{last}");
    }
}
