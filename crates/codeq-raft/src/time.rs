//! Engine time across changes of leaders.
//!
//! A leader stamps entries with its engine time and sends it along with every append. Each node notes whose time it is,
//! together with its own monotonic clock. A new leader asks a majority what they noted and continues from there: never
//! backwards, never early, and only milliseconds late.
//!
//! A note counts only if it is no older than the stamp of the last entry: it must come from a later leader, or from the
//! same leader with the same or a later moment. An earlier leader's time does not count, not even if that leader still
//! runs because it has not noticed that it was deposed: its time may be ahead of the time from which its successor
//! continued, and then deadlines that the successor stamped would end early. If no note counts, because the nodes that had
//! one restarted, time continues from the last entry, as it does on a single machine that was rebooted: deadlines are
//! late, but never early. Wall clocks count only in a new cluster.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_core::moment::Moment;
use codeq_engine::clock::{Clock, EngineClock, Reading};
use parking_lot::Mutex;

use crate::transport::{Leader, TimeNote};

/// A clock may run faster than the leader's: elapsed time counts for this many thousandths of itself.
const ELAPSED_PER_MILLE: u64 = 998;

/// What a node knows of the time.
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    noted: Option<Note>,
    /// The clock that stamps entries, while this node leads.
    leading: Option<(Leader, EngineClock)>,
}

/// A leader's engine time, and this node's monotonic clock when it was noted.
#[derive(Clone, Copy)]
struct Note {
    leader: Leader,
    moment: Millis,
    at: Duration,
}

impl State {
    /// Messages can overtake each other: an older time changes nothing.
    fn note(&mut self, note: Note) {
        let order = |note: &Note| (note.leader, note.moment);
        if self.noted.as_ref().is_none_or(|noted| order(noted) <= order(&note)) {
            self.noted = Some(note);
        }
    }
}

/// Who stamped the last entry, and with what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub leader: Leader,
    pub moment: Millis,
}

impl Time {
    pub fn new(clock: Arc<dyn Clock>) -> Time {
        Time { clock, state: Mutex::default() }
    }

    /// Notes the time of a leader whose message was accepted.
    pub fn note(&self, leader: Leader, moment: Millis) {
        let at = self.clock.monotonic();
        self.state.lock().note(Note { leader, moment, at });
    }

    /// What this node has noted, for a new leader.
    pub fn noted(&self) -> Option<TimeNote> {
        let now = self.clock.monotonic();
        let state = self.state.lock();
        let Note { leader, moment, at } = match &state.leading {
            Some((leader, clock)) => Note { leader: *leader, moment: clock.moment().now, at: now },
            None => state.noted?,
        };
        let elapsed = now.saturating_sub(at).as_millis() as Millis;
        Some(TimeNote { leader, moment, elapsed })
    }

    /// The moment as far as this node can tell without leading; engine time is at least `last`.
    pub fn estimated(&self, last: Millis) -> Moment {
        let now = self.noted().as_ref().map_or(0, by_now).max(last);
        Moment { now, wall: self.clock.wall() }
    }

    /// The wall clock of this node.
    pub fn wall(&self) -> Millis {
        self.clock.wall()
    }

    /// Starts stamping entries, from this engine time on.
    pub fn lead(&self, leader: Leader, engine: Millis) {
        let reading = Reading {
            boot: self.clock.boot().unwrap_or(0),
            monotonic: self.clock.monotonic().as_micros() as u64,
            engine: engine.saturating_mul(1_000),
        };
        let clock = EngineClock::start(Arc::clone(&self.clock), engine, Some(reading));
        self.state.lock().leading = Some((leader, clock));
    }

    /// Stops stamping entries, and notes what the clock showed.
    pub fn follow(&self) {
        let at = self.clock.monotonic();
        let mut state = self.state.lock();
        if let Some((leader, clock)) = state.leading.take() {
            let moment = clock.moment().now;
            state.note(Note { leader, moment, at });
        }
    }

    /// The moment to stamp an entry with; `None` if this node does not lead.
    pub fn moment(&self) -> Option<Moment> {
        self.state.lock().leading.as_ref().map(|(_, clock)| clock.moment())
    }
}

/// The engine time with which a leader starts, from the notes and wall clocks of a majority of `voters` nodes.
pub(crate) fn start(
    notes: &[TimeNote],
    walls: &mut [Millis],
    voters: usize,
    last: Stamp,
) -> Millis {
    match estimate(notes, last) {
        Some(estimate) => estimate.max(last.moment),
        // Nothing has a deadline yet that could come early.
        None if last.moment == 0 => cautious(walls, voters),
        None => last.moment,
    }
}

