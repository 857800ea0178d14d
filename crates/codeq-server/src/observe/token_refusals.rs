//! Counts refused tokens and limits how many are logged, so that a flood of bad tokens does not
//! flood the log.

use std::time::{Duration, Instant};

use codeq_auth::Reason;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// Burst of log lines per reason. Separate per reason, so that a flood of one does not hide the
/// others.
const LINES_AT_ONCE: u32 = 10;
/// After the burst, one line per this interval.
const LINE_PAUSE: Duration = Duration::from_secs(2);

/// Refused tokens by reason.
#[derive(Debug, Default)]
pub struct TokenRefusals {
    pub(super) counts: Family<[(&'static str, &'static str); 1], Counter>,
    lines: Mutex<[Lines; Reason::ALL.len()]>,
}

/// The log rate limit of one reason.
#[derive(Debug, Clone, Copy, Default)]
struct Lines {
    /// When the token bucket was full. It gains one line per [`LINE_PAUSE`].
    since: Option<Instant>,
    used: u32,
    unlogged: u64,
}

impl TokenRefusals {
    /// Counts a refusal. If it should be logged, returns how many went unlogged before it.
    pub fn count(&self, reason: Reason, now: Instant) -> Option<u64> {
        self.counts.get_or_create(&[("reason", reason.name())]).inc();
        self.lines.lock().get_mut(reason as usize)?.take(now)
    }
}

impl Lines {
    fn take(&mut self, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let pauses = now.saturating_duration_since(since).as_millis() / LINE_PAUSE.as_millis();
        let filled = u32::try_from(pauses).unwrap_or(u32::MAX);
        if filled >= self.used {
            (self.since, self.used) = (Some(now), 0);
        } else if self.used - filled >= LINES_AT_ONCE {
            self.unlogged += 1;
            return None;
        }
        self.used += 1;
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_logged() {
        let refusals = TokenRefusals::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let flood = |seconds, count: usize| -> Vec<u64> {
            (0..count).filter_map(|_| refusals.count(Reason::Signature, at(seconds))).collect()
        };
        assert_eq!(flood(0, 1_000), [0; 10]);
        assert_eq!(flood(1, 1_000), [0; 0]);
        assert_eq!(flood(2, 1_000), [1_990], "the line reports the unlogged ones");
        assert_eq!(flood(8, 1_000), [999, 0, 0]);
        // Each reason has its own limit.
        assert_eq!(refusals.count(Reason::Expired, at(8)), Some(0));
        assert_eq!(flood(100, 20).len(), 10);
        assert_eq!(flood(100, 20).len(), 0);
        let labels = [("reason", "signature")];
        assert_eq!(refusals.counts.get_or_create(&labels).get(), 4_040);
    }
}
