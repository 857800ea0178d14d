//! Invariant 9: retention never removes a live task.

use codeq_core::keys::TimerKind;

use super::{Histories, Rows, TaskHistory, Verb, Violation};
use crate::ledger::Answer;

/// Rows: only finished tasks have a retention timer, none is due before its task was created, and the state in memory
/// wakes up for the earliest deadline of every kind.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    let mut say = |text: String| found.push(Violation::new(9, text));
    for (_, deadline, seq, _) in rows.timers_of(TimerKind::Retention) {
        let Some(row) = rows.tasks.get(&seq) else {
            continue; // Reported by `one_place`.
        };
        if !row.place.is_terminal() {
            say(format!("{} is {:?} and would be removed", rows.name(seq), row.place));
        }
        if row.created_at_engine > deadline {
            say(format!("{} would be removed before its creation", rows.name(seq)));
        }
    }
    let kinds =
        [TimerKind::Delayed, TimerKind::Retention, TimerKind::Idempotency, TimerKind::Record];
    for kind in kinds {
        let first = rows.timers_of(kind).map(|(_, deadline, _, _)| deadline).min();
        if let Some(first) = first
            && rows.next_deadline.is_none_or(|next| next > first)
        {
            say(format!(
                "a {kind:?} timer is due at {first}, the next sweep is at {:?}",
                rows.next_deadline
            ));
        }
    }
    let first = rows.timers_of(TimerKind::RunAt).map(|(_, date, _, _)| date).min();
    if rows.next_run_at != first {
        say(format!(
            "the first date is {first:?}, the next sweep waits for {:?}",
            rows.next_run_at
        ));
    }
}

/// History: a removed task was finished for at least the shortest retention, or somebody requested its removal.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    let Some(end) = &histories.end else { return };
    for (id, history) in &histories.tasks {
        let Some(created) = &history.created else {
            continue;
        };
        if histories.listed.contains_key(id) || removal_asked_for(histories, history) {
            continue;
        }
        let alive = last_sign_of_life(history).max(created.at);
        if end.at < alive.saturating_add(end.retention) {
            let text = format!(
                "task {id} of tenant {} is gone at {}, but was alive at {alive}, less than the retention \
                 of {} ms before",
                created.tenant, end.at, end.retention
            );
            found.push(Violation::new(9, text));
        }
    }
}

/// Whether the task may have been removed on request.
pub(super) fn removal_asked_for(histories: &Histories, history: &TaskHistory) -> bool {
    let Some(created) = &history.created else {
        return false;
    };
    let cleaned = histories
        .cleanups
        .iter()
        .any(|(tenant, asked)| *tenant == created.tenant && *asked > created.invoked);
    cleaned || histories.bulk_between(&created.seen, Verb::PurgeDead, created.invoked, u64::MAX)
}

/// The latest time, by the server's clock, at which the task was certainly not finished.
fn last_sign_of_life(history: &TaskHistory) -> u64 {
    let claimed = history.claims.iter().map(|claim| claim.at);
    let extended = history.ops.iter().filter_map(|op| match op.acked()? {
        (at, Answer::Extended(_)) => Some(at),
        (at, _) if op.verb == Verb::Replay => Some(at),
        _ => None,
    });
    claimed.chain(extended).max().unwrap_or(0)
}
