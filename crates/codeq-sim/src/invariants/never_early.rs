//! Invariant 8: delayed is never early.

use codeq_core::place::Place;

use super::{Histories, Rows, Violation};
use crate::ledger::{Back, NotBefore};

/// Rows: a delayed task has something to wait for, and only a delayed task has a delay left.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    for (seq, row) in &rows.tasks {
        let wrong = match row.place {
            Place::Delayed if row.visible_at == 0 => row.run_at == 0,
            Place::Delayed => row.visible_at <= row.made_at,
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

/// History: no claim before the date or the end of the delay that the producer or the last failure set. The date is
/// compared with the wall clock at the claim. A task that was cancelled while delayed and then replayed waits for its
/// date, but for no delay.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, history) in &histories.tasks {
        let mut say = |text: String| found.push(Violation::new(8, format!("task {id}: {text}")));
        let asked = history.created.as_ref().and_then(|created| created.wanted.not_before);
        if let Some(NotBefore::At(date)) = asked
            && let Some(early) = history.claims.iter().find(|claim| claim.seen.updated_at < date)
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
            {
                say(format!(
                    "it was returned at {at} with a delay of {delay} ms, but was claimed at {}",
                    early.at
                ));
            }
        }
    }
}
