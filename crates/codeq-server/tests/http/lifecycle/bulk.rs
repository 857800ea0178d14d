//! Purge, replay and cleanup of many tasks: the filter, the dry run, and what can be replayed.

use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, LATER, PRODUCER, UNKNOWN_ID, WORKER, WORKER_2};

const EARLIER: &str = "2001-01-01T00:00:00Z";
/// Every bulk route, and the field of its response that counts the tasks.
const ROUTES: [(&str, &str); 5] = [
    ("admin/dlq/c/purge", "purged"),
    ("admin/dlq/c/replay", "replayed"),
    ("admin/queues/c/purge", "purged"),
    ("admin/queues/c/cancel", "cancelled"),
    ("admin/tasks/cleanup", "deleted"),
];

/// Fails a task for good.
async fn failed(h: &Harness, command: &str, error: &str) -> String {
    let id = h.running(command).await;
    let end = json!({"status": "FAILED", "error": error});
    h.post(WORKER, &format!("tasks/{id}/result"), end).await.expect(200);
    id
}

/// Cancels a task that waits.
async fn cancelled(h: &Harness, command: &str) -> String {
    let id = h.task(command).await;
    h.post(PRODUCER, &format!("tasks/{id}/cancel"), json!({})).await.expect(200);
    id
}

/// Two dead letters with the errors `timeout` and `refused`, and two waiting tasks that failed once with them.
async fn fill(h: &Harness) -> Vec<String> {
    let mut ids = Vec::new();
    for error in ["timeout", "refused"] {
        ids.push(h.dead("c", error).await);
        let id = h.running("c").await;
        let back = json!({"delaySeconds": 600, "reason": error});
        h.post(WORKER, &format!("tasks/{id}/nack"), back).await.expect(200);
        ids.push(id);
    }
    ids
}

async fn statuses(h: &Harness, ids: &[String]) -> Vec<Value> {
    let mut statuses = Vec::new();
    for id in ids {
        let reply = h.get(PRODUCER, &format!("tasks/{id}")).await;
        statuses.push(if reply.status == 404 {
            json!(404)
        } else {
            reply.json()["status"].clone()
        });
    }
    statuses
}

#[tokio::test]
async fn a_dry_run_says_how_many_and_touches_nothing() {
    let h = Harness::start().await;
    let ids = fill(&h).await;
    let before = statuses(&h, &ids).await;
    for (path, name) in ROUTES {
        for (more, matched) in [
            (json!({"before": LATER}), 2),
            (json!({"before": LATER, "errorContains": "time"}), 1),
            (json!({"before": LATER, "errorContains": "nothing"}), 0),
            (json!({"before": LATER, "worker": "worker"}), 2),
            (json!({"before": LATER, "worker": "worker2"}), 0),
            (json!({"before": LATER, "after": EARLIER}), 2),
            (json!({"before": EARLIER}), 0),
            (json!({"before": LATER, "limit": 1}), 1),
        ] {
            let mut body = more.clone();
            body["dryRun"] = json!(true);
            let dry = h.post(ADMIN, path, body.clone()).await.expect(200).json();
            assert_eq!(
                (&dry["matched"], &dry["dryRun"]),
                (&json!(matched), &json!(true)),
                "{path} {more}"
            );
            assert_eq!(dry[name], 0, "{path} {more}");
            if more["limit"].is_null() {
                assert_eq!(dry.get("nextCursor"), None, "{path} {more}");
                continue;
            }
            body["cursor"] = dry["nextCursor"].clone();
            let rest = h.post(ADMIN, path, body).await.expect(200).json();
            assert_eq!(rest["matched"], 1, "it goes on where it stopped: {path} {rest}");
        }
    }
    assert_eq!(statuses(&h, &ids).await, before);
    let queue = h.get(ADMIN, "admin/queues/c").await.expect(200).json();
    assert_eq!((&queue["delayed"], &queue["dlq"]), (&json!(2), &json!(2)));
}

