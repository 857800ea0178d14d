//! `codeq task run-now`, `update`, and tasks cancelled or replayed together.

use serde_json::json;

use crate::cli::client::{Shop, fails};

#[test]
fn a_waiting_task_is_changed() {
    let shop = Shop::open();
    let id = shop.enqueue("resize", &["--delay", "1h"]);
    let changed = shop.json(&["task", "update", &id, "--priority", "7", "--delay", "10m"]);
    assert_eq!((&changed[0]["priority"], &changed[0]["id"]), (&json!(7), &json!(id)));
    let table = shop.run(&["task", "update", &id, "--priority", "8", "-o", "table"]).out;
    assert!(table.contains("DELAYED"), "{table}");
    let later = ["task", "update", &id, "--run-at", "2030-01-31T08:00:00Z"];
    assert_eq!(shop.json(&later)[0]["visibleAt"], "2030-01-31T08:00:00.000Z");
    let ready = shop.json(&["task", "run-now", &id]);
    assert_eq!(ready[0]["lastKnownLocation"], "PENDING_LIST");
    assert_eq!(shop.claim("resize"), id);

    fails(&shop.run(&["task", "run-now", &id, "-o", "name"]), 4, "in_progress");
    shop.post(&format!("/tasks/{id}/result"), r#"{"status":"COMPLETED"}"#);
    let finished = shop.run(&["task", "update", &id, "--priority", "1", "-o", "name"]);
    fails(&finished, 4, "(finished");
    let missing = "00000000-0000-7000-8000-000000000000";
    fails(&shop.run(&["task", "run-now", missing, "-o", "name"]), 3, missing);
    fails(&shop.run(&["task", "update", &id]), 2, "--priority");
    fails(&shop.run(&["task", "update", &id, "--priority", "10"]), 2, "0..=9");
    fails(&shop.run(&["task", "update", &id, "--delay", "1m", "--run-at", "x"]), 2, "--run-at");
    let other = shop.enqueue("resize", &[]);
    let bad = shop.run(&["task", "update", &other, "--run-at", "noon", "-o", "name"]);
    fails(&bad, 2, "--run-at");
    // A task that cannot be changed does not keep the others from being changed.
    let both = shop.run(&["task", "update", &id, &other, "--priority", "3"]);
    assert_eq!(both.code, 4, "{}", both.err);
    assert_eq!(shop.json(&["task", "get", &other])["priority"], 3);
}

#[test]
fn tasks_of_a_queue_are_cancelled_and_replayed() {
    let shop = Shop::open();
    let running = shop.enqueue("resize", &[]);
    assert_eq!(shop.claim("resize"), running);
    let waiting = shop.enqueue("resize", &[]);
    shop.enqueue("resize", &["--delay", "1h"]);
    let other = shop.enqueue("mail", &[]);
    fn cancel<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["task", "cancel", "--queue", "resize"], more].concat()
    }
    let dry = shop.json(&cancel(&["--dry-run"]));
    assert_eq!((&dry["matched"], &dry["count"]), (&json!(2), &json!(0)));
    let dry = shop.json(&cancel(&["--include-running", "--dry-run"]));
    assert_eq!(dry["matched"], 3);
    fails(&shop.run(&cancel(&[])), 2, "not a terminal");
    assert_eq!(shop.json(&cancel(&["--before", "1h", "--yes"]))["count"], 0);
    let done = shop.json(&cancel(&["--yes"]));
    assert_eq!((&done["count"], &done["remaining"]), (&json!(2), &json!(0)));
    assert_eq!(shop.json(&cancel(&["--include-running", "--yes"]))["count"], 1);
    assert_eq!(shop.json(&["task", "get", &running])["cancelRequested"], true);
    let queue = shop.json(&["queue", "get", "resize"]);
    assert_eq!((&queue["cancelled"], &queue["failed"]), (&json!(2), &json!(0)));
    assert_eq!(shop.json(&["task", "get", &other])["status"], "PENDING");

    let replay = ["task", "replay", "--queue", "resize", "--from", "cancelled"];
    assert_eq!(shop.json(&[&replay[..], &["--dry-run"]].concat())["matched"], 2);
    let done = shop.json(&replay);
    assert_eq!((&done["count"], &done["remaining"]), (&json!(2), &json!(0)));
    assert_eq!(shop.json(&["task", "get", &waiting])["status"], "PENDING");
    assert_eq!(shop.json(&["task", "replay", "--queue", "resize"])["count"], 0, "no dead letters");

    fails(&shop.run(&["task", "cancel"]), 2, "<ID>");
    fails(&shop.run(&["task", "cancel", &waiting, "--queue", "resize"]), 2, "--queue");
    fails(&shop.run(&["task", "cancel", &waiting, "--error", "x"]), 2, "need --queue");
    fails(&shop.run(&["task", "cancel", &waiting, "--include-running"]), 2, "--queue");
    fails(&shop.run(&["task", "replay", &waiting, "--worker", "w"]), 2, "need --queue");
    fails(&shop.run(&["task", "replay", &waiting, "--dry-run"]), 2, "need --queue");
    fails(&shop.run(&["task", "replay", &waiting, "--from", "failed"]), 2, "--from");
    fails(&shop.run(&cancel(&["--yes", "--token", "wrong", "-o", "name"])), 6, "invalid_token");
}
