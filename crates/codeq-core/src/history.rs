//! A task's history: its transitions, kept in its row and bounded.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::codec::{self, as_bytes};
use crate::limits::{HISTORY_MAX, HISTORY_REASON_BYTES_MAX, WORKER_BYTES_MAX};
use crate::moment::Millis;
use crate::place::Place;

/// What caused a transition. The order is part of the on-disk format: add at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Event {
    /// A producer created it.
    Created,
    /// A worker claimed it.
    Claimed,
    /// Its worker finished it.
    Submitted,
    /// Its worker returned it as failed.
    Nacked,
    /// Its worker returned it, at the cost of an attempt.
    Abandoned,
    /// Its worker returned it, at no cost.
    Released,
    /// Its lease ended.
    LeaseExpired,
    /// Its delay ended.
    Due,
    /// Its worker was asked to stop.
    CancelRequested,
    /// It was cancelled.
    Cancelled,
    /// It was requeued after being dead-lettered, failed or cancelled.
    Replayed,
    /// Retention, cleanup or purge removed it.
    Removed,
    /// The wall clock was set back to before the task's `runAt`.
    Postponed,
    /// Its priority or delay was changed.
    Rescheduled,
    /// It ran for its maximum run time.
    TimedOut,
}

impl Event {
    /// Every event, in the order of the variants.
    pub const ALL: [Event; 15] = [
        Event::Created,
        Event::Claimed,
        Event::Submitted,
        Event::Nacked,
        Event::Abandoned,
        Event::Released,
        Event::LeaseExpired,
        Event::Due,
        Event::CancelRequested,
        Event::Cancelled,
        Event::Replayed,
        Event::Removed,
        Event::Postponed,
        Event::Rescheduled,
        Event::TimedOut,
    ];

    /// The text used in wire formats.
    pub fn as_str(self) -> &'static str {
        match self {
            Event::Created => "created",
            Event::Claimed => "claimed",
            Event::Submitted => "submitted",
            Event::Nacked => "nacked",
            Event::Abandoned => "abandoned",
            Event::Released => "released",
            Event::LeaseExpired => "lease_expired",
            Event::Due => "due",
            Event::CancelRequested => "cancel_requested",
            Event::Cancelled => "cancelled",
            Event::Replayed => "replayed",
            Event::Removed => "removed",
            Event::Postponed => "postponed",
            Event::Rescheduled => "rescheduled",
            Event::TimedOut => "timed_out",
        }
    }
}

/// One transition of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Wall-clock time.
    pub at: Millis,
    /// What happened.
    pub event: Event,
    /// The place the task moved to.
    pub to: Place,
    /// Who caused it; `None` for the server itself.
    pub who: Option<Arc<str>>,
    /// The reason given.
    pub why: Option<Arc<str>>,
}

/// The transitions of one task, oldest first, kept encoded so that appending one does not decode the others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct History {
    #[serde(serialize_with = "as_bytes", deserialize_with = "from_bytes")]
    entries: Vec<u8>,
    len: u16,
    dropped: u32,
}

impl History {
    /// Appends a transition. Beyond the bound, the second-oldest is dropped; the first is always kept.
    pub(crate) fn push(&mut self, entry: Entry) {
        let entry = Entry {
            who: entry.who.map(|who| shorten(who, WORKER_BYTES_MAX)),
            why: entry.why.map(|why| shorten(why, HISTORY_REASON_BYTES_MAX)),
            ..entry
        };
        if self.len >= HISTORY_MAX {
            let mut entries = self.entries();
            if entries.len() > 1 {
                entries.remove(1);
            }
            self.entries.clear();
            self.len = 0;
            self.dropped = self.dropped.saturating_add(1);
            entries.iter().for_each(|old| self.append(old));
        }
        self.append(&entry);
    }

    fn append(&mut self, entry: &Entry) {
        codec::append(entry, &mut self.entries);
        self.len = self.len.saturating_add(1);
    }

    /// The transitions, oldest first.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(usize::from(self.len));
        let mut rest: &[u8] = &self.entries;
        while !rest.is_empty() {
            match postcard::take_from_bytes(rest) {
                Ok((entry, tail)) => {
                    entries.push(entry);
                    rest = tail;
                }
                Err(_) => break,
            }
        }
        entries
    }

    /// The worker that made the latest claim; `None` if no claim is among the kept transitions.
    pub fn last_worker(&self) -> Option<Arc<str>> {
        let entries = self.entries();
        let claim = entries.into_iter().rev().find(|entry| entry.event == Event::Claimed);
        claim.and_then(|entry| entry.who)
    }

    /// How many transitions after the first were dropped to make room.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }
}

/// Reads the entries in one piece, with room for one more. Serde's default reads the same bytes one at a time.
fn from_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    const ROOM: usize = 48;
    let stored = <&[u8]>::deserialize(deserializer)?;
    let mut entries = Vec::with_capacity(stored.len() + ROOM);
    entries.extend_from_slice(stored);
    Ok(entries)
}

fn shorten(text: Arc<str>, max: usize) -> Arc<str> {
    if text.len() <= max { text } else { crate::names::cut(&text, max).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: Millis) -> Entry {
        Entry { at, event: Event::Claimed, to: Place::InProgress, who: Some("w".into()), why: None }
    }

    #[test]
    fn keeps_the_first_and_the_latest() {
        let mut history = History::default();
        for at in 0..200 {
            history.push(entry(at));
        }
        let entries = history.entries();
        assert_eq!(entries.len(), usize::from(HISTORY_MAX));
        assert_eq!(entries[0].at, 0);
        assert_eq!(entries[1].at, 200 - u64::from(HISTORY_MAX) + 1);
        assert_eq!(entries.last().map(|e| e.at), Some(199));
        assert_eq!(history.dropped(), 200 - u32::from(HISTORY_MAX));
    }

    #[test]
    fn long_reasons_are_cut() {
        let mut history = History::default();
        history.push(Entry { why: Some("é".repeat(1_000).into()), ..entry(1) });
        let why = history.entries()[0].why.clone().unwrap();
        assert!(why.len() <= HISTORY_REASON_BYTES_MAX && why.chars().all(|c| c == 'é'));
    }
}
