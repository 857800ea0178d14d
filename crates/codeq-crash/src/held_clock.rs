//! A clock that stands still during a verification, so that no lease ends between two pages of a list.

use std::sync::Arc;
use std::time::{Duration, Instant};

use codeq_core::command::Millis;
use codeq_engine::clock::{Clock, SystemClock};
use parking_lot::Mutex;

/// The system's clock, stopped at its creation until it is released.
pub struct HeldClock {
    system: Arc<SystemClock>,
    wall_micros: u64,
    monotonic: Duration,
    released: Mutex<Option<Instant>>,
}

impl HeldClock {
    /// A clock stopped at the current time.
    pub fn new() -> Arc<HeldClock> {
        let system = SystemClock::new();
        // Take readings that are close together: the two clocks must agree about the moment.
        let read = |_| {
            let (before, wall) = (system.monotonic(), system.wall_micros());
            (system.monotonic() - before, wall, before)
        };
        let (_, wall_micros, monotonic) = (0..16).map(read).min().unwrap_or_default();
        Arc::new(HeldClock { system, wall_micros, monotonic, released: Mutex::new(None) })
    }

    /// Time since it was released.
    fn run(&self) -> Duration {
        self.released.lock().map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Lets the clock run.
    pub fn release(&self) {
        *self.released.lock() = Some(Instant::now());
    }
}

impl Clock for HeldClock {
    fn wall(&self) -> Millis {
        self.wall_micros() / 1_000
    }

    fn wall_micros(&self) -> u64 {
        self.wall_micros + self.run().as_micros() as u64
    }

    fn monotonic(&self) -> Duration {
        self.monotonic + self.run()
    }

    fn boot(&self) -> Option<u64> {
        self.system.boot()
    }
}
