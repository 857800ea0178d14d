//! `codeq queue`.

use std::process::Command;

use serde_json::json;

use crate::cli::client::{Shop, fails};

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

    let paused = shop.json(&["queue", "pause", "resize", "mail"]);
    assert_eq!(paused[1], json!({ "command": "mail", "paused": true }));
    let table = shop.run(&["queue", "list", "-o", "table"]).out;
    assert_eq!(table.lines().filter(|line| line.ends_with("yes")).count(), 2, "{table}");
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
    let wrong = typed(&shop, &["queue", "purge", "resize"], "mail");
    assert!(wrong.0 == 1 && wrong.1.contains("nothing was changed"), "{wrong:?}");
    assert_eq!(ready(), 3);
    let limited = shop.json(&["queue", "purge", "resize", "--yes", "--limit", "1"]);
    assert_eq!((&limited["count"], &limited["remaining"]), (&json!(1), &json!(2)));
    let right = typed(&shop, &["queue", "purge", "resize"], "resize");
    assert_eq!(right.0, 0, "{right:?}");
    // On a terminal, a table.
    assert!(right.1.contains("Type resize to confirm") && right.1.contains("purged"), "{right:?}");
    assert_eq!(ready(), 0);
}

/// Runs a command on a terminal and types a line: the exit code and all that is seen.
fn typed(shop: &Shop, args: &[&str], line: &str) -> (i32, String) {
    const SCRIPT: &str = "import os, pty, sys\n\
        pid, terminal = pty.fork()\n\
        if pid == 0: os.execv(sys.argv[2], sys.argv[2:])\n\
        seen = b''\n\
        while b'confirm: ' not in seen: seen += os.read(terminal, 1000)\n\
        os.write(terminal, sys.argv[1].encode() + b'\\n')\n\
        while True:\n\
        \x20   try: part = os.read(terminal, 1000)\n\
        \x20   except OSError: break\n\
        \x20   if not part: break\n\
        \x20   seen += part\n\
        os.write(1, seen)\n\
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n";
    let codeq = shop.command(args);
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT, line]).arg(codeq.get_program()).args(codeq.get_args());
    python.envs(codeq.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = python.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_policy_is_set_shown_and_deleted() {
    let shop = Shop::open();
    fails(&shop.run(&["queue", "policy", "resize"]), 3, "has no policy");
    let set = ["queue", "policy", "resize", "--max-attempts", "3", "--retention", "7d"];
    let policy = shop.json(&set);
    assert_eq!(policy["policy"]["maxAttempts"], 3);
    assert_eq!(policy["policy"]["retentionSeconds"], 604_800);
    // What is not named stays.
    let changed = shop.json(&["queue", "policy", "resize", "--max-consumers", "20"]);
    assert_eq!((&changed["version"], &changed["policy"]["maxAttempts"]), (&json!(2), &json!(3)));
    assert_eq!(shop.json(&["queue", "policy", "resize"]), changed);
    let shown = shop.run(&["queue", "policy", "resize", "-o", "table"]).out;
    assert!(shown.contains("Retention          7d00h"), "{shown}");
    fails(&shop.run(&["queue", "policy", "resize", "--max-attempts", "0"]), 1, "maxAttempts");
    fails(&shop.run(&["queue", "policy", "resize", "--delete"]), 2, "not a terminal");
    assert_eq!(shop.run(&["queue", "policy", "resize", "--delete", "--yes"]).code, 0);
    fails(&shop.run(&["queue", "policy", "resize"]), 3, "has no policy");
}
