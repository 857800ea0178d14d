//! Metric texts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use codeq_auth::Reason;
use codeq_core::command::{Cancel, Command, Nack, NewTask, Replay, ReplayTarget};
use codeq_core::effect::Effect;
use codeq_core::history::Event;
use codeq_core::id::ShardId;
use codeq_core::keys::Seq;
use codeq_core::place::Place;
use codeq_core::reply::Reply;
use codeq_engine::Observer;
use codeq_net::NetStats;
use codeq_server::limits::budget::Budget;
use codeq_server::observe::{COMMANDS_MAX, Format, Metrics};
use codeq_webhooks::{WebhookKind, WebhookOutcome};

use crate::observe::exposition::Exposition;
use crate::observe::tasks::{TENANT, complete, moved, new_task, open, put, scrape, take};

#[tokio::test]
async fn a_task_through_every_turn_is_counted_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::new();
    let engine = open(dir.path(), &metrics, 2).await;
    let depth = |queue: &str| format!("codeq_queue_depth{{command=\"resize\",queue=\"{queue}\"}}");

    let id = put(&engine, TENANT, vec![new_task("Resize")]).await[0];
    assert_eq!(scrape(&metrics, &engine).await.get(&depth("ready")), 1.0);
    assert_eq!(take(&engine, "resize", 60_000).await.id, id);
    let during = scrape(&metrics, &engine).await;
    assert_eq!(during.get(&depth("ready")), 0.0);
    assert_eq!(during.get(&depth("in_progress")), 1.0);
    let nack =
        Nack { tenant: TENANT.into(), id, worker: "w".into(), delay: None, reason: None, seed: 1 };
    engine.propose(Command::Nack(nack)).await.unwrap();
    // The lease of the second attempt ends, and with it the task's last attempt.
    assert_eq!(take(&engine, "resize", 1_000).await.id, id);
    engine.finished(&TENANT.into(), id).await.unwrap();
    let dead = scrape(&metrics, &engine).await;
    assert_eq!(dead.get(&depth("dlq")), 1.0);
    assert_eq!(dead.get("codeq_dlq_depth{command=\"resize\"}"), 1.0);
    let replay = Replay { tenant: TENANT.into(), target: ReplayTarget::One(id), by: "op".into() };
    engine.propose(Command::Replay(replay)).await.unwrap();
    assert_eq!(take(&engine, "resize", 60_000).await.id, id);
    complete(&engine, id).await;
    let other = put(&engine, TENANT, vec![new_task("resize")]).await[0];
    let cancel = Cancel { tenant: TENANT.into(), id: other, by: "p".into() };
    let reply = engine.propose(Command::Cancel(cancel)).await.unwrap();
    assert!(matches!(reply, Reply::Cancelled(_)), "{reply:?}");
    std::thread::scope(|scope| scope.spawn(|| engine.checkpoint()).join()).unwrap().unwrap();
    // Answers are sent before they are counted; after this, everything is.
    engine.shutdown();

    let end = scrape(&metrics, &engine).await;
    let command = "command=\"resize\"";
    let latency = |part: &str, status: &str| {
        format!("codeq_task_processing_latency_seconds_{part}{{{command},status=\"{status}\"}}")
    };
    for (key, count) in [
        (format!("codeq_task_created_total{{{command}}}"), 2.0),
        (format!("codeq_task_claimed_total{{{command}}}"), 3.0),
        (format!("codeq_lease_expired_total{{{command}}}"), 1.0),
        (format!("codeq_task_completed_total{{{command},status=\"COMPLETED\"}}"), 1.0),
        (format!("codeq_task_completed_total{{{command},status=\"FAILED\"}}"), 2.0),
        (format!("codeq_task_transitions_total{{{command},event=\"nacked\"}}"), 1.0),
        (format!("codeq_task_transitions_total{{{command},event=\"replayed\"}}"), 1.0),
        (format!("codeq_task_transitions_total{{{command},event=\"cancelled\"}}"), 1.0),
        (latency("count", "COMPLETED"), 1.0),
        (latency("count", "FAILED"), 2.0),
        (depth("ready"), 0.0),
        (depth("in_progress"), 0.0),
        (depth("dlq"), 0.0),
    ] {
        assert_eq!(end.get(&key), count, "{key}");
    }
    // Two of the three tasks ended after the lease of a second had ended.
    assert!(end.get(&latency("sum", "FAILED")) + end.get(&latency("sum", "COMPLETED")) >= 2.0);
    assert_eq!((during.get("codeq_writes_refused"), during.get("codeq_leader")), (0.0, 1.0));
    assert!(end.get("codeq_log_syncs_total") > 0.0);
    assert!(end.get("codeq_log_bytes_total") > 0.0);
    assert!(end.get("codeq_log_sync_seconds_count") > 0.0);
    assert_eq!(
        end.get("codeq_log_sync_seconds_count"),
        end.get("codeq_commit_batch_commands_count")
    );
    assert!(end.get("codeq_checkpoint_seconds_count") >= 2.0, "one for each shard");
}

