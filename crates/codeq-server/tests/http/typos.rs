//! Mistakes of somebody who uses codeQ for the first time: each is answered with what is wrong and what to do.
//! Another one, a second server on the same data directory, is in the tests of the binary (`server/start.rs`).

use reqwest::Method;
use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, PRODUCER, UNKNOWN_ID, WORKER, send};

/// A request, and what must be in the answer to it.
struct Typo {
    what: &'static str,
    token: &'static str,
    method: Method,
    path: &'static str,
    body: Value,
    status: u16,
    told: &'static [&'static str],
}

fn post(what: &'static str, token: &'static str, path: &'static str, body: Value) -> Typo {
    Typo { what, token, method: Method::POST, path, body, status: 400, told: &[] }
}

fn get(what: &'static str, token: &'static str, path: &'static str) -> Typo {
    Typo { method: Method::GET, ..post(what, token, path, Value::Null) }
}

fn typos() -> Vec<Typo> {
    let task = |change: Value| {
        crate::http::shape::with(json!({"command": "resize", "payload": 1}), change)
    };
    vec![
        Typo {
            told: &["unknown field 'prioritty'", "did you mean 'priority'?"],
            ..post("wrong field", PRODUCER, "tasks", task(json!({"prioritty": 9})))
        },
        Typo {
            told: &["unknown query parameter 'comand'", "did you mean 'command'?"],
            ..get("wrong parameter", PRODUCER, "tasks?comand=resize")
        },
        Typo {
            status: 404,
            told: &["there is no POST /v1/codeq/task", "did you mean POST /v1/codeq/tasks?"],
            ..post("wrong route", PRODUCER, "task", task(json!({})))
        },
        Typo {
            status: 404,
            told: &["there is no POST /tasks", "did you mean POST /v1/codeq/tasks?"],
            ..post("wrong route", PRODUCER, "/tasks", task(json!({})))
        },
        Typo {
            status: 405,
            told: &["does not support POST: use GET", "did you mean POST /v1/codeq/tasks/claim?"],
            ..post("wrong route", WORKER, "tasks/claims", json!({}))
        },
        Typo {
            status: 405,
            told: &["/v1/codeq/tasks/claim does not support GET", "use POST"],
            ..get("wrong method", WORKER, "tasks/claim")
        },
        Typo {
            told: &["'priority': found a string, expected a whole number"],
            ..post("wrong type", PRODUCER, "tasks", task(json!({"priority": "high"})))
        },
        Typo {
            status: 401,
            told: &[
                "the token is not valid: use a token that this server's configuration accepts",
                "log",
            ],
            ..get("wrong token", "a-nobody", "tasks")
        },
        Typo {
            status: 403,
            told: &["codeq:admin"],
            ..get("wrong token", PRODUCER, "admin/queues")
        },
        Typo {
            status: 200,
            told: &["queue 'resise' has no tasks", "did you mean 'resize'?"],
            ..get("wrong queue", ADMIN, "admin/queues/resise")
        },
        Typo {
            status: 200,
            told: &["queue 'resise' has no tasks", "did you mean 'resize'?"],
            ..post("wrong queue", ADMIN, "admin/dlq/resise/purge", json!({}))
        },
        Typo {
            status: 200,
            told: &["did you mean 'resize'?"],
            ..get("wrong queue", PRODUCER, "tasks?command=rezise")
        },
        Typo {
            told: &["leaseSeconds is 300000, but must be 1 to 43200 seconds (12 hours)"],
            ..post("wrong unit", WORKER, "tasks/claim", json!({"leaseSeconds": 300_000}))
        },
        Typo {
            told: &["'leaseSeconds': found a string, expected a whole number, in seconds"],
            ..post("wrong unit", WORKER, "tasks/claim", json!({"leaseSeconds": "5m"}))
        },
        Typo {
            told: &[
                "'runAt': found a whole number, expected a string in RFC 3339, such as 2026-01-31T08:00:00Z",
            ],
            ..post("wrong unit", PRODUCER, "tasks", task(json!({"runAt": 1_790_000_000})))
        },
        Typo {
            told: &["at most 316224000 seconds", "delaySeconds is in seconds"],
            ..post(
                "wrong unit",
                PRODUCER,
                "tasks",
                task(json!({"delaySeconds": 1_790_000_000_000_u64})),
            )
        },
        Typo {
            told: &["unknown field 'Priority'", "did you mean 'priority'?"],
            ..post("wrong case", PRODUCER, "tasks", task(json!({"Priority": 1})))
        },
        Typo {
            told: &["status must be COMPLETED or FAILED, in capitals"],
            ..post("wrong case", WORKER, "tasks/RUNNING/result", json!({"status": "completed"}))
        },
        Typo {
            status: 401,
            told: &["send the header 'Authorization: Bearer <token>'"],
            ..post("missing header", "", "tasks", task(json!({})))
        },
        Typo {
            status: 404,
            told: &[
                "the token's tenant has no task with this id",
                "removed when its retention ended",
            ],
            ..get("stale id", PRODUCER, "tasks/UNKNOWN")
        },
        Typo {
            status: 404,
            told: &["this is not a task id", "the response to the enqueue"],
            ..get("stale id", PRODUCER, "tasks/task-1")
        },
        Typo {
            status: 409,
            told: &["the task has no lease"],
            ..post("stale lease", WORKER, "tasks/DONE/nack", json!({}))
        },
    ]
}

