//! Several shards behind one engine.

use std::collections::BTreeSet;
use std::sync::Arc;

use codeq_core::command::{Cleanup, Command, Enqueue, Pause, Purge, PurgeTarget, PutTopic};
use codeq_core::id::ShardId;
use codeq_core::limits::{LIST_BYTES_MAX, LIST_SLICE_MAX};
use codeq_core::read::ListQuery;
use codeq_core::reply::Reply;
use codeq_core::topic::Policy;
use codeq_core::view::Task;
use codeq_engine::read::Listing;
use codeq_engine::{Engine, EngineError, Options};

use crate::harness::{
    TENANT, block, claim, created, enqueue, eventually_async, new_task, small, take, waiting_claim,
};
use crate::start::start;

fn open(dir: &std::path::Path) -> Engine {
    start(dir, Options { shards: Some(3), ..small() }).unwrap()
}

fn fill(engine: &Engine, count: u64) -> BTreeSet<ShardId> {
    let mut used = BTreeSet::new();
    for seed in 0..count {
        let reply = engine.propose_blocking(enqueue(vec![new_task("q", &seed.to_string())], seed));
        used.insert(created(reply.unwrap())[0].id.shard(3));
    }
    used
}

#[test]
fn tasks_are_spread_found_listed_and_claimed_over_all_shards() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    assert_eq!(fill(&engine, 60), ShardId::all(3).collect());
    let query = ListQuery { tenant: TENANT.into(), limit: 7, ..ListQuery::default() };
    let (mut seen, mut below) = (Vec::new(), Vec::new());
    loop {
        let page = block(engine.list(&query, &below)).unwrap();
        seen.extend(page.items.iter().map(|task| (task.created_at, task.id)));
        if page.next.is_empty() {
            break;
        }
        below = page.next;
    }
    assert_eq!(seen.len(), 60);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 60);
    assert!(seen.is_sorted_by(|a, b| a.0 >= b.0), "newest first");
    let mut claimed = BTreeSet::new();
    loop {
        let tasks = take(&engine, "q", 10);
        if tasks.is_empty() {
            break;
        }
        claimed.extend(tasks.iter().map(|task| task.id));
    }
    assert_eq!(claimed.len(), 60);
    drop(engine);
    let engine = open(dir.path());
    let stats = block(engine.queue(TENANT, "q")).unwrap().unwrap();
    assert_eq!(stats.counts.in_progress, 60);
}

#[test]
fn pages_of_large_tasks_are_short_and_in_order_over_all_shards() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(dir.path(), Options { shards: Some(3), ..Options::default() }).unwrap();
    // Task sizes differ between shards, so that one stops before the other.
    for seed in 0..30 {
        let payload = "1".repeat(if seed % 3 == 0 { 900_000 } else { 50_000 });
        engine.propose_blocking(enqueue(vec![new_task("q", &payload)], seed)).unwrap();
    }
    let query = ListQuery { tenant: TENANT.into(), limit: 1_000, ..ListQuery::default() };
    let (mut seen, mut below, mut pages) = (Vec::new(), Vec::new(), 0);
    loop {
        let page = block(engine.list(&query, &below)).unwrap();
        let bytes: usize = page.items.iter().map(Task::bytes).sum();
        assert!(bytes <= LIST_BYTES_MAX && !page.items.is_empty(), "{bytes}");
        seen.extend(page.items.iter().map(|task| (task.created_at, task.id)));
        pages += 1;
        if page.next.is_empty() {
            break;
        }
        below = page.next;
    }
    assert!(seen.is_sorted_by(|a, b| a > b), "newest first, none twice: {seen:?}");
    assert!(seen.len() == 30 && (3..=30).contains(&pages), "{} on {pages}", seen.len());
}

#[test]
fn a_page_that_ends_early_has_no_task_older_than_one_that_was_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(dir.path(), Options { shards: Some(2), ..small() }).unwrap();
    let seed = |shard| {
        let made = |seed: &u64| {
            let reply = engine.propose_blocking(enqueue(vec![new_task("seed", "1")], *seed));
            created(reply.unwrap())[0].id.shard(2) == ShardId(shard)
        };
        (0..).find(made).unwrap()
    };
    let seeds = [seed(0), seed(1)];
    let add = |command: &str, shard: usize, count: usize| {
        let tasks = vec![new_task(command, "1"); count];
        engine.propose_blocking(enqueue(tasks, seeds[shard])).unwrap();
        // Dates decide the order between shards.
        let now = engine.now().wall;
        while engine.now().wall == now {
            std::hint::spin_loop();
        }
    };
    add("wanted", 1, 3);
    add("wanted", 0, 2);
    // More than one slice, without a match.
    add("other", 0, LIST_SLICE_MAX + 10);
    let claimed = [(); 2].map(|()| take(&engine, "wanted", 5).len());
    assert_eq!(claimed.iter().sum::<usize>(), 5, "each claim takes from one shard");
    let worker = claim("wanted", 1).worker;
    let query = ListQuery {
        tenant: TENANT.into(),
        limit: 10,
        worker: Some(worker),
        ..ListQuery::default()
    };
    let (mut seen, mut below) = (Vec::new(), Vec::new());
    loop {
        // Each shard is read once, then the time is up.
        let mut listing = Listing::new(query.clone(), &below, 2);
        while !listing.has_looked_everywhere() {
            let (shard, part) = listing.next_slice().unwrap();
            listing.add(shard, block(engine.read(shard, |reader| reader.list(&part))).unwrap());
        }
        let page = listing.page();
        seen.extend(page.items.iter().map(|task| (task.created_at, task.id)));
        if page.next.is_empty() {
            break;
        }
        assert!(page.next != below, "it makes progress");
        below = page.next;
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted_by(|a, b| a.0 >= b.0), "newest first: {seen:?}");
}

