//! `codeq queue`.

use serde_json::json;

use crate::cli::client::{Shop, fails};
use crate::cli::terminal::on_terminal;

#[test]
fn queues_are_listed_paused_and_resumed() {
    let shop = Shop::open();
    assert_eq!(shop.json(&["queue", "list"]), json!([]));
    shop.enqueue("resize", &[]);
    shop.enqueue("resize", &["--delay", "1h"]);
    shop.enqueue("mail", &[]);
    assert_eq!(shop.run(&["queue", "list", "-o", "name"]).out, "mail\nresize\n");
    let queue = shop.json(&["queue", "get", "Resize"]);
    let counts = [&queue["ready"], &queue["delayed"], &queue["inProgress"], &queue["paused"]];
    assert_eq!(counts, [&json!(1), &json!(1), &json!(0), &json!(false)]);
    assert_eq!(shop.json(&["queue", "inspect", "resize"])["ready"], 1);
    fails(&shop.run(&["queue", "get", "nothing"]), 3, "there is no queue 'nothing'");
    fails(&shop.run(&["queue", "why", "resize", "--token", "wrong"]), 6, "invalid_token");
    // A typo pauses nothing, and creates nothing.
    let typo = shop.run(&["queue", "pause", "mail", "reszie", "-o", "name"]);
    fails(&typo, 3, "there is no queue 'reszie'");
    assert!(typo.err.contains("did you mean 'resize'?") && typo.err.contains("--create"));
    fails(&shop.run(&["queue", "resume", "reszie", "-o", "name"]), 3, "did you mean 'resize'?");
    // What was done is still a whole list, and an error does not end the command.
    let some = shop.run(&["queue", "resume", "mail", "reszie", "resize"]);
    assert_eq!(some.code, 3, "{}", some.err);
    let done: serde_json::Value = serde_json::from_str(&some.out).unwrap();
    assert_eq!((&done[0]["command"], &done[1]["command"]), (&json!("mail"), &json!("resize")));
    assert_eq!(shop.run(&["queue", "list", "-o", "name"]).out, "mail\nresize\n");
    assert_eq!(shop.json(&["queue", "get", "mail"])["paused"], false);
    let early = shop.json(&["queue", "pause", "upload", "--create"]);
    assert_eq!(early, json!([{ "command": "upload", "paused": true }]));
    assert_eq!(shop.json(&["queue", "resume", "upload"])[0]["paused"], false);

    let paused = shop.json(&["queue", "pause", "resize", "mail"]);
    assert_eq!(paused[1], json!({ "command": "mail", "paused": true }));
    let table = shop.run(&["queue", "list", "-o", "table"]).out;
    assert_eq!(table.lines().filter(|line| line.contains(" yes ")).count(), 2, "{table}");
    assert!(
        table.starts_with("QUEUE ") && table.contains("FAILED  CANCELLED  COMPLETED"),
        "{table}"
    );
    shop.json(&["queue", "resume", "resize", "mail"]);
    assert_eq!(shop.json(&["queue", "get", "mail"])["paused"], false);
    let denied = shop.run(&["queue", "list", "--token", "wrong", "-o", "name"]);
    fails(&denied, 6, "invalid_token");
}

#[test]
fn a_purge_is_confirmed() {
    let shop = Shop::open();
    for _ in 0..3 {
        shop.enqueue("resize", &[]);
    }
    let dry = shop.json(&["queue", "purge", "resize", "--dry-run"]);
    assert_eq!(
        (&dry["matched"], &dry["count"], &dry["dryRun"]),
        (&json!(3), &json!(0), &json!(true))
    );
    fails(&shop.run(&["queue", "purge", "resize"]), 2, "not a terminal");
    let ready = || shop.json(&["queue", "get", "resize"])["ready"].clone();
    assert_eq!(ready(), 3);

    // A person who types something else, and one who types the name.
    let typed = |name: &str| {
        let steps = [("confirm: ", format!("{name}\n"))];
        let steps = steps.each_ref().map(|(text, typed)| (*text, typed.as_str()));
        on_terminal(&shop, &["queue", "purge", "resize"], (80, 24), &steps)
    };
    let wrong = typed("mail");
    assert!(wrong.code == 1 && wrong.text.contains("nothing was changed"), "{wrong:?}");
    assert_eq!(ready(), 3);
    let limited = shop.json(&["queue", "purge", "resize", "--yes", "--limit", "1"]);
    assert_eq!((&limited["count"], &limited["remaining"]), (&json!(1), &json!(2)));
    let right = typed("resize");
    assert_eq!(right.code, 0, "{right:?}");
    // On a terminal, a table.
    let text = &right.text;
    assert!(text.contains("Type resize to confirm") && text.contains("purged"), "{right:?}");
    assert_eq!(ready(), 0);
}

