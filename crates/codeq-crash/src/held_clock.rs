//! A clock that stands still while the judge looks: no lease ends between two pages of a list.

use std::sync::Arc;
use std::time::{Duration, Instant};

use codeq_core::command::Millis;
use codeq_engine::clock::{Clock, SystemClock};
use parking_lot::Mutex;

/// The system's clock, stopped at the moment of its making until it is released.
pub struct HeldClock {
    system: Arc<SystemClock>,
    wall: Millis,
    monotonic: Duration,
    released: Mutex<Option<Instant>>,
}

impl HeldClock {
    /// Stands still from now on.
    pub fn new() -> Arc<HeldClock> {
        let system = SystemClock::new();
        let (wall, monotonic) = (system.wall(), system.monotonic());
        Arc::new(HeldClock { system, wall, monotonic, released: Mutex::new(None) })
    }

    /// Time since it was released.
    fn run(&self) -> Duration {
        self.released.lock().map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Lets it run.
    pub fn release(&self) {
        *self.released.lock() = Some(Instant::now());
    }
}

impl Clock for HeldClock {
    fn wall(&self) -> Millis {
        self.wall + self.run().as_millis() as Millis
    }

    fn monotonic(&self) -> Duration {
        self.monotonic + self.run()
    }

    fn boot(&self) -> Option<u64> {
        self.system.boot()
    }
}
