//! Invariant 8: a delayed task is never claimed early.

use codeq_core::place::Place;

use super::{Claimed, Histories, Rows, TaskHistory, TaskOp, Verb, Violation};
use crate::ledger::{Answer, Back, NotBefore};

/// Rows: a delayed task has something to wait for, and only a delayed task has a delay left.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    for (seq, row) in &rows.tasks {
        let wrong = match row.place {
            Place::Delayed if row.visible_at == 0 => row.run_at == 0,
            Place::Delayed => row.visible_at <= row.created_at_engine,
            _ => row.visible_at != 0,
        };
        if wrong {
            let text = format!(
                "{} is {:?}, delayed until {}, not before {}",
                rows.name(*seq),
                row.place,
                row.visible_at,
                row.run_at
            );
            found.push(Violation::new(8, text));
        }
    }
}

/// History: no claim before the date or the end of the delay that the producer, the last failure or the last reschedule
/// set. The date is compared with the wall clock at the claim. A task that was cancelled while delayed and then replayed
/// waits for its date, but for no delay.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, history) in &histories.tasks {
        let mut say = |text: String| found.push(Violation::new(8, format!("task {id}: {text}")));
        let asked = history.created.as_ref().and_then(|created| created.wanted.not_before);
        if let (Some(NotBefore::At(date)), Some(created)) = (asked, &history.created)
            && let Some(early) = history.claims.iter().find(|claim| claim.seen.updated_at < date)
            && !history.rescheduled_between(created.invoked, early.done)
        {
            let shown = early.seen.updated_at;
            say(format!(
                "it had to wait until {date}, but was claimed when the clock showed {shown}"
            ));
        }
        if let (Some(NotBefore::After(delay)), Some(created)) = (asked, &history.created)
            && let moment = created.at.saturating_add(delay)
            && let Some(early) = history.claims.iter().find(|claim| claim.at < moment)
            && !histories.replayed_between(history, created.invoked, early.done)
            && !history.rescheduled_between(created.invoked, early.done)
        {
            say(format!("it had to wait until {moment}, but was claimed at {}", early.at));
        }
        for op in &history.ops {
            let Some((at, Back::Requeued(delay))) = op.returned() else {
                continue;
            };
            let moment = at.saturating_add(delay);
            let early =
                history.claims.iter().find(|claim| claim.invoked > op.done && claim.at < moment);
            if let Some(early) = early
                && !histories.replayed_between(history, op.invoked, early.done)
                && !history.rescheduled_between(op.invoked, early.done)
            {
                say(format!(
                    "it was returned at {at} with a delay of {delay} ms, but was claimed at {}",
                    early.at
                ));
            }
        }
        check_rescheduled(histories, history, &mut say);
    }
}

/// No claim before the moment that an answered reschedule set, unless another one or a replay came in between.
fn check_rescheduled(histories: &Histories, history: &TaskHistory, say: &mut impl FnMut(String)) {
    for op in &history.ops {
        let (Verb::Reschedule(Some(when)), Some((at, Answer::Task(seen)))) = (op.verb, op.acked())
        else {
            continue;
        };
        // A task that stays claimable keeps its old date.
        if seen.visible_at.is_none() {
            continue;
        }
        let is_early = |claim: &&Claimed| match when {
            NotBefore::At(date) => claim.seen.updated_at < date,
            NotBefore::After(delay) => claim.at < at.saturating_add(delay),
        };
        let later = history.claims.iter().filter(|claim| claim.invoked > op.done);
        if let Some(early) = later.into_iter().find(is_early)
            && !histories.replayed_between(history, op.invoked, early.done)
            && !again(history, op, early.done)
        {
            say(format!("it was rescheduled at {at} for {when:?}, but claimed at {}", early.at));
        }
    }
}

/// Whether another reschedule of the task may have happened after this one.
fn again(history: &TaskHistory, one: &TaskOp, until: u64) -> bool {
    history.ops.iter().any(|op| {
        !std::ptr::eq(op, one)
            && matches!(op.verb, Verb::Reschedule(_))
            && op.may_fall_in(one.invoked, until)
    })
}