#[tokio::test]
async fn a_restart_counts_from_zero_and_finds_the_depths() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), &Metrics::new(), 1).await;
    put(&engine, TENANT, vec![new_task("idle"), new_task("idle")]).await;
    put(&engine, "globex", vec![new_task("idle")]).await;
    drop(engine);
    let metrics = Metrics::new();
    let engine = open(dir.path(), &metrics, 1).await;
    let read = scrape(&metrics, &engine).await;
    assert_eq!(read.get("codeq_queue_depth{command=\"idle\",queue=\"ready\"}"), 3.0);
    assert_eq!(read.get("codeq_task_created_total{command=\"idle\"}"), 0.0);
}

#[tokio::test]
async fn the_age_of_what_waits_longest() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::new();
    let engine = open(dir.path(), &metrics, 2).await;
    let age = async |command: &str| {
        let key = format!("codeq_queue_oldest_ready_seconds{{command=\"{command}\"}}");
        scrape(&metrics, &engine).await.get(&key)
    };
    put(&engine, TENANT, vec![new_task("old"), new_task("taken")]).await;
    let mut old = 0.0;
    while old < 0.005 {
        old = age("old").await;
    }
    // The oldest over all tenants and shards. Delayed tasks do not count as waiting.
    for tenant in ["globex", "initech", "umbrella"] {
        let late = NewTask { delay: Some(3_600_000), ..new_task("late") };
        put(&engine, tenant, vec![new_task("old"), late]).await;
    }
    assert!(age("old").await >= old);
    assert_eq!(age("late").await, 0.0);
    assert!(age("taken").await >= 0.005);
    take(&engine, "taken", 60_000).await;
    assert_eq!(age("taken").await, 0.0);
}

#[tokio::test]
async fn moves_are_counted_by_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::new();
    let engine = open(dir.path(), &metrics, 1).await;
    let queue: Arc<str> = "q".into();
    let twin: Arc<str> = "q".into();
    let (pending, running) = (Some(Place::Pending), Some(Place::InProgress));
    metrics.committed(
        ShardId(0),
        &[
            moved(&queue, Event::Created, None, pending),
            Effect::Ready { queue: 1 },
            moved(&twin, Event::Claimed, pending, running),
            moved(&queue, Event::LeaseExpired, running, Some(Place::Dead)),
            moved(&queue, Event::CancelRequested, running, running),
            moved(&twin, Event::Removed, Some(Place::Dead), None),
            Effect::CallbackDue { seq: Seq(1), at: 0 },
        ],
    );
    metrics.recovered(ShardId(0), &[moved(&queue, Event::Created, None, pending)]);
    let read = scrape(&metrics, &engine).await;
    assert_eq!(read.get("codeq_task_created_total{command=\"q\"}"), 1.0);
    assert_eq!(read.get("codeq_task_claimed_total{command=\"q\"}"), 1.0);
    assert_eq!(read.get("codeq_lease_expired_total{command=\"q\"}"), 1.0);
    assert_eq!(read.get("codeq_task_completed_total{command=\"q\",status=\"COMPLETED\"}"), 0.0);
    assert_eq!(read.get("codeq_task_completed_total{command=\"q\",status=\"FAILED\"}"), 1.0);
    assert_eq!(read.sum("codeq_task_transitions_total"), 5.0);
    let latency = "codeq_task_processing_latency_seconds";
    let labels = "command=\"q\",status=\"FAILED\"";
    assert_eq!(read.get(&format!("{latency}_sum{{{labels}}}")), 1.5);
    assert_eq!(read.get(&format!("{latency}_bucket{{le=\"1.0\",{labels}}}")), 0.0);
    assert_eq!(read.get(&format!("{latency}_bucket{{le=\"2.5\",{labels}}}")), 1.0);
    assert_eq!(read.count(&format!("{latency}_sum")), 1, "nothing was completed");
}

