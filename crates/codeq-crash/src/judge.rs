//! Compares what the recovered engine shows with the expectations.

use std::collections::{BTreeMap, BTreeSet};

use codeq_core::command::Millis;
use codeq_core::id::ShardId;
use codeq_core::place::Place;
use codeq_core::read::ListQuery;
use codeq_core::view::{ResultRecord, Task};
use codeq_engine::{Engine, EngineError};
use codeq_sim::invariants::check_all;
use codeq_sim::notes;
use tokio::runtime::Runtime;

use crate::expectations::{Ending, Expectations, Known};
use crate::setup::TENANTS;

/// A task as the engine shows it.
pub struct Shown {
    /// The task.
    pub task: Task,
    /// Its result.
    pub result: Option<ResultRecord>,
}

/// Everything that the engine's read interface shows.
pub fn list_all(engine: &Engine, runtime: &Runtime) -> Result<Vec<Shown>, EngineError> {
    let mut shown = Vec::new();
    for tenant in TENANTS {
        let query = ListQuery {
            tenant: tenant.into(),
            limit: codeq_core::limits::LIST_MAX,
            ..ListQuery::default()
        };
        let mut below = Vec::new();
        loop {
            let page = runtime.block_on(engine.list(&query, &below))?;
            for task in page.items {
                let result = if task.place.is_terminal() {
                    runtime.block_on(engine.result(tenant, task.id))?.and_then(|(_, result)| result)
                } else {
                    None
                };
                shown.push(Shown { task, result });
            }
            if page.next.is_empty() {
                break;
            }
            below = page.next;
        }
    }
    Ok(shown)
}

/// Compares what is shown with the expectations, reports differences, and settles what was unknown.
pub fn judge(expected: &mut Expectations, shown: &[Shown], now: Millis) -> Vec<String> {
    let mut found = std::mem::take(&mut expected.wrong);
    let mut ids = BTreeSet::new();
    let mut payloads = BTreeMap::new();
    for one in shown {
        let seen = notes::seen(&one.task);
        let content = (seen.tenant.clone(), seen.payload);
        if !ids.insert(seen.id) {
            found.push(format!("task {} is listed twice", seen.id));
        }
        match expected.tasks.get(&seen.id) {
            Some(known) => found.extend(
                differences(known, one, now)
                    .into_iter()
                    .map(|text| format!("task {}: {text}", seen.id)),
            ),
            None if expected.possible.contains(&content) => {}
            None => found.push(format!("task {} exists, but nobody created it", seen.id)),
        }
        if let Some(other) = payloads.insert(content, seen.id) {
            found.push(format!("tasks {other} and {} are the same work", seen.id));
        }
        let webhook = one.task.webhook.is_some();
        expected.settle(&seen, ending(one), webhook, one.task.cancel_requested);
    }
    for (id, known) in &expected.tasks {
        if !ids.contains(id) {
            found
                .push(format!("task {id} of tenant {} was acknowledged but is lost", known.tenant));
        }
    }
    expected.possible.clear();
    found.append(&mut expected.wrong);
    found
}

fn ending(shown: &Shown) -> Option<Ending> {
    let place = shown.task.place;
    match (&shown.result, place) {
        (_, Place::Dead) => Some(Ending::Dead),
        (Some(record), _) => Some(Ending::Result(notes::record_digest(record))),
        (None, place) if place.is_terminal() => Some(Ending::Status(String::new())),
        (None, _) => None,
    }
}

/// What is wrong with one task.
fn differences(known: &Known, shown: &Shown, now: Millis) -> Vec<String> {
    let task = &shown.task;
    let seen = notes::seen(task);
    let mut found = Vec::new();
    let mut say = |wrong: bool, text: String| {
        if wrong {
            found.push(text);
        }
    };
    let changed = seen.tenant != known.tenant
        || seen.command != known.command
        || seen.payload != known.payload
        || seen.max_attempts != known.max_attempts
        || known.webhook.is_some_and(|expected| expected != task.webhook.is_some());
    say(changed, "it is not what its producer sent".to_owned());
    say(task.fence < known.fence, format!("its fence was {}, now {}", known.fence, task.fence));
    say(
        task.attempts < known.attempts,
        format!("its attempts were {}, now {}", known.attempts, task.attempts),
    );
    let terminal = task.place.is_terminal();
    let digest = shown.result.as_ref().map(notes::record_digest);
    say(terminal != digest.is_some(), format!("it is {:?} with result {digest:?}", task.place));
    if let Some(ending) = &known.ending {
        let kept = match ending {
            Ending::Result(expected) => digest == Some(*expected),
            Ending::Dead => task.place == Place::Dead,
            Ending::Cancelled => task.place == Place::Failed,
            Ending::Status(status) => terminal && (status.is_empty() || *status == seen.status),
        };
        say(!kept, format!("it had ended ({ending:?}) but is {:?}", task.place));
    } else if let (Place::Completed | Place::Failed, Some(digest)) = (task.place, digest) {
        let cancelled = task.place == Place::Failed && (known.cancel_tried || known.stop_wanted);
        say(
            !cancelled && !known.tried.contains(&digest),
            "it has a result that nobody submitted".to_owned(),
        );
    }
    say(
        known.stop_wanted && !terminal && !task.cancel_requested,
        "its worker should be asked to stop, but is not".to_owned(),
    );
    if let Some(lease) = &known.lease
        && lease.fence == task.fence
        && known.let_go < lease.fence
        && now < lease.until
        && known.ending.is_none()
    {
        let kept = task.place == Place::InProgress
            && task.worker.as_deref() == Some(&*lease.worker)
            && task.lease_until >= Some(lease.until);
        say(
            !kept,
            format!(
                "the lease of {} to {} (fence {}) is cut short: {:?} until {:?}",
                lease.worker, lease.until, lease.fence, task.place, task.lease_until
            ),
        );
    }
    found
}

/// Checks the rows of every shard against each other, and the counters against a recount.
pub fn check_structure(
    engine: &Engine,
    runtime: &Runtime,
    shown: &[Shown],
) -> Result<Vec<String>, EngineError> {
    let mut found = Vec::new();
    for shard in ShardId::all(engine.shards()) {
        let violations = runtime.block_on(engine.read(shard, |r| check_all(r.state, r.kv)))?;
        found.extend(violations.iter().map(|violation| format!("shard {shard}: {violation}")));
    }
    for tenant in TENANTS {
        let mut counters = [0_u64; 5];
        for queue in runtime.block_on(engine.queues(tenant))? {
            let counts = &queue.counts;
            let waiting = counts.pending.iter().sum::<u64>();
            for (sum, part) in counters.iter_mut().zip([
                waiting + counts.delayed,
                counts.in_progress,
                counts.completed,
                counts.failed + counts.cancelled,
                counts.dead,
            ]) {
                *sum += part;
            }
        }
        let mut counted = [0_u64; 5];
        for one in shown.iter().filter(|one| *one.task.tenant == *tenant) {
            if let Some(slot) = counted.get_mut(usize::from(one.task.place.index_code())) {
                *slot += 1;
            }
        }
        if counters != counted {
            found.push(format!("tenant {tenant}: counters {counters:?}, recount {counted:?}"));
        }
    }
    Ok(found)
}