#[tokio::test]
async fn what_matches_is_touched_and_nothing_else() {
    for (path, name) in ROUTES {
        let h = Harness::start().await;
        let ids = fill(&h).await;
        let body = json!({"before": LATER, "after": EARLIER, "errorContains": "timeout", "worker": "worker"});
        let done = h.post(ADMIN, path, body).await.expect(200).json();
        assert_eq!(done[name], 1, "{path} {done}");
        assert!(done.get("matched").is_none() && done.get("dryRun").is_none(), "{path} {done}");
        let touched = match (path, name) {
            ("admin/queues/c/purge" | "admin/queues/c/cancel", _) => {
                [json!("FAILED"), json!("FAILED")]
            }
            (_, "replayed") => [json!("PENDING"), json!("PENDING")],
            _ => [json!(404), json!("PENDING")],
        };
        let now = statuses(&h, &ids).await;
        assert_eq!(now[..2], touched, "{path}");
        assert_eq!(now[2..], [json!("FAILED"), json!("PENDING")], "{path}");
    }
}

/// With and without a filter, a client that follows the cursor until there is none has changed everything that matches.
#[tokio::test]
async fn a_limit_leaves_a_cursor_until_all_is_done() {
    for (path, name) in ROUTES {
        for filter in [json!({}), json!({"worker": "worker"})] {
            let h = Harness::start().await;
            fill(&h).await;
            let mut body = filter.clone();
            body["limit"] = json!(1);
            if path == "admin/tasks/cleanup" {
                body["before"] = json!(LATER);
            }
            let mut changed = 0;
            loop {
                let done = h.post(ADMIN, path, body.clone()).await.expect(200).json();
                changed += done[name].as_u64().unwrap();
                body["cursor"] = done["nextCursor"].clone();
                if done["nextCursor"].is_null() {
                    break;
                }
            }
            assert_eq!(changed, 2, "{path} {filter}");
        }
    }
}

#[tokio::test]
async fn a_filter_that_is_empty_or_can_never_hold_is_refused() {
    let h = Harness::start().await;
    let ids = fill(&h).await;
    let before = statuses(&h, &ids).await;
    for (path, _) in ROUTES {
        for (body, code, field) in [
            (json!({"errorContains": ""}), "invalid_filter", "errorContains"),
            (json!({"worker": ""}), "invalid_filter", "worker"),
            (json!({"after": "soon"}), "invalid_filter", "after"),
            (json!({"after": ""}), "invalid_filter", "after"),
            (json!({"before": "soon"}), "invalid_before", "before"),
            (json!({"before": EARLIER, "after": LATER}), "invalid_filter", "after"),
            (json!({"before": LATER, "after": LATER}), "invalid_filter", "after"),
        ] {
            let refused = h.post(ADMIN, path, body.clone()).await.expect(400).json();
            let got = (&refused["code"], &refused["field"]);
            assert_eq!(got, (&json!(code), &json!(field)), "{path} {body}");
        }
        let nulls = json!({
            "errorContains": null, "before": null, "after": null, "worker": null, "limit": null,
            "cursor": null, "dryRun": true,
        });
        h.post(ADMIN, path, nulls).await.expect(200);
    }
    h.post(ADMIN, "admin/dlq/c/purge", json!({"before": ""})).await.expect(400);
    let bad = h.post(ADMIN, "admin/dlq/c/replay", json!({"from": "dead"})).await.expect(400).json();
    assert_eq!((&bad["code"], &bad["field"]), (&json!("invalid_filter"), &json!("from")));
    assert_eq!(statuses(&h, &ids).await, before);
}

#[tokio::test]
async fn a_cleanup_without_a_moment_leaves_what_has_not_expired() {
    let h = Harness::start().await;
    let (done, dead) = (h.completed("c").await, h.dead("c", "x").await);
    for body in [json!({}), json!({"before": ""}), json!({"limit": 9_999})] {
        let cleaned = h.post(ADMIN, "admin/tasks/cleanup", body).await.expect(200).json();
        assert_eq!((&cleaned["deleted"], &cleaned["limit"]), (&json!(0), &json!(1_000)));
    }
    assert_eq!(statuses(&h, &[done, dead]).await, [json!("COMPLETED"), json!("FAILED")]);
}

