//! Whose clock counts: engine time over a change of leaders.
//!
//! A leader stamps entries with its engine time and sends it along with every append. Each node notes it together with
//! its own monotonic clock. A new leader asks a majority what they noted and continues from there: never backwards,
//! never early, late by milliseconds. Wall clocks count only if nobody of a majority has noted anything.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_core::moment::Moment;
use codeq_engine::clock::{Clock, EngineClock, Reading};
use parking_lot::Mutex;

use crate::transport::TimeNote;

/// A clock may run faster than the leader's: elapsed time counts for this many thousandths of itself.
const ELAPSED_PER_MILLE: u64 = 998;

/// What a node knows of the time.
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A leader's engine time, and this node's monotonic clock when it was noted.
    noted: Option<(Millis, Duration)>,
    /// The clock that stamps entries, while this node leads.
    leading: Option<EngineClock>,
}

impl Time {
    pub fn new(clock: Arc<dyn Clock>) -> Time {
        Time { clock, state: Mutex::default() }
    }

    /// Notes the time of a leader whose message was accepted. Messages can overtake each other: an older time changes
    /// nothing.
    pub fn note(&self, moment: Millis) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        if state.noted.is_none_or(|(noted, _)| noted <= moment) {
            state.noted = Some((moment, now));
        }
    }

    /// What this node has noted, for a new leader.
    pub fn noted(&self) -> Option<TimeNote> {
        let state = self.state.lock();
        let (moment, at) = match &state.leading {
            Some(clock) => (clock.moment().now, self.clock.monotonic()),
            None => state.noted?,
        };
        let elapsed = self.clock.monotonic().saturating_sub(at).as_millis() as Millis;
        Some(TimeNote { moment, elapsed })
    }

    /// The wall clock of this node.
    pub fn wall(&self) -> Millis {
        self.clock.wall()
    }

    /// Starts to stamp entries: from the latest of the notes, or from a wall clock of so many voters that is not ahead;
    /// never before `last`, the time of the last entry.
    pub fn lead(&self, notes: &[TimeNote], walls: &mut [Millis], voters: usize, last: Millis) {
        let engine = estimate(notes).unwrap_or_else(|| cautious(walls, voters)).max(last);
        let reading = Reading {
            boot: self.clock.boot().unwrap_or(0),
            monotonic: self.clock.monotonic().as_micros() as u64,
            engine: engine.saturating_mul(1_000),
        };
        let clock = EngineClock::start(Arc::clone(&self.clock), last, Some(reading));
        self.state.lock().leading = Some(clock);
    }

    /// Stops to stamp entries. What the clock showed is noted.
    pub fn follow(&self) {
        let mut state = self.state.lock();
        if let Some(clock) = state.leading.take() {
            let now = clock.moment().now;
            if state.noted.is_none_or(|(noted, _)| noted <= now) {
                state.noted = Some((now, self.clock.monotonic()));
            }
        }
    }

    /// The moment to stamp an entry with; `None` if this node does not lead.
    pub fn moment(&self) -> Option<Moment> {
        self.state.lock().leading.as_ref().map(EngineClock::moment)
    }
}

/// What the latest note has become by now. The latest, not the highest estimate: a node that was cut off for an hour has
/// an old note, and its clock has drifted since.
fn estimate(notes: &[TimeNote]) -> Option<Millis> {
    let latest = notes.iter().max_by_key(|note| note.moment)?;
    Some(latest.moment.saturating_add(latest.elapsed.saturating_mul(ELAPSED_PER_MILLE) / 1_000))
}

/// A wall clock that is not ahead, if only a minority of all voters' clocks are: those that are could all be among the ones
/// that answered. It may be behind; deadlines are then late.
fn cautious(walls: &mut [Millis], voters: usize) -> Millis {
    walls.sort_unstable();
    let wrong = voters.saturating_sub(1) / 2;
    walls.get(walls.len().saturating_sub(1 + wrong)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_note_counts_not_the_highest_estimate() {
        let cut_off = TimeNote { moment: 1_000, elapsed: 3_700_000 };
        let current = TimeNote { moment: 3_600_000, elapsed: 1_000 };
        assert_eq!(estimate(&[cut_off, current]), Some(3_600_998));
        assert_eq!(estimate(&[current, cut_off]), Some(3_600_998));
        assert_eq!(estimate(&[]), None);
    }

    #[test]
    fn a_minority_of_wrong_wall_clocks_does_not_count() {
        assert_eq!(cautious(&mut [9_999_999, 1_000, 1_001], 3), 1_001);
        assert_eq!(cautious(&mut [9_999_999, 1_000], 3), 1_000);
        assert_eq!(cautious(&mut [9_999_999, 1_000, 9_999_998], 5), 1_000);
        assert_eq!(cautious(&mut [9_999_999, 1_000, 9_999_998, 1_001, 1_002], 5), 1_002);
        assert_eq!(cautious(&mut [7], 1), 7);
        assert_eq!(cautious(&mut [], 3), 0);
    }
}
