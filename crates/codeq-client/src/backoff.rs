//! The delay before a retry: exponential, with full jitter.

use std::time::Duration;

/// Upper bound of the first delay.
const FIRST: Duration = Duration::from_millis(100);
/// Upper bound of every delay: a fleet reconnects within about this time.
const LONGEST: Duration = Duration::from_secs(5);

/// Counts consecutive failures.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next delay: random, below a bound that doubles each time, so that clients that were cut off together do not
    /// reconnect together.
    pub(crate) fn pause(&mut self) -> Duration {
        let bound = bound(self.failures);
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(rand::random::<f64>())
    }

    /// Starts over after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

fn bound(failures: u32) -> Duration {
    FIRST.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_doubles_up_to_the_longest() {
        let bounds: Vec<_> = (0..8).map(|failures| bound(failures).as_millis()).collect();
        assert_eq!(bounds, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(bound(u32::MAX), LONGEST);
    }

    #[test]
    fn pauses_stay_under_their_bounds_and_differ() {
        let mut backoff = Backoff { failures: 6 };
        let pauses: Vec<_> = (0..100).map(|_| backoff.pause()).collect();
        assert!(pauses.iter().all(|pause| *pause <= LONGEST));
        assert!(pauses.windows(2).any(|two| two.first() != two.last()));
        backoff.reset();
        assert!(backoff.pause() <= FIRST);
    }
}
