//! `codeq task`.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};

use crate::cli::client::{Shop, alone, fails, said};
use crate::server::node::Process;

#[test]
fn a_task_from_enqueue_to_result() {
    let shop = Shop::open();
    let task = shop.json(&[
        "task",
        "enqueue",
        "Resize",
        "--payload",
        r#"{"image": 7}"#,
        "--priority",
        "5",
    ]);
    let id = task["id"].as_str().unwrap();
    assert_eq!(task["payload"], r#"{"image": 7}"#);
    assert_eq!((&task["status"], &task["priority"]), (&json!("PENDING"), &json!(5)));
    assert_eq!(shop.json(&["task", "get", id])["command"], "Resize");

    // The other ways in: a file, stdin, and the words of codeQ.
    let file = shop.home.path().join("payload.json");
    std::fs::write(&file, "[1, 2]").unwrap();
    let at_file = format!("@{}", file.display());
    let second = shop.enqueue("resize", &["--payload", &at_file, "--delay", "1h"]);
    let third = shop
        .run_with(&["task", "create", "--event", "resize", "--payload", "-", "-o", "name"], "3");
    assert_eq!(third.code, 0, "{}", third.err);
    let delayed = shop.json(&["task", "get", &second]);
    assert_eq!(
        (&delayed["payload"], &delayed["lastKnownLocation"]),
        (&json!("[1, 2]"), &json!("DELAYED_ZSET"))
    );

    // Newest first, in every format.
    let ids = [third.out.trim(), &second, id];
    let list =
        |more: &[&str]| shop.run(&[&["task", "list", "--queue", "resize"], more].concat()).out;
    assert_eq!(list(&["-o", "name"]).lines().collect::<Vec<_>>(), ids);
    assert_eq!(serde_json::from_str::<Vec<Value>>(&list(&[])).unwrap().len(), 3);
    assert_eq!(list(&["-o", "jsonl"]).lines().count(), 3);
    assert!(
        list(&["-o", "yaml"]).starts_with(&format!("- id: \"{}\"\n  command: resize\n", ids[0]))
            || list(&["-o", "yaml"]).starts_with(&format!("- id: {}\n  command: resize\n", ids[0]))
    );
    let table = list(&["-o", "table"]);
    assert!(table.starts_with("ID ") && table.contains("  DELAYED  "), "{table}");
    assert!(!table.contains('\x1b'), "{table}");
    let limited = shop.run(&["task", "list", "--limit", "1", "-o", "name"]);
    assert_eq!(limited.out.trim(), ids[0]);
    assert!(limited.err.contains("--all"), "{}", limited.err);
    assert_eq!(shop.json(&["task", "list", "--status", "completed"]), json!([]));

    assert_eq!(shop.claim("resize"), id);
    shop.post(&format!("/tasks/{id}/result"), r#"{"status":"COMPLETED","result":{"width": 640}}"#);
    let result = shop.json(&["task", "wait", id]);
    assert_eq!(
        (&result["status"], &result["result"]),
        (&json!("COMPLETED"), &json!({"width": 640}))
    );
    assert_eq!(shop.run(&["task", "result", id, "--raw"]).out, "{\"width\": 640}\n");
    let details = shop.run(&["task", "result", id, "-o", "table"]).out;
    assert!(details.contains("Result    {\"width\": 640}"), "{details}");
    let history = shop.json(&["task", "history", id]);
    let events: Vec<&str> =
        history.as_array().unwrap().iter().map(|step| step["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["created", "claimed", "submitted"]);
}

#[test]
fn every_error_has_its_exit_code_and_says_what_to_try() {
    let shop = Shop::open();
    let missing = "00000000-0000-7000-8000-000000000000";
    for verb in ["get", "result", "wait", "cancel", "replay", "history", "watch"] {
        let said = shop.run(&["task", verb, missing, "-o", "name"]);
        fails(&said, 3, missing);
    }
    let id = shop.enqueue("mail", &["--idempotency-key", "k"]);
    fails(&shop.run(&["task", "result", &id]), 3, "no result yet");
    fails(&shop.run(&["task", "wait", &id, "--timeout", "10ms"]), 5, "not finished after 10ms");
    let other = shop.run(&["task", "enqueue", "mail", "--idempotency-key", "k", "--payload", "1"]);
    fails(&other, 4, "idempotency_conflict");
    assert_eq!(shop.enqueue("mail", &["--idempotency-key", "k"]), id, "the same task");
    fails(&shop.run(&["task", "replay", &id, "-o", "name"]), 4, "not_finished");

    // Cancelled at once. After that, the task is finished.
    let cancelled = shop.json(&["task", "cancel", &id]);
    assert_eq!(cancelled, json!([{ "id": id, "state": "cancelled" }]));
    fails(&shop.run(&["task", "cancel", &id, "-o", "name"]), 4, "finished");
    let failed = shop.run(&["task", "result", &id]);
    assert_eq!(failed.code, 1);
    assert!(failed.out.contains("\"FAILED\"") && failed.err.contains("codeq task history"));
    assert_eq!(shop.json(&["task", "replay", &id])[0]["status"], "PENDING");

    fails(&shop.run(&["task", "enqueue", "mail", "--payload", "{image: 7}"]), 2, "not JSON");
    fails(&shop.run(&["task", "enqueue", "mail", "--payload", "@/nowhere"]), 2, "/nowhere");
    fails(&shop.run(&["task", "enqueue", "mail", "--delay", "soon"]), 2, "10s, 5m or 2h");
    // The server would change these silently.
    fails(&shop.run(&["task", "enqueue", "mail", "--max-attempts", "0"]), 2, "1..=1000");
    fails(&shop.run(&["task", "enqueue", "mail", "--priority", "12"]), 2, "0..=9");
    fails(&shop.run(&["task", "list", "--limit", "0"]), 2, "--limit");
    fails(&shop.run(&["task", "enqueue"]), 2, "<QUEUE>");
    fails(&shop.run(&["task", "enqueue", "mail", "--run-at", "noon"]), 2, "--run-at");
    fails(&shop.run(&["task", "histry", &id]), 2, "history");
    fails(&shop.run(&["task", "list", "--token", "wrong", "-o", "name"]), 6, "invalid_token");
    fails(&shop.run(&["--token", "wrong", "task", "list", "-o", "name"]), 6, "invalid_token");
    fails(&shop.run(&["task", "list", "--url", "127.0.0.1:1"]), 2, "http://");
    fails(
        &shop.run(&["task", "list", "--url", "http://127.0.0.1:1", "-o", "name"]),
        1,
        "unavailable",
    );
    fails(
        &said(&mut alone(shop.home.path(), &["--url", "http://x", "fsck", "."]), ""),
        2,
        "before its name",
    );
}

#[test]
fn waiting_and_watching_end_with_the_task() {
    let shop = Shop::open();
    let id = shop.enqueue("mail", &[]);
    let mut command = shop.command(&["task", "watch", &id]);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let event = |line: Option<String>| {
        serde_json::from_str::<Value>(&line.unwrap()).unwrap()["event"].as_str().unwrap().to_owned()
    };
    assert_eq!(event(lines.next()), "created");
    // A second one waits inside the enqueue, and for the same queue.
    let enqueue = ["task", "enqueue", "mail", "--wait", "--timeout", "20s"];
    let waiting = Process::spawn(&mut shop.command(&enqueue));
    assert_eq!(shop.claim("mail"), id);
    assert_eq!(event(lines.next()), "claimed");
    let done = r#"{"status":"FAILED","error":"no such mailbox"}"#;
    shop.post(&format!("/tasks/{id}/result"), done);
    assert_eq!(event(lines.next()), "submitted");
    assert_eq!(lines.next(), None);
    assert!(child.wait().unwrap().success());

    let claimed = shop.post("/tasks/claim", r#"{"commands":["mail"],"waitSeconds":20}"#);
    let second = claimed.json::<Value>()["id"].as_str().unwrap().to_owned();
    shop.post(
        &format!("/tasks/{second}/result"),
        r#"{"status":"COMPLETED","result":{"sent":true}}"#,
    );
    let (status, out) = waiting.finished();
    assert_eq!(status.code(), Some(0));
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["result"], json!({ "sent": true }));
    let failed = shop.run(&["task", "wait", &id]);
    assert_eq!(failed.code, 1);
    assert!(failed.err.contains("no such mailbox"), "{}", failed.err);
}

#[test]
fn a_failed_task_is_not_taken_for_a_cancelled_one() {
    let shop = Shop::open();
    let failed = shop.enqueue("mail", &[]);
    assert_eq!(shop.claim("mail"), failed);
    shop.post(&format!("/tasks/{failed}/result"), r#"{"status":"FAILED","error":"CANCELLED"}"#);
    let cancelled = shop.enqueue("mail", &[]);
    shop.json(&["task", "cancel", &cancelled]);
    for (id, state) in [(&failed, "FAILED"), (&cancelled, "CANCELLED")] {
        // Task and result are the same for both, so the error is all there is to say.
        for verb in ["get", "result"] {
            let shown = shop.run(&["task", verb, id, "-o", "table"]).out;
            let has =
                |words: [&str; 2]| shown.lines().any(|line| line.split_whitespace().eq(words));
            assert!(has(["State", "FAILED"]) && has(["Error", "CANCELLED"]), "{shown}");
        }
        let history = shop.run(&["task", "history", id, "-o", "table"]).out;
        let last = history.lines().last().unwrap();
        assert_eq!(last.split_whitespace().nth(2), Some(state), "{history}");
    }
}

#[test]
fn a_task_says_why_it_waits() {
    let shop = Shop::open();
    let id = shop.enqueue("resize", &[]);
    let first = shop.json(&["task", "why", &id]);
    assert!(first["reasons"].to_string().contains("no_worker"), "{first}");
    shop.run(&["queue", "pause", "resize"]);
    let table = shop.run(&["task", "why", &id, "-o", "table"]).out;
    assert!(table.starts_with("Status   PENDING\nBecause  "), "{table}");
    assert!(table.contains("paused"), "{table}");
    let queue = shop.run(&["queue", "why", "resize", "-o", "name"]).out;
    assert!(queue.lines().any(|code| code == "queue_paused"), "{queue}");
    fails(&shop.run(&["task", "why", "0d2c0a8f-0000-8000-8000-000000000001"]), 3, "not_found");
}

#[test]
fn workers_are_listed() {
    let shop = Shop::open();
    let none = shop.run(&["worker", "list"]);
    assert!(none.out.trim() == "[]" && none.err.contains("no worker has a stream"), "{}", none.err);
    shop.enqueue("resize", &[]);
    shop.claim("resize");
    let seen = shop.json(&["worker", "list"]);
    assert_eq!((&seen[0]["tasksHeld"], &seen[0]["queues"][0]), (&json!(1), &json!("resize")));
    let table = shop.run(&["worker", "list", "-o", "table"]).out;
    assert!(table.starts_with("WORKER") && table.contains("resize"), "{table}");
    fails(&shop.run(&["worker", "list", "--limit", "0"]), 2, "1..=1000");
}

#[test]
fn a_wait_says_that_there_is_no_server_and_ends_in_time() {
    let home = tempfile::tempdir().unwrap();
    let id = "00000000-0000-7000-8000-000000000000";
    let nobody = "http://127.0.0.1:9";
    let wait = ["task", "wait", id, "--url", nobody, "--timeout", "300ms"];
    let started = std::time::Instant::now();
    let said = said(&mut alone(home.path(), &wait), "");
    assert!(started.elapsed() < std::time::Duration::from_secs(30));
    fails(&said, 5, &format!("{nobody}: no answer within 300ms"));
    let tried = said.err.lines().filter(|line| line.contains("trying again")).count();
    assert_eq!(tried, 1, "{}", said.err);
}

#[test]
fn a_duration_without_end_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let id = "00000000-0000-7000-8000-000000000000";
    let wait = ["task", "wait", id, "--timeout", "18446744073709551615"];
    fails(&said(&mut alone(home.path(), &wait), ""), 2, "36500d");
}
