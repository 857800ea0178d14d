//! Invariant 13: fences grow.

use codeq_core::command::Fence;
use codeq_core::history::Event;
use codeq_core::place::Place;

use super::{Histories, Rows, Violation};

/// Rows: a task in progress has been claimed, and a task was claimed at least as often as its history shows.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    for (seq, row) in &rows.tasks {
        let entries = row.history.entries();
        let claims = entries.iter().filter(|entry| entry.event == Event::Claimed).count();
        let claims = Fence(claims as u64);
        let exact = row.history.dropped() == 0;
        let wrong = if exact { claims != row.fence } else { claims > row.fence };
        if wrong || (row.place == Place::InProgress && row.fence == Fence(0)) {
            let text = format!(
                "{} has fence {} and {claims} claims in its history",
                rows.name(*seq),
                row.fence
            );
            found.push(Violation::new(13, text));
        }
    }
}

/// History: of two claims of a task, the later one has the higher fence.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, history) in &histories.tasks {
        for earlier in &history.claims {
            for later in &history.claims {
                let (Some(low), Some(high)) = (earlier.seen.fence, later.seen.fence) else {
                    continue;
                };
                if earlier.done < later.invoked && high <= low {
                    let text = format!(
                        "task {id} was claimed by {} with fence {low} and later by {} with fence {high}",
                        earlier.worker, later.worker
                    );
                    found.push(Violation::new(13, text));
                }
            }
        }
    }
}
