//! Invariant 7: attempts grow by one, and a task is dead-lettered exactly at its limit.

use codeq_core::place::Place;

use super::{Claimed, Histories, Rows, TaskHistory, TaskOp, Verb, Violation};
use crate::ledger::Back;

/// Rows: a task that can still run has attempts left, a dead letter has none.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    for (seq, row) in &rows.tasks {
        let spent = row.attempts >= row.max_attempts;
        let wrong = match row.place {
            Place::Pending | Place::Delayed | Place::InProgress => spent,
            Place::Dead => row.attempts != row.max_attempts,
            Place::Completed | Place::Failed => row.attempts > row.max_attempts,
        };
        if wrong {
            let text = format!(
                "{} is {:?} after {} of {} attempts",
                rows.name(*seq),
                row.place,
                row.attempts,
                row.max_attempts
            );
            found.push(Violation::new(7, text));
        }
    }
}

/// History: from claim to claim, attempts grow by one for each failure, and a task that its worker returned is
/// dead-lettered exactly at its limit.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, history) in &histories.tasks {
        let mut say = |text: String| found.push(Violation::new(7, format!("task {id}: {text}")));
        let ceiling = history.created.as_ref().map(|created| created.seen.max_attempts);
        let claims = history.by_fence();
        for claim in &claims {
            let max = ceiling.unwrap_or(claim.seen.max_attempts);
            if claim.seen.attempts >= max {
                say(format!("it was claimed after {} of {max} attempts", claim.seen.attempts));
            }
        }
        for pair in claims.windows(2) {
            if let [first, second] = pair
                && let Some(text) = wrong_step(histories, history, first, second)
            {
                say(text);
            }
        }
        for op in &history.ops {
            let Some((_, back)) = op.returned() else {
                continue;
            };
            let Some(claim) = holder(histories, history, &claims, op) else {
                continue;
            };
            let max = ceiling.unwrap_or(claim.seen.max_attempts);
            let spends = op.verb != Verb::Abandon(false);
            let after = claim.seen.attempts + u32::from(spends);
            let right = match back {
                Back::Dead => spends && after >= max,
                Back::Requeued(_) => after < max,
                Back::Cancelled => true,
            };
            if !right {
                say(format!("{:?} after {after} of {max} attempts resulted in {back:?}", op.verb));
            }
        }
        if let Some(listed) = histories.listed.get(id)
            && let Some(max) = ceiling
        {
            let spent = listed.task.attempts >= max;
            let live = matches!(listed.task.status.as_str(), "PENDING" | "IN_PROGRESS");
            if (listed.dead && listed.task.attempts != max) || (live && spent) {
                say(format!(
                    "at the end it is {} (dead-lettered: {}) after {} of {max} attempts",
                    listed.task.status, listed.dead, listed.task.attempts
                ));
            }
        }
    }
}

/// The claim under which a worker acted, if that is certain.
fn holder<'a>(
    histories: &Histories,
    history: &TaskHistory,
    claims: &[&'a Claimed],
    op: &TaskOp,
) -> Option<&'a Claimed> {
    let last = claims.iter().rev().find(|claim| claim.invoked < op.done)?;
    let ended = history.ops.iter().any(|other| {
        other.ends_lease() && other.invoked != op.invoked && other.may_fall_in(last.done, op.done)
    });
    let unseen = histories.lost_claim(&op.tenant, Some(&op.worker), op.done);
    let certain = last.worker == op.worker && last.done < op.invoked && !ended && !unseen;
    certain.then_some(last)
}

/// Two consecutive claims (by fence) between which the attempts did not change as required.
fn wrong_step(
    histories: &Histories,
    history: &TaskHistory,
    first: &Claimed,
    second: &Claimed,
) -> Option<String> {
    let (low, high) = (first.seen.fence?, second.seen.fence?);
    if high != low.next() {
        return None; // An unanswered claim came in between.
    }
    let between = || history.ops.iter().filter(|op| op.may_fall_in(first.invoked, second.done));
    let replayed = histories.replayed_between(history, first.invoked, second.done);
    let released = |certain: bool| {
        between().any(|op| {
            op.verb == Verb::Abandon(false)
                && (!certain || (op.invoked > first.done && op.done < second.invoked))
        })
    };
    let (before, after) = (first.seen.attempts, second.seen.attempts);
    let fine = (after == before + 1 && !released(true))
        || (after == before && released(false))
        || (after == 0 && replayed);
    (!fine)
        .then(|| format!("attempts went from {before} to {after} between fences {low} and {high}"))
}
