//! `codeq top`.

use crate::cli::client::{Shop, fails};
use crate::cli::terminal::on_terminal;

#[test]
fn the_numbers_are_those_of_the_api() {
    let shop = Shop::open();
    let empty = shop.run(&["top", "--once"]).out;
    assert!(empty.contains("rates    0.0/s enqueued, 0.0/s claimed"), "{empty}");
    for _ in 0..3 {
        shop.enqueue("resize", &[]);
    }
    shop.enqueue("resize", &["--delay", "1h"]);
    shop.dead("mail", "no such mailbox");
    shop.claim("resize");
    let top = shop.run(&["top", "--once"]);
    assert_eq!(top.code, 0, "{}", top.err);
    let line = |name: &str| {
        let line = top.out.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let titles = line("QUEUE");
    for name in ["resize", "mail"] {
        let api = shop.json(&["queue", "get", name]);
        let (cells, name) = (line(name), name);
        for (title, field) in
            [("READY", "ready"), ("DELAYED", "delayed"), ("RUNNING", "inProgress"), ("DEAD", "dlq")]
        {
            let at = titles.iter().position(|found| found == title).unwrap();
            assert_eq!(cells[at], api[field].to_string(), "{name} {title}:\n{}", top.out);
        }
    }
    let sums = "tasks    2 ready, 1 delayed, 1 running, 1 dead; oldest ";
    assert!(top.out.contains(sums), "{}", top.out);
    assert!(
        top.out.contains("server   workers (1h) 1, streams 0, waiting claims 0, commit latency "),
        "{}",
        top.out
    );
    fails(&shop.run(&["top", "--once", "--token", "wrong"]), 6, "invalid_token");
    fails(&shop.run(&["top", "--once", "--url", "http://127.0.0.1:9"]), 1, "127.0.0.1:9");
}

#[test]
fn keys_work_and_the_terminal_is_restored() {
    let shop = Shop::open();
    shop.enqueue("resize", &[]);
    let (enter, leave) = ("\x1b[?1049h", "\x1b[?1049l");
    // The queue appears, then the sorted column, then the reversed one.
    let steps = [("resize", "\x1b[C"), ("▾READY", "r"), ("▴READY", "q")];
    let seen = on_terminal(&shop, &["top"], (80, 24), &steps);
    assert_eq!((seen.code, seen.restored), (0, true), "{seen:?}");
    assert!(seen.text.starts_with(enter) && seen.text.trim_end().ends_with(leave), "{seen:?}");
    assert!(!seen.text.contains("FAILED"), "{seen:?}");
    for end in ["\x03", "signal SIGTERM", "signal SIGHUP"] {
        let seen = on_terminal(&shop, &["top"], (200, 50), &[("FAILED", end)]);
        assert_eq!((seen.code, seen.restored), (0, true), "{end:?}: {seen:?}");
        assert!(seen.text.trim_end().ends_with(leave), "{end:?}: {seen:?}");
    }
    // A refused token ends it with the terminal as it was, and says so.
    let seen = on_terminal(&shop, &["top", "--token", "wrong"], (80, 24), &[]);
    assert_eq!((seen.code, seen.restored), (6, true), "{seen:?}");
    let after = seen.text.split(leave).nth(1).unwrap();
    assert!(after.contains("hint: "), "{seen:?}");
}
