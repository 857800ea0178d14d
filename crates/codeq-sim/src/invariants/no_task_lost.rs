//! Invariant 1: no acknowledged task is lost.

use super::{Histories, Violation, retention};

/// History: every acknowledged task is still listed at the end, or was finished and removed, by retention or on
/// request. A task whose finish nobody saw counts as lost as long as retention cannot have removed it.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    let Some(end) = &histories.end else { return };
    for (id, history) in &histories.tasks {
        let Some(created) = &history.created else {
            continue;
        };
        let Some(listed) = histories.listed.get(id) else {
            let young = end.at < created.at.saturating_add(end.retention);
            if young && !retention::removal_asked_for(histories, history) {
                let text = format!(
                    "task {id} ({} of tenant {}), acknowledged at {}, does not exist at {}",
                    created.wanted.command, created.tenant, created.at, end.at
                );
                found.push(Violation::new(1, text));
            }
            continue;
        };
        if listed.task.payload != created.wanted.payload
            || listed.task.command != created.wanted.command
        {
            let text = format!("task {id} no longer has the content that its producer sent");
            found.push(Violation::new(1, text));
        }
    }
}
