//! Invariant 16: no lease outlives the maximum run time of its task.

use codeq_core::command::Millis;
use codeq_core::place::Place;

use super::{Histories, Rows, TaskHistory, TaskOp, Verb, Violation};
use crate::ledger::Answer;

/// Rows: only a running attempt has a limit, it is the task's own if the task has one, and the
/// lease does not end after it.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    for (seq, row) in &rows.tasks {
        let running = row.place == Place::InProgress;
        let lease_end = row.lease.as_ref().map_or(0, |lease| lease.until);
        let wrong = (row.run_until > 0) != (row.run_limit > 0)
            || (row.run_until > 0 && !running)
            || (row.run_until > 0 && lease_end > row.run_until)
            || (running && row.max_run > 0 && row.run_limit != row.max_run);
        if wrong {
            let text = format!(
                "{} is {:?} and may run for {} ms: this attempt for {} ms until {}, its lease until {lease_end}",
                rows.name(*seq),
                row.place,
                row.max_run,
                row.run_limit,
                row.run_until
            );
            found.push(Violation::new(16, text));
        }
    }
}

/// History: a claim names the limit, and its lease does not end after it; no heartbeat extends beyond it; nobody acts after
/// it.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, history) in &histories.tasks {
        let mut say = |text: String| found.push(Violation::new(16, format!("task {id}: {text}")));
        let own = history.created.as_ref().and_then(|created| created.wanted.max_run);
        for claim in &history.claims {
            let limit = claim.seen.run_until;
            if let Some(own) = own
                && limit != Some(claim.at.saturating_add(own))
            {
                let at = claim.at;
                say(format!("claimed at {at} for at most {own} ms, it may run until {limit:?}"));
            }
            if let (Some(limit), Some(until)) = (limit, claim.seen.lease_until)
                && until > limit
            {
                say(format!("it may run until {limit}, but was leased until {until}"));
            }
        }
        for op in &history.ops {
            let Some(limit) = limit_of(histories, history, op) else { continue };
            match op.acked() {
                Some((at, _)) if at > limit => {
                    let (worker, verb) = (&op.worker, op.verb);
                    say(format!("{worker} was allowed to {verb:?} at {at}, after {limit}"));
                }
                Some((_, Answer::Extended(until))) if *until > limit => {
                    say(format!("it may run until {limit}, but a heartbeat got {until}"));
                }
                _ => {}
            }
        }
    }
}

/// The latest `run_until` among the worker's claims under which it may have acted; `None` if one of them has no limit, or a
/// claim may be missing.
fn limit_of(histories: &Histories, history: &TaskHistory, op: &TaskOp) -> Option<Millis> {
    let under_lease = op.ends_lease() || op.verb == Verb::Heartbeat;
    // A repeated submit is answered at any time.
    let repeats = matches!(op.verb, Verb::Submit(_))
        && history.ops.iter().any(|other| {
            other.invoked < op.invoked && other.verb == op.verb && other.worker == op.worker
        });
    if !under_lease || repeats || histories.lost_claim(&op.tenant, Some(&op.worker), op.done) {
        return None;
    }
    let claims = history.claims.iter();
    let claims = claims.filter(|claim| claim.worker == op.worker && claim.invoked < op.done);
    let mut latest = None;
    for claim in claims {
        latest = latest.max(Some(claim.seen.run_until?));
    }
    latest
}
