//! Invariant 2: at most one live lease per task; only its owner acts on it, and only while it lasts.

use codeq_core::command::Millis;
use codeq_core::place::Place;

use super::{Claimed, Histories, Rows, TaskHistory, TaskOp, Verb, Violation};
use crate::ledger::{Answer, Outcome};

/// Rows: there are as many leases in memory as tasks in progress, and the state wakes up when the first of them ends.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    let running = rows.tasks.values().filter(|row| row.place == Place::InProgress);
    let ends: Vec<Millis> =
        running.filter_map(|row| row.lease.as_ref()).map(|lease| lease.until).collect();
    if ends.len() != rows.leases {
        let text = format!("{} tasks have a lease, {} leases are known", ends.len(), rows.leases);
        found.push(Violation::new(2, text));
    }
    if let Some(first) = ends.iter().min()
        && rows.next_deadline.is_none_or(|next| next > first.saturating_add(1))
    {
        let text =
            format!("a lease ends at {first}, the next sweep is at {:?}", rows.next_deadline);
        found.push(Violation::new(2, text));
    }
}

/// History: the leases of two claims do not overlap, no owner is refused before its lease ends, and only the owner acts on
/// the task, and only while its lease lasts.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, history) in &histories.tasks {
        let claims = history.by_fence();
        for pair in claims.windows(2) {
            if let [first, second] = pair
                && let Some(text) = overlap(history, first, second)
            {
                found.push(Violation::new(2, format!("task {id}: {text}")));
            }
        }
        for claim in &claims {
            for op in &history.ops {
                if let Some(text) = taken_away(histories, history, claim, op) {
                    found.push(Violation::new(2, format!("task {id}: {text}")));
                }
            }
        }
        for op in &history.ops {
            if let Some(text) =
                stranger(histories, history, op).or_else(|| late(histories, history, op))
            {
                found.push(Violation::new(2, format!("task {id}: {text}")));
            }
        }
    }
}

/// Two claims whose leases overlap although nobody returned the task in between.
fn overlap(history: &TaskHistory, first: &Claimed, second: &Claimed) -> Option<String> {
    if let (Some(low), Some(high)) = (first.seen.fence, second.seen.fence)
        && high > low.next()
    {
        return None; // An unanswered claim held it in between, and may have extended its lease.
    }
    let given_back =
        history.ops.iter().any(|op| op.ends_lease() && op.may_fall_in(first.invoked, second.done));
    let until = least_end(history, first, (second.invoked, second.done))?;
    (!given_back && second.at <= until).then(|| {
        format!(
            "{} claimed it at {} while {} held it until {until}",
            second.worker, second.at, first.worker
        )
    })
}

/// The owner is refused although its lease had not ended and nobody had returned the task.
fn taken_away(
    histories: &Histories,
    history: &TaskHistory,
    claim: &Claimed,
    op: &TaskOp,
) -> Option<String> {
    let Outcome::Refused { at, code } = &op.outcome else {
        return None;
    };
    let lost = matches!(code.as_str(), "not-in-progress" | "not-owner" | "not-found");
    let acts_on_lease = op.ends_lease() || op.verb == Verb::Heartbeat;
    let in_time = op.invoked > claim.done && op.tenant == claim.tenant;
    if !lost || !acts_on_lease || op.worker != claim.worker || !in_time {
        return None;
    }
    let superseded = history.claims.iter().any(|other| {
        other.invoked < op.done && other.done > claim.done && other.seen.fence > claim.seen.fence
    });
    let given_back = history
        .ops
        .iter()
        .any(|other| other.ends_lease() && other.may_fall_in(claim.invoked, op.done));
    let until = least_end(history, claim, (op.invoked, op.done))?;
    // The request may have been for a lease from an unanswered claim. `overlap` checks a claim in between.
    let unseen = histories.lost_claim(&claim.tenant, Some(&claim.worker), op.done);
    (!superseded && !given_back && !unseen && *at <= until)
        .then(|| format!("{} held it until {until} and was refused at {at} ({code})", claim.worker))
}

