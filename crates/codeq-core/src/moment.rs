//! A moment, as read from two clocks.
//!
//! Durations (leases, delays, retries, retention) end by *engine time*, which only counts elapsed time. Nobody can set
//! it, so no duration is ever cut short. Only `runAt` names a date; it is compared with *wall time*, which may be
//! corrected in either direction.

/// Milliseconds since the Unix epoch, or a length of time in milliseconds.
pub type Millis = u64;

/// One moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// Engine time: never runs backwards and never jumps.
    pub now: Millis,
    /// The machine's clock, which may have been set since the previous moment.
    pub wall: Millis,
}

impl Moment {
    /// A moment at which both clocks show the same time.
    pub fn agreed(now: Millis) -> Moment {
        Moment { now, wall: now }
    }

    /// The wall-clock date that corresponds to `deadline`, a moment of engine time.
    pub fn date_of(self, deadline: Millis) -> Millis {
        match deadline.checked_sub(self.now) {
            Some(left) => self.wall.saturating_add(left),
            None => self.wall.saturating_sub(self.now - deadline),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_shown_as_dates() {
        let moment = Moment { now: 1_000, wall: 50_000 };
        assert_eq!(moment.date_of(1_500), 50_500);
        assert_eq!(moment.date_of(400), 49_400);
        assert_eq!(moment.date_of(Millis::MAX), Millis::MAX);
        assert_eq!(Moment { now: 9, wall: 1 }.date_of(2), 0);
        assert_eq!(Moment::agreed(7).date_of(8), 8);
    }
}