/// More than the server purges at once.
#[test]
fn a_purge_goes_on_until_nothing_is_left() {
    let shop = Shop::open();
    let tasks = vec![json!({ "command": "resize", "payload": 1 }); 100];
    for _ in 0..12 {
        shop.post("/tasks/batch", &json!({ "tasks": tasks }).to_string());
    }
    let purge = |more: &[&str]| shop.json(&[&["queue", "purge", "resize", "--yes"], more].concat());
    assert_eq!(purge(&["--dry-run"])["matched"], 1_200);
    let some = purge(&["--limit", "50"]);
    assert_eq!((&some["count"], &some["remaining"]), (&json!(50), &json!(1_150)));
    // None of the tasks has an error: nothing is purged, and the command ends.
    assert_eq!(purge(&["--error", "x"])["count"], 0);
    let rest = purge(&[]);
    assert_eq!((&rest["count"], &rest["remaining"]), (&json!(1_150), &json!(0)));
}

#[test]
fn a_policy_is_set_shown_and_deleted() {
    let shop = Shop::open();
    fails(&shop.run(&["queue", "policy", "resize"]), 3, "has no policy");
    let planned = shop.run(&["queue", "policy", "resize", "--max-attempts", "3", "--dry-run"]);
    let shown: serde_json::Value = serde_json::from_str(&planned.out).unwrap();
    assert_eq!((&shown["policy"]["maxAttempts"], &shown["dryRun"]), (&json!(3), &json!(true)));
    assert!(planned.err.contains("would become"), "{}", planned.err);
    fails(&shop.run(&["queue", "policy", "resize"]), 3, "has no policy");
    let set = ["queue", "policy", "resize", "--max-attempts", "3", "--retention", "7d"];
    let policy = shop.json(&set);
    assert_eq!(policy["policy"]["maxAttempts"], 3);
    assert_eq!(policy["policy"]["retentionSeconds"], 604_800);
    // Settings that are not named stay.
    let changed =
        shop.json(&["queue", "policy", "resize", "--max-consumers", "20", "--max-run", "10m"]);
    assert_eq!(changed["policy"]["maxRunSeconds"], 600);
    assert_eq!((&changed["version"], &changed["policy"]["maxAttempts"]), (&json!(2), &json!(3)));
    assert_eq!(shop.json(&["queue", "policy", "resize"]), changed);
    let shown = shop.run(&["queue", "policy", "resize", "-o", "table"]).out;
    assert!(shown.contains("Retention          7d00h"), "{shown}");
    for (option, value) in
        [("--max-attempts", "0"), ("--max-consumers", "10001"), ("--priority-tiers", "1,11")]
    {
        fails(&shop.run(&["queue", "policy", "resize", option, value]), 2, option);
    }
    // The policy changes a task, and that is said.
    let enqueued = shop.run(&["task", "enqueue", "resize", "--max-attempts", "9"]);
    assert!(enqueued.err.contains("changed --max-attempts 9 to 3"), "{}", enqueued.err);
    fails(&shop.run(&["queue", "policy", "resize", "--delete"]), 2, "not a terminal");
    assert_eq!(shop.run(&["queue", "policy", "resize", "--delete", "--yes"]).code, 0);
    fails(&shop.run(&["queue", "policy", "resize"]), 3, "has no policy");
}

#[test]
fn a_misspelt_queue_is_not_found() {
    let shop = Shop::open();
    shop.post("/tasks", &json!({ "command": "resize", "payload": 1 }).to_string());
    for args in [
        &["queue", "why", "rezise"] as &[&str],
        &["queue", "purge", "rezise", "--yes"],
        &["dlq", "list", "rezise"],
        &["dlq", "groups", "rezise"],
        &["dlq", "replay", "rezise"],
        &["dlq", "purge", "rezise", "--yes"],
    ] {
        fails(&shop.run(args), 3, "there is no queue 'rezise'");
        assert!(shop.run(args).err.contains("did you mean 'resize'?"), "{args:?}");
    }
    // Names ignore case, and a queue with nothing to do is no error.
    assert_eq!(shop.json(&["dlq", "replay", "RESIZE"])["count"], 0);
}
