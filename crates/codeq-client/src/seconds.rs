//! Converts durations: to the whole seconds of the streams' messages, and to deadlines.

use std::time::Duration;

use tokio::time::Instant;

/// Rounded up, so that nothing happens earlier than requested.
pub(crate) fn whole_seconds(duration: Duration) -> i32 {
    saturated(duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)))
}

pub(crate) fn saturated(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Longest time until a deadline: adding any duration to an `Instant` could overflow.
const DEADLINE_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The moment after this much time, or after a century if that is sooner.
pub(crate) fn from_now(after: Duration) -> Instant {
    Instant::now() + after.min(DEADLINE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_duration_becomes_a_distant_deadline() {
        assert!(from_now(Duration::MAX) > Instant::now() + Duration::from_secs(86_400));
    }
}