#[tokio::test]
async fn names_without_end_do_not_make_series_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::new();
    let engine = open(dir.path(), &metrics, 2).await;
    let commands = 1_000;
    for tenant in ["acme", "globex"] {
        let tasks = (0..commands).map(|n| new_task(&format!("c{n}"))).collect();
        put(&engine, tenant, tasks).await;
    }
    // This queue has the name under which the rest is counted: there must be no second series of that name.
    put(&engine, "acme", vec![new_task("OTHER")]).await;
    engine.shutdown();
    let read = scrape(&metrics, &engine).await;
    let all = 2.0 * commands as f64 + 1.0;
    assert_eq!(read.count("codeq_task_created_total"), COMMANDS_MAX + 1);
    assert_eq!(read.sum("codeq_task_created_total"), all);
    assert_eq!(read.count("codeq_dlq_depth"), COMMANDS_MAX + 1);
    assert_eq!(read.sum("codeq_queue_depth"), all);
    // Half of the names belong to the first tenant, the others came with the second.
    let own = 1.5 * COMMANDS_MAX as f64;
    assert_eq!(read.get("codeq_task_created_total{command=\"other\"}"), all - own);
    let other = "codeq_queue_depth{command=\"other\",queue=\"ready\"}";
    assert_eq!(read.get(other), all - 2.0 * COMMANDS_MAX as f64);
}

#[tokio::test]
async fn queues_with_finished_tasks_only_keep_to_the_same_limit() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::new();
    let engine = open(dir.path(), &metrics, 2).await;
    let tenants = ["acme", "globex", "initech"];
    for tenant in tenants {
        let tasks = (0..COMMANDS_MAX).map(|n| new_task(&format!("{tenant}-{n}"))).collect();
        for id in put(&engine, tenant, tasks).await {
            let cancel = Cancel { tenant: tenant.into(), id, by: "p".into() };
            engine.propose(Command::Cancel(cancel)).await.unwrap();
        }
    }
    let all = (tenants.len() * COMMANDS_MAX) as f64;
    let states = 4;
    let check = |read: &Exposition| {
        assert_eq!(read.count("codeq_queue_finished"), (COMMANDS_MAX + 1) * states);
        assert_eq!(read.sum("codeq_queue_finished"), all);
        assert_eq!(read.sum("codeq_queue_depth"), 0.0);
    };
    check(&scrape(&metrics, &engine).await);
    // After a restart, only the queues are known. The first tenant's must not take all names.
    drop(engine);
    let metrics = Metrics::new();
    let engine = open(dir.path(), &metrics, 2).await;
    check(&scrape(&metrics, &engine).await);
}