#[tokio::test]
async fn every_mistake_is_named_with_the_way_out() {
    let h = Harness::start().await;
    let done = h.completed("resize").await;
    let running = h.running("resize").await;
    for typo in typos() {
        let path = typo.path.replace("RUNNING", &running).replace("DONE", &done);
        let path = path.replace("UNKNOWN", UNKNOWN_ID);
        let request = h.request(typo.method, typo.token, &path);
        let request =
            if typo.body.is_null() { request } else { request.body(typo.body.to_string()) };
        let reply = send(request).await;
        let told = match reply.header("x-codeq-hint") {
            Some(hint) => hint.to_owned(),
            None => reply.json()["detail"].as_str().unwrap_or_default().to_owned(),
        };
        assert_eq!(reply.status, typo.status, "{} {path}: {}", typo.what, reply.text());
        for part in typo.told {
            assert!(told.contains(part), "{} {path}: {told:?} does not say {part:?}", typo.what);
        }
    }
}

#[tokio::test]
async fn a_queue_that_is_known_needs_no_hint() {
    let h = Harness::start().await;
    h.task("resize").await;
    for path in ["admin/queues/RESIZE", "admin/dlq/resize", "tasks?command=Resize", "tasks"] {
        assert_eq!(h.get(ADMIN, path).await.expect(200).header("x-codeq-hint"), None, "{path}");
    }
    let far = h.get(ADMIN, "admin/queues/m%C3%A4ils").await.expect(200);
    let hint = r"queue 'm\u{e4}ils' has no tasks";
    assert_eq!(far.header("x-codeq-hint"), Some(hint));
}

#[tokio::test]
async fn a_query_parameter_is_given_once_and_has_a_name() {
    let h = Harness::start().await;
    for (query, told) in [
        ("limit=1&limit=2", "'limit' is given more than once"),
        ("limit=1&command=a&limit=1", "'limit' is given more than once"),
        ("=5", "unknown query parameter ''"),
    ] {
        let reply = h.get(ADMIN, &format!("tasks?{query}")).await.expect(400);
        assert!(reply.text().contains(told), "{query}: {}", reply.text());
    }
    h.get(ADMIN, "tasks?limit=1&&command=a&").await.expect(200);
    let stream = h.request(reqwest::Method::GET, ADMIN, "events");
    let refused =
        stream.header("last-event-id", reqwest::header::HeaderValue::from_bytes(b"\xe4").unwrap());
    let refused = send(refused).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (400, Some("invalid_event_id")));
}
