//! The HTTP API.

use std::time::Duration;

use codeq_client::testing::TestServer;
use codeq_client::{
    BulkOptions, CancelTasks, DeliveryMode, Error, Event, HttpClient, NewArtifact, NewSubscription,
    NewTask, Options, Outcome, Producer, Replay, ReplayFrom, Search, Status, Submission, Task,
    TaskChanges, TopicPolicy,
};
use codeq_server::config::RateLimit;
use serde_json::json;

use crate::support::{Running, enqueue, failure, result};

async fn start() -> (TestServer, Producer, HttpClient) {
    let server = TestServer::start().await.unwrap();
    let (producer, http) = (server.producer().await.unwrap(), server.http().unwrap());
    (server, producer, http)
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_read_listed_and_cancelled() {
    let (server, producer, http) = start().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(enqueue(&producer, "mail", &json!({"n": n})).await);
    }
    enqueue(&producer, "other", &1).await;
    assert_eq!(http.task(&ids[0]).await.unwrap().json::<serde_json::Value>().unwrap()["n"], 0);
    assert!(http.result(&ids[0], Duration::ZERO).await.unwrap().is_none());
    let mut search = Search { command: Some("mail".to_owned()), ..Search::default() };
    search.limit = Some(2);
    search.status = Some(Status::Pending);
    let mut listed = Vec::new();
    loop {
        let page = http.tasks(&search).await.unwrap();
        assert!(page.items.len() <= 2);
        listed.extend(page.items.into_iter().map(|task| task.id));
        search.cursor = page.next_cursor;
        if search.cursor.is_none() {
            break;
        }
    }
    listed.reverse();
    assert_eq!(listed, ids, "newest first");
    assert!(http.cancel(&ids[1]).await.unwrap());
    let cancelled = http.result(&ids[1], Duration::from_secs(5)).await.unwrap().unwrap();
    assert_eq!((cancelled.status, cancelled.error.as_str()), (Status::Failed, "CANCELLED"));
    let search = Search { filter: Some("error~CANCEL".to_owned()), ..Search::default() };
    assert_eq!(http.tasks(&search).await.unwrap().items.len(), 1);
    let events: Vec<_> = http.history(&ids[1]).await.unwrap().items;
    let last = events.last().unwrap();
    assert_eq!((last.event.as_str(), last.status), ("cancelled", Status::Failed));
    let twice = http.cancel(&ids[1]).await.unwrap_err();
    assert!(matches!(twice, Error::Api { status: 409, .. }), "{twice}");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_read_and_continued() {
    let (server, producer, http) = start().await;
    let mut events = http.events(Some("mail"), None).await.unwrap();
    enqueue(&producer, "other", &1).await;
    let first = enqueue(&producer, "mail", &1).await;
    let Some(Event::Task(event)) = events.next().await.unwrap() else { panic!("no event") };
    assert_eq!((&event.task_id, event.event.as_str()), (&first, "created"));
    let after = events.last_id().unwrap().to_owned();
    drop(events);
    http.cancel(&first).await.unwrap();
    let mut events = http.events(Some("mail"), Some(&after)).await.unwrap();
    let Some(Event::Task(event)) = events.next().await.unwrap() else { panic!("no event") };
    assert_eq!((event.event.as_str(), event.status), ("cancelled", Some(Status::Failed)));
    let refused = http.events(None, Some("x")).await.unwrap_err();
    assert_eq!(refused.code(), Some("invalid_event_id"));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_routes_are_called_and_errors_explain_themselves() {
    let (server, _, http) = start().await;
    let new = json!({"command": "mail", "payload": {"n": 1}});
    let made: serde_json::Value = http.post(&["tasks"], &new).await.unwrap();
    let id = made["id"].as_str().unwrap();
    let page: serde_json::Value =
        http.get(&["tasks"], &[("command", Some("mail")), ("status", None)]).await.unwrap();
    assert_eq!(page["items"][0]["id"], id);
    // A task that was read serialises to the server's JSON.
    let task = serde_json::to_value(http.task(id).await.unwrap()).unwrap();
    assert_eq!((&task["id"], &task["payload"]), (&made["id"], &made["payload"]));
    let typo = json!({"command": "mail", "payload": 1, "prioriti": 1});
    let refused = http.post::<serde_json::Value>(&["tasks"], &typo).await.unwrap_err();
    let Error::Api { code, detail, .. } = refused else { panic!("{refused}") };
    assert_eq!(code, "unknown_field");
    assert!(detail.contains("priority"), "{detail}");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_submitted_with_a_result_and_downloaded() {
    let (server, producer, http) = start().await;
    let minute = Duration::from_secs(60);
    assert_eq!(http.claim(&["draw"], minute, Duration::ZERO).await.unwrap(), None);
    let id = enqueue(&producer, "draw", &5).await;
    let task = http.claim(&["draw"], minute, minute).await.unwrap().unwrap();
    assert_eq!((&task.id, task.json::<u64>().unwrap()), (&id, 5));
    let submission = Submission::completed(&json!({"n": 5}))
        .unwrap()
        .with(NewArtifact::content("a picture.png", vec![7; 300_000]).with_type("image/png"))
        .with(NewArtifact::content("empty", Vec::new()))
        .with(NewArtifact::url("elsewhere", "https://example.com/"));
    http.submit(&id, &submission).await.unwrap();
    let done = result(&producer, &id).await;
    let names: Vec<&str> = done.artifacts.iter().map(|artifact| artifact.name.as_str()).collect();
    assert_eq!(names, ["a picture.png", "empty", "elsewhere"]);
    assert_eq!(done.json::<serde_json::Value>().unwrap(), json!({"n": 5}));
    let picture = http.artifact(&id, "a picture.png").await.unwrap();
    assert_eq!((picture.length(), picture.content_type()), (Some(300_000), Some("image/png")));
    assert_eq!(picture.bytes(300_000).await.unwrap(), vec![7; 300_000]);
    let picture = http.artifact(&id, "a picture.png").await.unwrap();
    let too_large = picture.bytes(299_999).await.unwrap_err();
    assert!(matches!(too_large, Error::TooLarge(_)) && !too_large.is_transient(), "{too_large}");
    assert!(http.artifact(&id, "empty").await.unwrap().bytes(0).await.unwrap().is_empty());
    let missing = http.artifact(&id, "elsewhere").await.unwrap_err();
    assert!(matches!(missing, Error::Api { status: 404, .. }), "{missing}");
    let twice = http.submit(&id, &Submission::failed("no")).await.unwrap_err();
    assert_eq!(twice.code(), Some("not_in_progress"));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_paused_resumed_and_purged() {
    let (server, producer, http) = start().await;
    // A name that must be escaped in a path.
    let name = "send/mail? 100%";
    http.pause_queue(name).await.unwrap();
    let handler = |_: Task<u64>| async { Ok(Outcome::done()) };
    let worker = Running::start(server.worker().handle(name, handler));
    let id = enqueue(&producer, name, &1).await;
    assert!(http.result(&id, Duration::from_secs(1)).await.unwrap().is_none());
    let queues = http.queues().await.unwrap();
    assert_eq!(queues.len(), 1);
    assert!(queues[0].paused && queues[0].stats.ready == 1 && queues[0].stats.command == name);
    http.resume_queue(name).await.unwrap();
    assert_eq!(result(&producer, &id).await.status, Status::Completed);
    worker.stop().await;
    for n in 0..3 {
        enqueue(&producer, name, &n).await;
    }
    let mut some = BulkOptions { limit: Some(2), dry_run: true, ..BulkOptions::default() };
    let dry = http.purge_queue(name, &some).await.unwrap();
    assert_eq!((dry.purged, dry.progress.matched, dry.remaining), (0, Some(2), 3));
    some.dry_run = false;
    let purged = http.purge_queue(name, &some).await.unwrap();
    assert_eq!((purged.purged, purged.progress.matched, purged.remaining), (2, None, 1));
    assert_eq!(http.queue(name).await.unwrap().ready, 1);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_replayed_and_purged() {
    let (server, producer, http) = start().await;
    let handler =
        |task: Task<u64>| async move { Err(format!("no luck with {}", task.payload).into()) };
    let worker = Running::start(server.worker().handle("mail", handler));
    let mut ids = Vec::new();
    for n in 0..4 {
        let task = NewTask::new("mail", &n).unwrap().max_attempts(1);
        ids.push(producer.enqueue(task).await.unwrap().task_id);
        assert_eq!(failure(&producer, &ids[n]).await, format!("no luck with {n}"));
    }
    worker.stop().await;
    let page = http.dead_letters("mail", &Search::default()).await.unwrap();
    assert_eq!(page.items.len(), 4);
    let options =
        BulkOptions { error_contains: Some("with 2".to_owned()), ..BulkOptions::default() };
    let dry_run =
        Replay { options: BulkOptions { dry_run: true, ..options.clone() }, ..Replay::default() };
    let dry = http.replay_dead_letters("mail", &dry_run).await.unwrap();
    assert_eq!((dry.replayed, dry.progress.matched, dry.remaining), (0, Some(1), 4));
    let replay = Replay { options, ..Replay::default() };
    let replayed = http.replay_dead_letters("mail", &replay).await.unwrap();
    assert_eq!((replayed.replayed, replayed.remaining), (1, 3));
    assert_eq!(http.replay_task(&ids[0]).await.unwrap().status, Status::Pending);
    let purged = http.purge_dead_letters("mail", &BulkOptions::default()).await.unwrap();
    assert_eq!((purged.purged, purged.remaining), (2, 0));
    let queue = http.queue("mail").await.unwrap();
    assert_eq!((queue.ready, queue.dlq), (2, 0));
    http.cancel(&ids[0]).await.unwrap();
    let cancelled = Replay { from: ReplayFrom::Cancelled, ..Replay::default() };
    assert_eq!(http.replay_dead_letters("mail", &cancelled).await.unwrap().replayed, 1);
    assert_eq!(http.replay_task(&ids[0]).await.unwrap_err().code(), Some("not_finished"));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_written_read_and_removed() {
    let (server, producer, http) = start().await;
    let policy = TopicPolicy {
        priority_tiers: Some(vec![0, 5]),
        max_attempts: Some(2),
        dead_letter_topic_ref: Some("graveyard".to_owned()),
        retention_seconds: 60,
        dead_letter_retention_seconds: 600,
        max_consumers: 3,
        max_run_seconds: 90,
    };
    let topic = http.put_topic("mail", &policy).await.unwrap();
    assert_eq!((topic.topic_name.as_str(), topic.version), ("mail", 1));
    assert_eq!(http.topic("mail").await.unwrap(), topic);
    assert_eq!(topic.policy, policy);
    let id = producer.enqueue(NewTask::new("mail", &1).unwrap().priority(9)).await.unwrap().task_id;
    let task = http.task(&id).await.unwrap();
    assert_eq!((task.priority, task.max_attempts), (5, 2));
    http.delete_topic("mail").await.unwrap();
    let gone = http.topic("mail").await.unwrap_err();
    assert_eq!(gone.code(), Some("not_found"));
    let bad = TopicPolicy { max_attempts: Some(1_000), ..TopicPolicy::default() };
    let refused = http.put_topic("mail", &bad).await.unwrap_err();
    assert!(matches!(refused, Error::Api { status: 422, .. }), "{refused}");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_tasks_are_changed_and_cancelled_together() {
    let (server, producer, http) = start().await;
    let new = NewTask::new("mail", &1).unwrap().delay(Duration::from_secs(600));
    let id = producer.enqueue(new).await.unwrap().task_id;
    let changes = TaskChanges { priority: Some(7), ..TaskChanges::default() };
    let task = http.change(&id, &changes).await.unwrap();
    assert_eq!((task.priority, task.last_known_location.as_str()), (7, "DELAYED_ZSET"));
    let changes = TaskChanges { delay_seconds: Some(0), ..TaskChanges::default() };
    assert_eq!(http.change(&id, &changes).await.unwrap().last_known_location, "PENDING_LIST");
    let refused = http.change(&id, &TaskChanges::default()).await.unwrap_err();
    assert_eq!(refused.code(), Some("invalid_body"));
    let minute = Duration::from_secs(60);
    assert_eq!(http.claim(&["mail"], minute, minute).await.unwrap().unwrap().id, id);
    let refused = http.change(&id, &changes).await.unwrap_err();
    assert_eq!(refused.code(), Some("in_progress"));
    enqueue(&producer, "mail", &2).await;
    let done = http.cancel_tasks("mail", &CancelTasks::default()).await.unwrap();
    assert_eq!((done.cancelled, done.cancel_requested, done.remaining), (1, 0, 0));
    let options = BulkOptions { dry_run: true, ..BulkOptions::default() };
    let all = CancelTasks { include_running: true, options };
    assert_eq!(http.cancel_tasks("mail", &all).await.unwrap().progress.matched, Some(1));
    let all = CancelTasks { include_running: true, ..CancelTasks::default() };
    let done = http.cancel_tasks("mail", &all).await.unwrap();
    assert_eq!((done.cancelled, done.cancel_requested), (0, 1));
    assert!(http.task(&id).await.unwrap().cancel_requested);
    let stats = http.queue("mail").await.unwrap();
    assert_eq!((stats.cancelled, stats.failed, stats.completed), (1, 0, 0));
    assert_eq!(http.queues().await.unwrap()[0].stats, stats);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_tasks_are_cleaned_up() {
    let (server, producer, http) = start().await;
    let id = enqueue(&producer, "mail", &1).await;
    enqueue(&producer, "mail", &2).await;
    http.cancel(&id).await.unwrap();
    let before = |moment: &str| BulkOptions {
        before: Some(moment.to_owned()),
        limit: Some(10),
        ..BulkOptions::default()
    };
    let old = http.cleanup(&before("2020-01-01T00:00:00Z")).await.unwrap();
    assert_eq!((old.deleted, old.limit), (0, 10));
    assert_eq!(http.cleanup(&BulkOptions::default()).await.unwrap().deleted, 0, "none has expired");
    let dry = BulkOptions { dry_run: true, ..before("2999-01-01T00:00:00Z") };
    assert_eq!(http.cleanup(&dry).await.unwrap().progress.matched, Some(1));
    assert_eq!(http.cleanup(&before("2999-01-01T00:00:00Z")).await.unwrap().deleted, 1);
    assert_eq!(http.task(&id).await.unwrap_err().code(), Some("not_found"));
    assert_eq!(http.queue("mail").await.unwrap().ready, 1);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_say_what_and_when() {
    let server = TestServer::start_with(|config| {
        config.rate_limit.producer = Some(RateLimit { requests_per_minute: 60, burst: 1 });
    })
    .await
    .unwrap();
    let http = server.http().unwrap();
    let url = format!("http://{}", server.http_addr());
    let stranger = HttpClient::new(&Options::new("s3cret").http_url(url)).unwrap();
    assert!(!format!("{stranger:?}").contains("s3cret"));
    let refused = stranger.queues().await.unwrap_err();
    assert!(matches!(&refused, Error::Api { status: 401, .. }), "{refused}");
    assert!(!format!("{refused:?}").contains("s3cret"));
    for name in ["", ".", ".."] {
        assert!(matches!(http.task(name).await, Err(Error::Config(_))));
    }
    let producer = server.producer().await.unwrap();
    let id = enqueue(&producer, "mail", &1).await;
    let busy = loop {
        match http.cancel(&id).await {
            Err(error) if error.code() == Some("rate_limited") => break error,
            _ => {}
        }
    };
    let Error::Api { status: 429, retry_after: Some(after), .. } = busy else { panic!("{busy}") };
    assert!(after >= Duration::from_secs(1));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_are_made_renewed_listed_and_removed() {
    let (server, _, http) = start().await;
    let new = NewSubscription {
        callback_url: "https://worker.example.com/wake".to_owned(),
        event_types: vec!["mail".to_owned()],
        ttl_seconds: Some(60),
        delivery_mode: Some(DeliveryMode::Group),
        group_id: Some("g".to_owned()),
        min_interval_seconds: Some(1),
    };
    let made = http.subscribe(&new).await.unwrap();
    let id = &made.subscription_id;
    assert_eq!(http.subscribe(&new).await.unwrap().subscription_id, *id);
    let renewed = http.renew_subscription(id, Some(3_600)).await.unwrap();
    assert!(renewed.expires_at > made.expires_at);
    let listed = http.subscriptions().await.unwrap();
    assert_eq!(listed, [http.subscription(id).await.unwrap()]);
    assert_eq!(listed[0].event_types, ["mail"]);
    assert_eq!(listed[0].delivery_mode, DeliveryMode::Group);
    assert_eq!((listed[0].ttl_seconds, listed[0].group_id.as_deref()), (60, Some("g")));
    assert_eq!(listed[0].expires_at, renewed.expires_at);
    http.unsubscribe(id).await.unwrap();
    let gone = http.renew_subscription(id, None).await.unwrap_err();
    assert!(matches!(gone, Error::Api { status: 404, .. }), "{gone}");
    let bare = NewSubscription { callback_url: "x".to_owned(), ..NewSubscription::default() };
    let bad = http.subscribe(&bare).await.unwrap_err();
    assert!(matches!(bad, Error::Api { status: 400, .. }), "{bad}");
    server.end().await;
}