/// The current engine time according to the latest note, if that note counts. Not the highest estimate: a node that was cut
/// off for an hour has an old note, and its clock has drifted since.
pub(crate) fn estimate(notes: &[TimeNote], last: Stamp) -> Option<Millis> {
    let order = |note: &TimeNote| (note.leader, note.moment);
    let latest = notes.iter().max_by_key(|note| order(note))?;
    let counts = order(latest) >= (last.leader, last.moment);
    counts.then(|| by_now(latest))
}

/// The current engine time according to a note.
pub(crate) fn by_now(note: &TimeNote) -> Millis {
    note.moment.saturating_add(note.elapsed.saturating_mul(ELAPSED_PER_MILLE) / 1_000)
}

/// A reading that is not ahead of the true time, provided that at most a minority of all voters has clocks that are ahead:
/// it skips as many of the highest readings as a minority has nodes. It may be behind; deadlines are then late.
fn cautious(walls: &mut [Millis], voters: usize) -> Millis {
    walls.sort_unstable();
    let wrong = voters.saturating_sub(1) / 2;
    walls.get(walls.len().saturating_sub(1 + wrong)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Leader = Leader { term: 2, node: 9 };
    const NEW: Leader = Leader { term: 3, node: 1 };

    fn note(leader: Leader, moment: Millis, elapsed: Millis) -> TimeNote {
        TimeNote { leader, moment, elapsed }
    }

    #[test]
    fn the_latest_note_counts_not_the_highest_estimate() {
        let (cut_off, current) = (note(OLD, 1_000, 3_700_000), note(OLD, 3_600_000, 1_000));
        let last = Stamp { leader: OLD, moment: 900 };
        assert_eq!(estimate(&[cut_off, current], last), Some(3_600_998));
        assert_eq!(estimate(&[current, cut_off], last), Some(3_600_998));
        assert_eq!(estimate(&[], last), None);
    }

    /// A leader was suspended; the next one started with an older time. The first one's clock has gone on meanwhile.
    #[test]
    fn the_clock_of_a_deposed_leader_does_not_count() {
        let (deposed, follower) = (note(OLD, 17_834, 2_000), note(NEW, 9_700, 1_000));
        let last = Stamp { leader: NEW, moment: 9_600 };
        assert_eq!(estimate(&[deposed, follower], last), Some(10_698));
        assert_eq!(estimate(&[deposed], last), None, "the new leader's followers restarted");
        let nothing_since = Stamp { leader: OLD, moment: 9_600 };
        assert_eq!(estimate(&[deposed], nothing_since), Some(19_830));
    }

    /// A node that was cut off has a note from before the last entry, and everybody else has restarted.
    #[test]
    fn a_note_older_than_the_last_entry_does_not_count() {
        let last = Stamp { leader: OLD, moment: 5_000 };
        assert_eq!(estimate(&[note(OLD, 4_999, 600_000)], last), None);
        assert_eq!(estimate(&[note(OLD, 5_000, 500)], last), Some(5_499));
        assert_eq!(estimate(&[note(NEW, 4_000, 500)], last), Some(4_499), "it stamped nothing");
    }

    /// The wall clocks may be right, but the last leader's engine time was behind them.
    #[test]
    fn wall_clocks_count_only_in_a_new_cluster() {
        let walls = &mut [16_259, 16_263];
        assert_eq!(start(&[], walls, 3, Stamp::default()), 16_259);
        let last = Stamp { leader: OLD, moment: 15_008 };
        assert_eq!(start(&[], walls, 3, last), 15_008);
        assert_eq!(start(&[note(OLD, 15_100, 100)], walls, 3, last), 15_199);
        assert_eq!(start(&[note(NEW, 14_000, 100)], walls, 3, last), 15_008, "never backwards");
    }

    #[test]
    fn a_node_keeps_the_note_of_the_latest_leader() {
        let time = Time::new(codeq_engine::clock::SystemClock::new());
        time.note(NEW, 5_000);
        time.note(OLD, 9_000);
        time.note(NEW, 4_000);
        let noted = time.noted().map(|note| (note.leader, note.moment));
        assert_eq!(noted, Some((NEW, 5_000)));
        time.lead(OLD, 8_000);
        assert_eq!(time.noted().map(|note| note.leader), Some(OLD));
        time.follow();
        assert_eq!(time.noted().map(|note| (note.leader, note.moment)), Some((NEW, 5_000)));
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
