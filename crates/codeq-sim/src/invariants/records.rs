//! Invariant 15: no two records of a kind have the same name in one tenant, and a record disappears when it expires.

use std::collections::BTreeMap;

use codeq_core::keys::{self, TimerKind};

use super::{Rows, Violation};

/// Rows: the state in memory knows exactly the records that have a row, each has a timer exactly if it expires, and the
/// state wakes up for the first expiry.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    let mut say = |text: String| found.push(Violation::new(15, text));
    let mut by_name = BTreeMap::new();
    for (seq, row) in &rows.records {
        let name = (row.kind, row.tenant.clone(), row.name.clone());
        if let Some(other) = by_name.insert(name, (*seq, row.expires_at)) {
            say(format!("record {} of {} has rows {} and {seq}", row.name, row.tenant, other.0));
        }
        if *seq >= rows.next_seq || row.revision == 0 {
            say(format!("record {} of {} has impossible numbers", row.name, row.tenant));
        }
        let Some(at) = row.expires_at else {
            continue;
        };
        if !rows.timers.contains_key(&keys::timer(TimerKind::Record, at, *seq)) {
            say(format!("record {} of {} expires at {at} but has no timer", row.name, row.tenant));
        }
        if rows.next_deadline.is_none_or(|next| next > at) {
            let next = rows.next_deadline;
            say(format!("record {} of {} expires at {at}, not {next:?}", row.name, row.tenant));
        }
    }
    if by_name != rows.known_records || rows.record_count != rows.records.len() {
        say(format!(
            "{} records have rows, {} are known, {} are counted, or they are not the same",
            rows.records.len(),
            rows.known_records.len(),
            rows.record_count
        ));
    }
    for (_, deadline, seq, _) in rows.timers_of(TimerKind::Record) {
        if rows.records.get(&seq).and_then(|row| row.expires_at) != Some(deadline) {
            say(format!("number {seq} has a record timer at {deadline} but no record"));
        }
    }
}