#[tokio::test]
async fn a_single_unsuccessful_task_is_replayed() {
    let h = Harness::start().await;
    let ids = [h.dead("c", "x").await, failed(&h, "c", "no").await, cancelled(&h, "c").await];
    for id in &ids {
        let path = |tail: &str| format!("tasks/{id}{tail}");
        let task = h.act(ADMIN, &path("/replay")).await.expect(200).json();
        assert_eq!((&task["id"], &task["status"]), (&json!(id), &json!("PENDING")));
        assert_eq!(task.get("attempts"), None, "none is spent");
        h.get(PRODUCER, &path("/result")).await.expect(404);
        let history = h.get(PRODUCER, &path("/history")).await.expect(200).json();
        let events = history["items"].as_array().unwrap();
        assert_eq!(events.last().unwrap()["event"], "replayed", "{history}");
        assert_eq!(events[0]["event"], "created");
        let refused = h.act(ADMIN, &path("/replay")).await;
        let text =
            "task is not finished; only dead-lettered, failed and cancelled tasks can be replayed";
        assert_eq!(refused.refused(409, text)["code"], "not_finished");
        // The replayed task is finished like any other.
        let claimed = h.claim(WORKER_2, "c").await;
        assert_eq!(claimed["id"], json!(id));
        h.post(WORKER_2, &path("/result"), json!({"status": "COMPLETED"})).await.expect(200);
        let refused = h.act(ADMIN, &path("/replay")).await;
        let text =
            "task is completed; only dead-lettered, failed and cancelled tasks can be replayed";
        assert_eq!(refused.refused(409, text)["code"], "completed");
    }
    h.act(ADMIN, &format!("tasks/{UNKNOWN_ID}/replay")).await.refused(404, "not found");
}

#[tokio::test]
async fn failed_and_cancelled_tasks_are_replayed_when_asked_for() {
    let h = Harness::start().await;
    let dead = h.dead("c", "x").await;
    let (bad, gone) = (failed(&h, "c", "no").await, cancelled(&h, "c").await);
    let done = h.completed("c").await;
    let ids = [dead, bad, gone, done];
    let replay = async |body: Value| {
        let reply = h.post(ADMIN, "admin/dlq/c/replay", body).await.expect(200).json();
        (reply["replayed"].clone(), reply["remaining"].clone())
    };
    assert_eq!(replay(json!({"from": "failed", "errorContains": "x"})).await, (json!(0), json!(1)));
    assert_eq!(replay(json!({"from": "failed"})).await, (json!(1), json!(0)));
    let [p, f] = ["PENDING", "FAILED"].map(Value::from);
    let end = json!("COMPLETED");
    assert_eq!(statuses(&h, &ids).await, [f.clone(), p.clone(), f.clone(), end.clone()]);
    assert_eq!(replay(json!({})).await, (json!(1), json!(0)), "dead letters by default");
    assert_eq!(replay(json!({"from": "cancelled"})).await, (json!(1), json!(0)));
    assert_eq!(statuses(&h, &ids).await, [p.clone(), p.clone(), p, end]);
}