/// Someone acted on the task who certainly did not hold it.
fn stranger(histories: &Histories, history: &TaskHistory, op: &TaskOp) -> Option<String> {
    let (at, _) = op.acked()?;
    if !(op.ends_lease() || op.verb == Verb::Heartbeat) || is_repeat(history, op) {
        return None;
    }
    if histories.lost_claim(&op.tenant, Some(&op.worker), op.done) {
        return None;
    }
    let last = history
        .claims
        .iter()
        .filter(|claim| claim.done < op.invoked)
        .max_by_key(|claim| (claim.seen.fence, claim.done));
    let since = last.map_or(0, |claim| claim.invoked);
    let may_hold = history
        .claims
        .iter()
        .any(|claim| claim.worker == op.worker && claim.invoked < op.done && claim.done >= since);
    (!may_hold).then(|| {
        let holder = last.map_or("nobody", |claim| &claim.worker);
        format!("{} was allowed to {:?} at {at}, but {holder} held it", op.worker, op.verb)
    })
}

/// The owner acted on the task after its lease had certainly ended.
fn late(histories: &Histories, history: &TaskHistory, op: &TaskOp) -> Option<String> {
    let (at, _) = op.acked()?;
    if histories.lost_claim(&op.tenant, Some(&op.worker), op.done) {
        return None;
    }
    if !(op.ends_lease() || op.verb == Verb::Heartbeat) || is_repeat(history, op) {
        return None;
    }
    let claims = history.claims.iter().filter(|claim| claim.worker == op.worker);
    let ends = claims.filter_map(|claim| claim.seen.lease_until);
    let mine = |other: &&TaskOp| other.verb == Verb::Heartbeat && other.worker == op.worker;
    let beats = history.ops.iter().filter(mine);
    if beats.clone().any(|beat| beat.outcome == Outcome::Unknown) {
        return None;
    }
    let beaten = beats.filter(|beat| beat.invoked < op.invoked).filter_map(extended_to);
    let until = ends.chain(beaten).max()?;
    (at > until).then(|| {
        format!(
            "{} was allowed to {:?} at {at}, after its lease ended at {until}",
            op.worker, op.verb
        )
    })
}

/// Whether this submit repeats an earlier one of the same worker that may have succeeded.
fn is_repeat(history: &TaskHistory, op: &TaskOp) -> bool {
    matches!(op.verb, Verb::Submit(_))
        && history.ops.iter().any(|other| {
            other.verb == op.verb
                && other.worker == op.worker
                && other.possible()
                && other.invoked < op.invoked
        })
}

fn extended_to(beat: &TaskOp) -> Option<Millis> {
    match beat.acked()? {
        (_, Answer::Extended(until)) => Some(*until),
        _ => None,
    }
}

/// The earliest end that the claim's lease can have had when an event happened, which was between the two ticks of
/// `before`. `None` if a heartbeat without a known answer makes that uncertain: a heartbeat can also shorten a lease.
fn least_end(history: &TaskHistory, claim: &Claimed, before: (u64, u64)) -> Option<Millis> {
    let mut ends = vec![(claim.done, claim.seen.lease_until?)];
    let mut settled = claim.invoked;
    let beats = history.ops.iter().filter(|op| {
        op.verb == Verb::Heartbeat
            && op.worker == claim.worker
            && op.may_fall_in(claim.invoked, before.1)
    });
    for beat in beats {
        ends.push((beat.done, extended_to(beat)?));
        // Only a heartbeat that certainly belongs to this lease, and certainly came before, replaces earlier ends.
        if beat.invoked > claim.done && beat.done < before.0 {
            settled = settled.max(beat.invoked);
        }
    }
    ends.iter().filter(|(done, _)| *done >= settled).map(|(_, until)| *until).min()
}
