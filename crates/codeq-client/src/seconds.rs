//! Converts durations to the whole seconds of the streams' messages.

use std::time::Duration;

/// Rounded up, so that nothing happens earlier than requested.
pub(crate) fn whole_seconds(duration: Duration) -> i32 {
    saturated(duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)))
}

pub(crate) fn saturated(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
