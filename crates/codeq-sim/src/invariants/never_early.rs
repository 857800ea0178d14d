//! Invariant 8: delayed is never early.

use codeq_core::place::Place;

use super::{Histories, Rows, Violation};
use crate::ledger::{Back, NotBefore};

/// Over the rows: a delayed task has something to wait for, and only a delayed one has a delay left.
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

/// Over the history: no claim before the date or the end of the delay that its producer, or its last failure,
/// had set. The date is that of the wall clock at the claim. A task that was cancelled while it was delayed and
/// then replayed waits for its date, but for no delay.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, story) in &histories.stories {
        let mut say = |text: String| found.push(Violation::new(8, format!("task {id}: {text}")));
        let asked = story.created.as_ref().and_then(|created| created.wanted.not_before);
        if let Some(NotBefore::At(date)) = asked
            && let Some(early) = story.claims.iter().find(|claim| claim.seen.updated_at < date)
        {
            let shown = early.seen.updated_at;
            say(format!("it was to wait until {date} and was claimed when it was {shown}"));
        }
        if let (Some(NotBefore::After(delay)), Some(created)) = (asked, &story.created)
            && let moment = created.at.saturating_add(delay)
            && let Some(early) = story.claims.iter().find(|claim| claim.at < moment)
            && !histories.replayed_between(story, created.invoked, early.done)
        {
            say(format!("it was to wait until {moment} and was claimed at {}", early.at));
        }
        for deed in &story.deeds {
            let Some((at, Back::Requeued(delay))) = deed.returned() else {
                continue;
            };
            let moment = at.saturating_add(delay);
            let early =
                story.claims.iter().find(|claim| claim.invoked > deed.done && claim.at < moment);
            if let Some(early) = early
                && !histories.replayed_between(story, deed.invoked, early.done)
            {
                say(format!(
                    "it was given back at {at} for {delay} ms and was claimed at {}",
                    early.at
                ));
            }
        }
    }
}