#[tokio::test]
async fn everything_else_is_there_and_the_text_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::new();
    let engine = open(dir.path(), &metrics, 1).await;
    let quoted: Arc<str> = "a\"b\\c".into();
    metrics.committed(ShardId(0), &[moved(&quoted, Event::Created, None, Some(Place::Pending))]);
    metrics.answered("createTask", "POST", 202, Duration::from_millis(3));
    metrics.answered("createTask", "POST", 202, Duration::from_millis(3));
    metrics.answered("createTask", "BREW", 405, Duration::from_micros(10));
    metrics.answered("createTask", "SIP", 405, Duration::from_micros(10));
    metrics.rate_limited("producer", "createTask");
    let queue = Some((&TENANT.into(), "q"));
    metrics.webhook(WebhookKind::Result, WebhookOutcome::Delivered, queue);
    metrics.webhook(WebhookKind::Availability, WebhookOutcome::Dropped, None);
    assert_eq!(metrics.token_refused(Reason::Audience), Some(0));
    metrics.artifact_stored(5);
    metrics.artifact_stored(7);
    metrics.artifact("removed");
    metrics.checkpointed(Duration::from_secs(1), false);
    let net = NetStats::default();
    net.open.store(3, Ordering::Relaxed);
    net.accepted.store(5, Ordering::Relaxed);
    net.refused.store(2, Ordering::Relaxed);
    let text = metrics.render(&engine, &net, &Budget::new(1), 0, false).await;
    let read = Exposition::parse(&text);
    let plain = Exposition::parse_prometheus(&Format::Prometheus.of(text));
    assert_eq!(plain.series, read.series, "the other format says the same");
    let requests = "codeq_http_requests_total{operation=\"createTask\"";
    let delivered =
        "codeq_webhook_deliveries_total{kind=\"result\",outcome=\"delivered\",command=\"q\"}";
    let dropped = "codeq_webhook_deliveries_total{kind=\"availability\",outcome=\"dropped\",command=\"other\"}";
    let duration = "codeq_http_request_duration_seconds_count{operation=\"createTask\"";
    let limited = "codeq_rate_limit_hits_total{scope=\"producer\",operation=\"createTask\"}";
    for (key, value) in [
        (&*format!("{requests},method=\"POST\",status=\"202\"}}"), 2.0),
        (&*format!("{requests},method=\"_OTHER\",status=\"405\"}}"), 2.0),
        (&*format!("{duration},status=\"202\"}}"), 2.0),
        (&*format!("{duration},status=\"405\"}}"), 2.0),
        ("codeq_token_refusals_total{reason=\"audience\"}", 1.0),
        (dropped, 1.0),
        (limited, 1.0),
        (delivered, 1.0),
        ("codeq_artifacts_total{outcome=\"stored\"}", 2.0),
        ("codeq_artifacts_total{outcome=\"removed\"}", 1.0),
        ("codeq_artifact_stored_bytes_total", 12.0),
        ("codeq_checkpoint_failures_total", 1.0),
        ("codeq_checkpoint_seconds_count", 0.0),
        ("codeq_http_connections", 3.0),
        ("codeq_http_connections_accepted_total", 5.0),
        ("codeq_http_connections_refused_total", 2.0),
        ("codeq_leader", 0.0),
        ("codeq_engine_queued", 0.0),
        ("codeq_claims_waiting", 0.0),
        ("codeq_result_waiters", 0.0),
        ("codeq_task_created_total{command=\"a\\\"b\\\\c\"}", 1.0),
        (concat!("codeq_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
    ] {
        assert_eq!(read.get(key), value, "{key}");
    }
    for name in ["store_bytes", "store_live_bytes", "memtable_bytes", "process_open_fds"] {
        assert!(read.get(&format!("codeq_{name}")) >= 0.0);
    }
    assert!(read.get("codeq_process_resident_memory_bytes") > 100_000.0);
    assert!(read.get("codeq_process_cpu_seconds_total") >= 0.0);
}

#[tokio::test]
async fn two_servers_in_one_process_count_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Metrics::new(), Metrics::new());
    let engine = open(dir.path(), &one, 1).await;
    one.rate_limited("worker", "claimTask");
    let (one, two) = (scrape(&one, &engine).await, scrape(&two, &engine).await);
    assert_eq!(one.count("codeq_rate_limit_hits_total"), 1);
    assert_eq!(two.count("codeq_rate_limit_hits_total"), 0);
}
