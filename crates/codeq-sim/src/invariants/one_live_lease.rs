//! Invariant 2: at most one live lease per task; and only its owner acts on it, while it lasts.

use codeq_core::command::Millis;
use codeq_core::place::Place;

use super::{Claimed, Deed, Histories, Rows, Story, Verb, Violation};
use crate::ledger::{Answer, Outcome};

/// Over the rows: the leases in memory are the tasks in progress, and the state wakes up for the first end.
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

/// Over the history.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, story) in &histories.stories {
        let claims = story.by_fence();
        for pair in claims.windows(2) {
            if let [first, second] = pair
                && let Some(text) = overlap(story, first, second)
            {
                found.push(Violation::new(2, format!("task {id}: {text}")));
            }
        }
        for claim in &claims {
            for deed in &story.deeds {
                if let Some(text) = taken_away(histories, story, claim, deed) {
                    found.push(Violation::new(2, format!("task {id}: {text}")));
                }
            }
        }
        for deed in &story.deeds {
            if let Some(text) =
                stranger(histories, story, deed).or_else(|| late(histories, story, deed))
            {
                found.push(Violation::new(2, format!("task {id}: {text}")));
            }
        }
    }
}

/// Two claims whose leases overlap, with nobody having given the task back in between.
fn overlap(story: &Story, first: &Claimed, second: &Claimed) -> Option<String> {
    if let (Some(low), Some(high)) = (first.seen.fence, second.seen.fence)
        && high > low + 1
    {
        return None; // Somebody held it in between without hearing of it, and may have extended that.
    }
    let given_back = story
        .deeds
        .iter()
        .any(|deed| deed.ends_lease() && deed.may_fall_in(first.invoked, second.done));
    let until = least_end(story, first, (second.invoked, second.done))?;
    (!given_back && second.at <= until).then(|| {
        format!(
            "{} claimed it at {} while {} held it until {until}",
            second.worker, second.at, first.worker
        )
    })
}

/// The owner is refused although its lease had not ended and nobody had given the task back.
fn taken_away(
    histories: &Histories,
    story: &Story,
    claim: &Claimed,
    deed: &Deed,
) -> Option<String> {
    let Outcome::Refused { at, code } = &deed.outcome else {
        return None;
    };
    let lost = matches!(code.as_str(), "not-in-progress" | "not-owner" | "not-found");
    let worker_deed = deed.ends_lease() || deed.verb == Verb::Heartbeat;
    let in_time = deed.invoked > claim.done && deed.tenant == claim.tenant;
    if !lost || !worker_deed || deed.worker != claim.worker || !in_time {
        return None;
    }
    let superseded = story.claims.iter().any(|other| {
        other.invoked < deed.done && other.done > claim.done && other.seen.fence > claim.seen.fence
    });
    let given_back = story
        .deeds
        .iter()
        .any(|other| other.ends_lease() && other.may_fall_in(claim.invoked, deed.done));
    let until = least_end(story, claim, (deed.invoked, deed.done))?;
    // A heartbeat may have been for a lease that nobody heard of. A claim that came in between is the case
    // of `overlap`.
    let unseen = histories.lost_claim(&claim.tenant, Some(&claim.worker), deed.done);
    (!superseded && !given_back && !unseen && *at <= until)
        .then(|| format!("{} held it until {until} and was refused at {at} ({code})", claim.worker))
}

/// Somebody acted on the task who certainly did not hold it.
fn stranger(histories: &Histories, story: &Story, deed: &Deed) -> Option<String> {
    let (at, _) = deed.acked()?;
    if !(deed.ends_lease() || deed.verb == Verb::Heartbeat) || is_repeat(story, deed) {
        return None;
    }
    if histories.lost_claim(&deed.tenant, Some(&deed.worker), deed.done) {
        return None;
    }
    let last = story
        .claims
        .iter()
        .filter(|claim| claim.done < deed.invoked)
        .max_by_key(|claim| (claim.seen.fence, claim.done));
    let since = last.map_or(0, |claim| claim.invoked);
    let may_hold = story.claims.iter().any(|claim| {
        claim.worker == deed.worker && claim.invoked < deed.done && claim.done >= since
    });
    (!may_hold).then(|| {
        let holder = last.map_or("nobody", |claim| &claim.worker);
        format!("{} was let to {:?} at {at}, but {holder} had it", deed.worker, deed.verb)
    })
}

/// The owner acted on the task after its lease had certainly ended.
fn late(histories: &Histories, story: &Story, deed: &Deed) -> Option<String> {
    let (at, _) = deed.acked()?;
    if histories.lost_claim(&deed.tenant, Some(&deed.worker), deed.done) {
        return None;
    }
    if !(deed.ends_lease() || deed.verb == Verb::Heartbeat) || is_repeat(story, deed) {
        return None;
    }
    let claims = story.claims.iter().filter(|claim| claim.worker == deed.worker);
    let ends = claims.filter_map(|claim| claim.seen.lease_until);
    let mine = |other: &&Deed| other.verb == Verb::Heartbeat && other.worker == deed.worker;
    let beats = story.deeds.iter().filter(mine);
    if beats.clone().any(|beat| beat.outcome == Outcome::Unknown) {
        return None;
    }
    let beaten = beats.filter(|beat| beat.invoked < deed.invoked).filter_map(extended_to);
    let until = ends.chain(beaten).max()?;
    (at > until).then(|| {
        format!(
            "{} was let to {:?} at {at}, after its lease ended at {until}",
            deed.worker, deed.verb
        )
    })
}

/// A submit that repeats one of the same worker, which may have been done.
fn is_repeat(story: &Story, deed: &Deed) -> bool {
    matches!(deed.verb, Verb::Submit(_))
        && story.deeds.iter().any(|other| {
            other.verb == deed.verb
                && other.worker == deed.worker
                && other.possible()
                && other.invoked < deed.invoked
        })
}

fn extended_to(beat: &Deed) -> Option<Millis> {
    match beat.acked()? {
        (_, Answer::Extended(until)) => Some(*until),
        _ => None,
    }
}

/// The earliest moment at which the lease can have ended by itself, before something that happened between
/// the ticks `before`. None if a heartbeat of unknown outcome leaves it open: a heartbeat may also shorten
/// a lease.
fn least_end(story: &Story, claim: &Claimed, before: (u64, u64)) -> Option<Millis> {
    let mut ends = vec![(claim.done, claim.seen.lease_until?)];
    let mut settled = claim.invoked;
    let beats = story.deeds.iter().filter(|deed| {
        deed.verb == Verb::Heartbeat
            && deed.worker == claim.worker
            && deed.may_fall_in(claim.invoked, before.1)
    });
    for beat in beats {
        ends.push((beat.done, extended_to(beat)?));
        // Only one that is certainly of this lease, and certainly before, can have replaced others.
        if beat.invoked > claim.done && beat.done < before.0 {
            settled = settled.max(beat.invoked);
        }
    }
    ends.iter().filter(|(done, _)| *done >= settled).map(|(_, until)| *until).min()
}