#[tokio::test]
async fn waiting_tasks_are_cancelled_and_the_workers_of_running_ones_are_asked() {
    let h = Harness::start().await;
    let running = [h.running("c").await, h.running("c").await];
    let waiting = [h.task("c").await, h.task("c").await, h.task("c").await];
    let other = h.task("d").await;
    let cancel = async |body| h.post(ADMIN, "admin/queues/c/cancel", body).await.expect(200).json();
    let first = cancel(json!({"limit": 1})).await;
    assert_eq!((&first["cancelled"], &first["cancelRequested"]), (&json!(1), &json!(0)));
    assert_eq!((&first["remaining"], first["nextCursor"].is_string()), (&json!(2), true));
    let dry = cancel(json!({"includeRunning": true, "dryRun": true})).await;
    assert_eq!((&dry["matched"], &dry["cancelled"]), (&json!(4), &json!(0)));
    // In two calls: two waiting tasks and a running one, then the other running one.
    let part = cancel(json!({"includeRunning": true, "limit": 3})).await;
    assert_eq!((&part["cancelled"], &part["cancelRequested"]), (&json!(2), &json!(1)));
    let cursor = part["nextCursor"].clone();
    let rest = cancel(json!({"includeRunning": true, "cursor": cursor})).await;
    assert_eq!(rest, json!({"cancelled": 0, "cancelRequested": 1, "remaining": 2}));
    let again = cancel(json!({"includeRunning": true})).await;
    assert_eq!(again, json!({"cancelled": 0, "cancelRequested": 0, "remaining": 2}), "once");
    for id in &running {
        let beat = h.act(WORKER, &format!("tasks/{id}/heartbeat")).await.expect(200).json();
        assert_eq!(beat["cancelRequested"], true);
        h.act(WORKER, &format!("tasks/{id}/nack")).await.expect(200);
        let why = h.get(PRODUCER, &format!("tasks/{id}/why")).await.expect(200).json();
        assert_eq!(
            (&why["reasons"][0]["code"], &why["reasons"][0]["by"]),
            (&json!("cancelled"), &json!("admin"))
        );
    }
    let ids = [&running[..], &waiting[..]].concat();
    assert_eq!(statuses(&h, &ids).await, vec![json!("FAILED"); 5]);
    assert_eq!(statuses(&h, &[other]).await, [json!("PENDING")]);
    let none = h.post(ADMIN, "admin/queues/none/cancel", json!({})).await.expect(200).json();
    assert_eq!(none, json!({"cancelled": 0, "cancelRequested": 0, "remaining": 0}));
    let wrong = json!({"includeRunning": true, "cursor": part["nextCursor"], "worker": "w"});
    let refused = h.post(ADMIN, "admin/queues/c/cancel", wrong).await.expect(400).json();
    assert_eq!(refused["code"], "invalid_cursor");
}

#[tokio::test]
async fn finished_tasks_are_counted_by_how_they_ended() {
    let mut h = Harness::start().await;
    let ids = [
        h.completed("c").await,
        h.completed("c").await,
        h.completed("c").await,
        failed(&h, "c", "no").await,
        cancelled(&h, "c").await,
        cancelled(&h, "c").await,
        h.dead("c", "x").await,
    ];
    for round in 0..2 {
        let one = h.get(ADMIN, "admin/queues/c").await.expect(200).json();
        let list = h.get(ADMIN, "admin/queues?format=list").await.expect(200).json();
        for queue in [&one, &list["items"][0]] {
            let counts = ["completed", "failed", "cancelled", "dlq"].map(|name| &queue[name]);
            assert_eq!(counts, [&json!(3), &json!(1), &json!(2), &json!(1)], "{round}");
        }
        h = h.restart().await;
    }
    let metrics = h.get("", "/metrics").await.expect(200).text();
    for (state, count) in [("completed", 3), ("failed", 1), ("cancelled", 2), ("dead", 1)] {
        let line = format!("codeq_queue_finished{{command=\"c\",state=\"{state}\"}} {count}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    // The counters follow, however the tasks leave their state.
    h.act(ADMIN, &format!("tasks/{}/replay", ids[4])).await.expect(200);
    h.post(ADMIN, "admin/dlq/c/replay", json!({"from": "failed"})).await.expect(200);
    h.post(ADMIN, "admin/dlq/c/purge", json!({})).await.expect(200);
    let one = h.get(ADMIN, "admin/queues/c").await.expect(200).json();
    let names = ["ready", "completed", "failed", "cancelled", "dlq"];
    assert_eq!(names.map(|name| &one[name]), [2, 3, 0, 1, 0].map(|n| json!(n)).each_ref());
    h.post(ADMIN, "admin/tasks/cleanup", json!({"before": LATER})).await.expect(200);
    let one = h.get(ADMIN, "admin/queues/c").await.expect(200).json();
    assert_eq!(names.map(|name| &one[name]), [2, 0, 0, 0, 0].map(|n| json!(n)).each_ref());
}