#[test]
fn a_waiting_claim_is_served_by_whichever_shard_gets_the_task() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(dir.path()));
    block(async {
        for seed in 0..6 {
            let waiting = waiting_claim(&engine, claim("q", 1), 60_000);
            eventually_async("it waits everywhere", || engine.waiting_claims() >= 3).await;
            engine.propose(enqueue(vec![new_task("q", "1")], seed)).await.unwrap();
            assert_eq!(waiting.await.unwrap().len(), 1);
        }
    });
    let stats = block(engine.queue(TENANT, "q")).unwrap().unwrap();
    assert_eq!((stats.counts.ready(), stats.counts.in_progress), (0, 6));
}

#[test]
fn a_key_names_one_task_whatever_the_seed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let mut ids = BTreeSet::new();
    for seed in 0..30 {
        let mut task = new_task("q", "1");
        task.idempotency_key = Some("order-1".into());
        let reply = engine.propose_blocking(enqueue(vec![task], seed)).unwrap();
        ids.insert(created(reply)[0].id);
    }
    assert_eq!(ids.len(), 1);
    let keyed = |key: &str| {
        let mut task = new_task("q", "1");
        task.idempotency_key = Some(key.into());
        task
    };
    let tasks = (0..16).map(|n| keyed(&n.to_string())).collect();
    let batch = Enqueue { tenant: TENANT.into(), tasks, atomic: true, seed: 1 };
    let refused = engine.propose_blocking(Command::Enqueue(batch));
    assert_eq!(refused, Err(EngineError::AtomicSpansShards));
    let tasks: Vec<_> = (0..16).map(|n| keyed(&format!("{n}"))).collect();
    let batch = |tasks| Enqueue { tenant: TENANT.into(), tasks, atomic: false, seed: 1 };
    let first = created(block(engine.propose(Command::Enqueue(batch(tasks.clone())))).unwrap());
    let used: BTreeSet<ShardId> = first.iter().map(|task| task.id.shard(3)).collect();
    assert_eq!(used.len(), 3);
    let again = created(block(engine.propose(Command::Enqueue(batch(tasks)))).unwrap());
    assert!(first.iter().map(|task| task.id).eq(again.iter().map(|task| task.id)), "in order");
}

#[test]
fn commands_for_all_shards_are_refused_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    fill(&engine, 9);
    let tenant = || TENANT.into();
    let (command, by) = (|| "q".into(), || "op".into());
    for refused in [
        Command::Purge(Purge {
            tenant: tenant(),
            command: command(),
            target: PurgeTarget::Waiting,
            limit: 100,
            by: by(),
        }),
        Command::Cleanup(Cleanup { tenant: tenant(), before: u64::MAX, limit: 100 }),
    ] {
        let answers = [engine.propose_blocking(refused.clone()), block(engine.propose(refused))];
        assert_eq!(answers, [const { Err(EngineError::ConcernsEveryShard) }; 2]);
    }
    let mut claimed = 0;
    loop {
        match engine.claim_blocking(claim("q", 100)).unwrap() {
            Reply::Claimed(tasks) if tasks.is_empty() => break,
            Reply::Claimed(tasks) => claimed += tasks.len(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(claimed, 9, "in all shards, and nothing was purged");
}

#[test]
fn pause_and_max_consumers_hold_over_all_shards() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    fill(&engine, 60);
    let pause =
        |paused| Command::Pause(Pause { tenant: TENANT.into(), command: "q".into(), paused });
    assert_eq!(block(engine.propose(pause(true))), Ok(Reply::Done));
    assert!(take(&engine, "q", 10).is_empty());
    assert_eq!(block(engine.propose(pause(false))), Ok(Reply::Done));
    let topic = |max_consumers| {
        let policy = Policy { max_consumers, ..Policy::default() };
        Command::PutTopic(PutTopic { tenant: TENANT.into(), name: "q".into(), policy })
    };
    let refused = block(engine.propose(topic(2)));
    assert_eq!(refused, Err(EngineError::TooFewConsumers { shards: 3 }));
    block(engine.propose(topic(7))).unwrap();
    let mut held = 0;
    loop {
        let tasks = take(&engine, "q", 10);
        if tasks.is_empty() {
            break;
        }
        held += tasks.len();
    }
    assert_eq!(held, 7);
}
