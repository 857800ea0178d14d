//! `codeq dlq`.

use serde_json::{Value, json};

use crate::cli::client::{Shop, fails};

#[test]
fn dead_letters_are_found_grouped_replayed_and_purged() {
    let shop = Shop::open();
    shop.enqueue("resize", &["--delay", "1h"]);
    assert_eq!(shop.json(&["dlq", "list", "resize"]), json!([]));
    let first = shop.dead("resize", "timeout after 30 s");
    let second = shop.dead("resize", "timeout after 5 s");
    let third = shop.dead("resize", "no such image");
    let listed = shop.run(&["dlq", "list", "resize", "-o", "name"]).out;
    assert_eq!(listed.lines().collect::<Vec<_>>(), [&third, &second, &first]);
    let some = shop.run(&["dlq", "list", "resize", "--error", "no such image", "-o", "name"]).out;
    assert_eq!(some.trim(), third);
    let groups = shop.json(&["dlq", "groups", "resize"]);
    assert_eq!(
        (&groups[0]["count"], &groups[0]["error"]),
        (&json!(2), &json!("timeout after 5 s"))
    );
    assert_eq!((&groups[0]["latest"], &groups[1]["latest"]), (&json!(second), &json!(third)));

    // A group can be listed and replayed.
    let group = groups[0]["group"].as_str().unwrap();
    let of_group = shop.run(&["dlq", "list", "resize", "--group", group, "-o", "name"]).out;
    assert_eq!(of_group.lines().collect::<Vec<_>>(), [&second, &first]);
    // Says how many it looked at, not how many it found.
    let newest = |n: &str| {
        shop.run(&["dlq", "list", "resize", "--group", group, "--limit", n, "-o", "name"])
    };
    let none = newest("1");
    assert!(none.out.is_empty() && none.err.contains("none of the newest 1 "), "{}", none.err);
    let some = newest("2");
    assert_eq!(some.out.trim(), second);
    assert!(some.err.contains("only the newest 2 were looked at"), "{}", some.err);
    let all = newest("4");
    assert!(all.out.lines().count() == 2 && !all.err.contains("newest"), "{}", all.err);
    let other = shop.run(&["dlq", "list", "resize", "--group", "nothing"]);
    assert!(other.err.contains("no dead letters that match"), "{}", other.err);
    let replay =
        |more: &[&str]| shop.run(&[&["dlq", "replay", "resize", "--group", group], more].concat());
    let dry: Value = serde_json::from_str(&replay(&["--dry-run"]).out).unwrap();
    assert_eq!(
        (&dry["matched"], &dry["count"], &dry["remaining"]),
        (&json!(2), &json!(0), &json!(2))
    );
    let one: Value = serde_json::from_str(&replay(&["--limit", "1"]).out).unwrap();
    assert_eq!((&one["count"], &one["remaining"]), (&json!(1), &json!(1)));
    assert_eq!(shop.json(&["task", "get", &second])["status"], "PENDING");
    assert_eq!(shop.json(&["task", "get", &first])["status"], "FAILED");
    shop.json(&["task", "cancel", &second]);
    fails(&replay(&["--error", "x"]), 2, "--group");
    fails(&shop.run(&["dlq", "replay", "resize", "--group", "nothing"]), 3, "group nothing");
    let fourth = shop.dead("resize", "timeout after 7 s");

    let dry = shop.json(&["dlq", "replay", "resize", "--error", "timeout", "--dry-run"]);
    assert_eq!((&dry["matched"], &dry["count"]), (&json!(2), &json!(0)));
    let replayed = shop.json(&["dlq", "replay", "resize", "--error", "timeout"]);
    assert_eq!((&replayed["count"], &replayed["remaining"]), (&json!(2), &json!(1)));
    assert_eq!(shop.json(&["task", "get", &first])["status"], "PENDING");
    assert_eq!(shop.json(&["task", "get", &fourth])["status"], "PENDING");

    fails(&shop.run(&["dlq", "purge", "resize"]), 2, "--yes");
    assert_eq!(shop.json(&["dlq", "purge", "resize", "--before", "1h", "--yes"])["count"], 0);
    assert_eq!(shop.json(&["dlq", "purge", "resize", "--yes"])["count"], 1);
    fails(&shop.run(&["task", "get", &third]), 3, &third);
    fails(&shop.run(&["dlq", "list", "resize", "--created-after", "never"]), 2, "2h");
    fails(&shop.run(&["dlq", "list", "resize", "--token", "wrong", "-o", "name"]), 6, "token");
}

#[test]
fn a_group_of_dead_letters_is_purged_and_nothing_else() {
    let shop = Shop::open();
    let reasons = ["timeout after 30 s", "timeout", "timeout after 5 s", "no timeout after 5 s"];
    let ids = reasons.map(|reason| shop.dead("resize", reason));
    let group = shop.json(&["dlq", "groups", "resize"])[0]["group"].as_str().unwrap().to_owned();
    let purge = |more: &[&str]| {
        shop.run(&[&["dlq", "purge", "resize", "--group", group.as_str()], more].concat())
    };
    fails(&purge(&[]), 2, "--yes");
    fails(&purge(&["--error", "x", "--yes"]), 2, "--group");
    let dry: Value = serde_json::from_str(&purge(&["--dry-run"]).out).unwrap();
    assert_eq!((&dry["matched"], &dry["count"]), (&json!(2), &json!(0)));
    let one: Value = serde_json::from_str(&purge(&["--limit", "1", "--yes"]).out).unwrap();
    assert_eq!((&one["count"], &one["remaining"]), (&json!(1), &json!(1)));
    let rest: Value = serde_json::from_str(&purge(&["--yes"]).out).unwrap();
    assert_eq!((&rest["count"], &rest["remaining"]), (&json!(1), &json!(0)));
    let left = shop.run(&["dlq", "list", "resize", "-o", "name"]).out;
    assert_eq!(left.lines().collect::<Vec<_>>(), [&ids[3], &ids[1]]);
    fails(&purge(&["--yes"]), 3, &group);
}
