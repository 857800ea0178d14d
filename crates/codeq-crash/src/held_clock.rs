//! A clock that stands still while the judge looks: no lease ends between two pages of a list.

use std::sync::Arc;
use std::time::{Duration, Instant};

use codeq_core::command::Millis;
use codeq_engine::clock::{Clock, SystemClock};
use parking_lot::Mutex;

/// The system's clock, stopped at the moment of its making until it is released.
pub struct HeldClock {
    wall: Millis,
    released: Mutex<Option<Instant>>,
}

impl HeldClock {
    /// Stands still from now on.
    pub fn new() -> Arc<HeldClock> {
        Arc::new(HeldClock { wall: SystemClock::new().wall(), released: Mutex::new(None) })
    }

    /// Lets it run.
    pub fn release(&self) {
        *self.released.lock() = Some(Instant::now());
    }
}

impl Clock for HeldClock {
    fn wall(&self) -> Millis {
        self.wall + self.monotonic().as_millis() as Millis
    }

    fn monotonic(&self) -> Duration {
        self.released.lock().map_or(Duration::ZERO, |at| at.elapsed())
    }
}
