//! Invariant 4: first in, first out per (tenant, command, priority, shard); higher priorities first.

use std::collections::BTreeMap;

use codeq_core::names::queue_name;

use super::{Claimed, Histories, Rows, Story, Verb, Violation};
use crate::ledger::{Back, NotBefore, Seen};

/// Over the rows: the order of a task that was never given back is its number, no order is used twice, and
/// the state in memory serves a queue exactly if it has a waiting task and may be claimed from.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    let mut say = |text: String| found.push(Violation::new(4, text));
    let mut orders = BTreeMap::new();
    for (key, seq) in &rows.pending {
        let (_, _, order) = codeq_core::keys::pending_parts(*key);
        if let Some(other) = orders.insert(order, *seq) {
            say(format!("{} and task number {other} are in the same position", rows.name(*seq)));
        }
        if order < *seq {
            say(format!("{} is ahead of its own number in the order", rows.name(*seq)));
        }
    }
    for (id, queue) in &rows.queues {
        let limit = queue.topic.as_ref().map_or(0, |topic| topic.policy.max_consumers);
        let full = limit != 0 && queue.counts.in_progress >= u64::from(limit);
        let waiting = queue.counts.ready() > 0;
        let expected = waiting && !queue.paused && !full;
        if expected != rows.claimable.contains(id) {
            say(format!(
                "queue {} of tenant {} has waiting tasks: {waiting}, paused: {}, full: {full}, and a head \
                 in memory: {}",
                queue.name,
                queue.tenant,
                queue.paused,
                rows.claimable.contains(id)
            ));
        }
    }
}

/// A stretch of time in which a task waited, as far as clients can be sure of it.
struct Wait<'a> {
    task: String,
    story: &'a Story,
    priority: u8,
    /// It entered the queue between these ticks.
    from: (u64, u64),
    /// The claim that took it: between these ticks. None if nobody did.
    claim: Option<(u64, u64)>,
}

/// Over the history: of two tasks that waited in one lane, the one that certainly came first is not claimed
/// certainly after the other; and none of a lower priority is claimed while a higher one certainly waits.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    let mut queues: BTreeMap<(String, String, u16), Vec<Wait<'_>>> = BTreeMap::new();
    for (id, story) in &histories.stories {
        let Some(seen) = story.seen() else { continue };
        // One that has a date, or may have, is taken out of line when the wall clock is set back.
        let Some(created) = story.created.as_ref() else { continue };
        if matches!(created.wanted.not_before, Some(NotBefore::At(_))) {
            continue;
        }
        let shard = created.shard;
        let queue = (seen.tenant.clone(), queue_name(&seen.command).into_owned(), shard);
        let waits = queues.entry(queue).or_default();
        let starts = starts(story);
        for (at, start) in starts.iter().enumerate() {
            // The first claim that can end this wait and not one of a later start.
            let next = starts.get(at + 1).map_or(u64::MAX, |next| next.1);
            let claim = story
                .claims
                .iter()
                .filter(|claim| claim.done > start.0 && claim.invoked < next)
                .map(|claim| (claim.invoked, claim.done))
                .min();
            waits.push(Wait {
                task: id.to_string(),
                story,
                priority: seen.priority,
                from: *start,
                claim,
            });
        }
    }
    for ((tenant, command, shard), waits) in &queues {
        for later in waits {
            // A claim at the same time as the start may have come before it.
            let claim = later.claim.filter(|(invoked, _)| *invoked > later.from.1);
            let Some(claim) = claim else { continue };
            for earlier in waits {
                if !overtaken(histories, earlier, later, claim) {
                    continue;
                }
                let text = format!(
                    "task {} (priority {}) was claimed before task {} (priority {}), which came first to \
                     {command} of tenant {tenant}, shard {shard}",
                    later.task, later.priority, earlier.task, earlier.priority
                );
                found.push(Violation::new(4, text));
            }
        }
    }
}

/// Whether `earlier` certainly waited, ahead of `later`, during the whole of the claim that took `later`.
fn overtaken(
    histories: &Histories,
    earlier: &Wait<'_>,
    later: &Wait<'_>,
    claim: (u64, u64),
) -> bool {
    let (invoked, done) = claim;
    let ahead = if earlier.priority == later.priority {
        earlier.from.1 < later.from.0
    } else {
        earlier.priority > later.priority && earlier.from.1 < invoked
    };
    if !ahead || earlier.from.1 >= invoked || earlier.claim.is_some_and(|(begun, _)| begun <= done)
    {
        return false;
    }
    // Nobody may have taken it out of the queue in another way, or taken it without our knowledge.
    let removed = earlier.story.deeds.iter().any(|deed| deed.may_fall_in(earlier.from.0, done));
    let Some(seen) = earlier.story.seen() else {
        return false;
    };
    let purged = histories.bulk_between(seen, Verb::PurgeWaiting, earlier.from.0, done);
    !removed && !purged && !taken_unseen(histories, earlier, seen, done)
}

/// Whether a claim that nobody was told of may have taken the task while it waited. Its fence tells; where
/// fences are not shown, any claim without an answer counts.
fn taken_unseen(histories: &Histories, wait: &Wait<'_>, seen: &Seen, done: u64) -> bool {
    let fence = |claim: &&Claimed| claim.seen.fence;
    let before = wait.story.claims.iter().filter(|claim| claim.done <= wait.from.1);
    let known = before.filter_map(|claim| fence(&claim)).max().unwrap_or(0);
    let next = match wait.claim {
        Some((invoked, _)) => {
            let mut after = wait.story.claims.iter().filter(|claim| claim.invoked == invoked);
            after.find_map(|claim| fence(&claim)).map(|fence| fence.saturating_sub(1))
        }
        None => histories.listed.get(&seen.id).and_then(|listed| listed.task.fence),
    };
    match next {
        Some(next) => next != known,
        None => seen.fence.is_some() || histories.lost_claim(&seen.tenant, None, done),
    }
}

/// The moments (as pairs of ticks) at which the task certainly entered the queue as claimable.
fn starts(story: &Story) -> Vec<(u64, u64)> {
    let created = story
        .created
        .iter()
        .filter(|created| created.seen.visible_at.is_none() && created.seen.status == "PENDING")
        .map(|created| (created.invoked, created.done));
    let returned = story
        .deeds
        .iter()
        .filter(|deed| matches!(deed.returned(), Some((_, Back::Requeued(0)))))
        .map(|deed| (deed.invoked, deed.done));
    let replayed = story
        .deeds
        .iter()
        .filter(|deed| deed.verb == Verb::Replay && deed.acked().is_some())
        .map(|deed| (deed.invoked, deed.done));
    let mut starts: Vec<(u64, u64)> = created.chain(returned).chain(replayed).collect();
    starts.sort_unstable();
    starts
}
