//! Invariant 4: first in, first out per (tenant, command, priority, shard); higher priorities first.

use std::collections::BTreeMap;

use codeq_core::command::Fence;
use codeq_core::id::ShardId;
use codeq_core::keys::Order;
use codeq_core::names::queue_name;

use super::{Claimed, Histories, Rows, TaskHistory, Verb, Violation};
use crate::ledger::{Back, NotBefore, Seen};

/// Rows: no order number is used twice or is lower than the number of its task, and the state in memory serves exactly the
/// queues that have a pending task and may be claimed from.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    let mut say = |text: String| found.push(Violation::new(4, text));
    let mut orders = BTreeMap::new();
    for (key, seq) in &rows.pending {
        let (_, _, order) = codeq_core::keys::pending_parts(*key);
        if let Some(other) = orders.insert(order, *seq) {
            say(format!("{} and task number {other} have the same position", rows.name(*seq)));
        }
        if order < Order::from(*seq) {
            say(format!("{} is ordered before its own number", rows.name(*seq)));
        }
    }
    for (id, queue) in &rows.queues {
        let limit = queue.topic.as_ref().map_or(0, |topic| topic.policy.max_consumers);
        let full = limit != 0 && queue.counts.in_progress >= u64::from(limit);
        let waiting = queue.counts.ready() > 0;
        let expected = waiting && !queue.paused && !full;
        if expected != rows.claimable.contains(id) {
            say(format!(
                "queue {} of tenant {} has waiting tasks: {waiting}, paused: {}, full: {full}, and is \
                 claimable in memory: {}",
                queue.name,
                queue.tenant,
                queue.paused,
                rows.claimable.contains(id)
            ));
        }
    }
}

/// A period in which a task was pending, as far as clients can be sure.
struct Wait<'a> {
    task: String,
    history: &'a TaskHistory,
    priority: u8,
    /// It entered the queue between these ticks.
    from: (u64, u64),
    /// The claim that took it, between these ticks; `None` if nobody did.
    claim: Option<(u64, u64)>,
}

/// History: of two pending tasks of the same queue and priority, the one that certainly came first is not certainly
/// claimed after the other; and no task of a lower priority is claimed while one of a higher priority is certainly
/// pending.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    let mut queues: BTreeMap<(String, String, ShardId), Vec<Wait<'_>>> = BTreeMap::new();
    for (id, history) in &histories.tasks {
        let Some(seen) = history.seen() else { continue };
        // A task that has, or may have, a `runAt` loses its position when the wall clock is set back.
        let Some(created) = history.created.as_ref() else { continue };
        if matches!(created.wanted.not_before, Some(NotBefore::At(_))) {
            continue;
        }
        // A rescheduled task has another priority or position.
        if history.rescheduled_between(0, u64::MAX) {
            continue;
        }
        let shard = created.shard;
        let queue = (seen.tenant.clone(), queue_name(&seen.command).into_owned(), shard);
        let waits = queues.entry(queue).or_default();
        let starts = starts(history);
        for (at, start) in starts.iter().enumerate() {
            // The first claim that can end this period, and not one of a later period.
            let next = starts.get(at + 1).map_or(u64::MAX, |next| next.1);
            let claim = history
                .claims
                .iter()
                .filter(|claim| claim.done > start.0 && claim.invoked < next)
                .map(|claim| (claim.invoked, claim.done))
                .min();
            waits.push(Wait {
                task: id.to_string(),
                history,
                priority: seen.priority,
                from: *start,
                claim,
            });
        }
    }
    for ((tenant, command, shard), waits) in &queues {
        for later in waits {
            // A claim concurrent with the start may have come before it.
            let claim = later.claim.filter(|(invoked, _)| *invoked > later.from.1);
            let Some(claim) = claim else { continue };
            for earlier in waits {
                if !overtaken(histories, earlier, later, claim) {
                    continue;
                }
                let text = format!(
                    "task {} (priority {}) was claimed before task {} (priority {}), which was ahead of it in \
                     {command} of tenant {tenant}, shard {shard}",
                    later.task, later.priority, earlier.task, earlier.priority
                );
                found.push(Violation::new(4, text));
            }
        }
    }
}

/// Whether `earlier` was certainly pending, ahead of `later`, during the whole claim that took `later`.
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
    // It must not have left the queue in another way, or without our knowledge.
    let removed = earlier.history.ops.iter().any(|op| op.may_fall_in(earlier.from.0, done));
    let Some(seen) = earlier.history.seen() else {
        return false;
    };
    let purged = histories.bulk_between(seen, Verb::PurgeWaiting, earlier.from.0, done);
    !removed && !purged && !taken_unseen(histories, earlier, seen, done)
}

/// Whether an unanswered claim may have taken the task while it was pending. The task's fence shows that; if fences are
/// hidden, any unanswered claim counts.
fn taken_unseen(histories: &Histories, wait: &Wait<'_>, seen: &Seen, done: u64) -> bool {
    let fence = |claim: &&Claimed| claim.seen.fence;
    let before = wait.history.claims.iter().filter(|claim| claim.done <= wait.from.1);
    let known = before.filter_map(|claim| fence(&claim)).max().unwrap_or_default();
    let next = match wait.claim {
        Some((invoked, _)) => {
            let mut after = wait.history.claims.iter().filter(|claim| claim.invoked == invoked);
            after.find_map(|claim| fence(&claim)).map(|fence| Fence(fence.0.saturating_sub(1)))
        }
        None => histories.listed.get(&seen.id).and_then(|listed| listed.task.fence),
    };
    match next {
        Some(next) => next != known,
        None => seen.fence.is_some() || histories.lost_claim(&seen.tenant, None, done),
    }
}

/// The moments (as pairs of ticks) at which the task certainly became claimable.
fn starts(history: &TaskHistory) -> Vec<(u64, u64)> {
    let created = history
        .created
        .iter()
        .filter(|created| created.seen.visible_at.is_none() && created.seen.status == "PENDING")
        .map(|created| (created.invoked, created.done));
    let returned = history
        .ops
        .iter()
        .filter(|op| matches!(op.returned(), Some((_, Back::Requeued(0)))))
        .map(|op| (op.invoked, op.done));
    let replayed = history
        .ops
        .iter()
        .filter(|op| op.verb == Verb::Replay && op.acked().is_some())
        .map(|op| (op.invoked, op.done));
    let mut starts: Vec<(u64, u64)> = created.chain(returned).chain(replayed).collect();
    starts.sort_unstable();
    starts
}
