//! What holds for every command: wrong tokens, absent servers and wrong usage end the same way everywhere.

use std::collections::BTreeSet;

use crate::cli::client::{Shop, fails};
use crate::cli::harness::codeq;
use crate::cli::help::every_command;

const ID: &str = "00000000-0000-7000-8000-000000000000";

/// Every command that asks a server, with arguments that are good enough to ask it.
const ASKING: [&[&str]; 40] = [
    &["task", "enqueue", "mail"],
    &["task", "get", ID],
    &["task", "list"],
    &["task", "watch", ID],
    &["task", "wait", ID],
    &["task", "result", ID],
    &["task", "run-now", ID],
    &["task", "update", ID, "--priority", "1"],
    &["task", "cancel", ID],
    &["task", "cancel", "--queue", "mail", "--yes"],
    &["task", "replay", ID],
    &["task", "replay", "--queue", "mail"],
    &["task", "why", ID],
    &["task", "history", ID],
    &["queue", "list"],
    &["queue", "get", "mail"],
    &["queue", "why", "mail"],
    &["queue", "pause", "mail"],
    &["queue", "resume", "mail"],
    &["queue", "purge", "mail", "--yes"],
    &["queue", "policy", "mail"],
    &["dlq", "list", "mail"],
    &["dlq", "groups", "mail"],
    &["dlq", "replay", "mail"],
    &["dlq", "purge", "mail", "--yes"],
    &["worker", "list"],
    &["subscription", "list"],
    &["subscription", "get", ID],
    &["subscription", "add", "http://127.0.0.1:9/wake"],
    &["subscription", "renew", ID],
    &["subscription", "remove", ID],
    &["webhook", "deliveries"],
    &["webhook", "resend", ID],
    &["webhook", "rotate"],
    &["top", "--once"],
    &["demo", "--for", "1s"],
    &["backup"],
    &["config", "reload"],
    &["worker", "run", "mail", "--", "true"],
    &["version", "--server"],
];

/// The others. Each has a test of its own.
const LOCAL: [&[&str]; 24] = [
    &["dev"],
    &["serve"],
    &["webhook", "verify"],
    &["token", "mint"],
    &["token", "jwks"],
    &["token", "inspect"],
    &["profile", "add"],
    &["profile", "use"],
    &["profile", "list"],
    &["profile", "remove"],
    &["doctor"],
    &["config", "default"],
    &["config", "check"],
    &["config", "show"],
    &["bench"],
    &["bench", "engine"],
    &["bench", "http"],
    &["bench", "scenarios"],
    &["fsck"],
    &["restore"],
    &["probe"],
    &["sim"],
    &["completion"],
    &["man"],
];

#[test]
fn no_command_is_forgotten() {
    let words = |args: &[&str]| args.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let all: BTreeSet<Vec<String>> = every_command().into_iter().map(|(path, _)| path).collect();
    for path in &all {
        let asks = ASKING.iter().any(|args| words(args).starts_with(path));
        let local = LOCAL.iter().any(|args| words(args).starts_with(path));
        assert!(asks || local, "add it to ASKING or LOCAL: codeq {}", path.join(" "));
    }
}

#[test]
fn every_command_reports_a_wrong_token_and_an_absent_server_alike() {
    let shop = Shop::open();
    for args in ASKING {
        // The command's own options must come before the program that a worker runs.
        let with = |more: &[&str]| {
            let at = args.iter().position(|word| *word == "--").unwrap_or(args.len());
            shop.run(&[&args[..at], more, &args[at..]].concat())
        };
        // `version` sends no token; `worker run` and `task wait` wait for an absent server.
        let is = |words: &[&str]| args.starts_with(words);
        if !is(&["version"]) {
            let denied = with(&["--token", "wrong", "-o", "name"]);
            assert_eq!(denied.code, 6, "{args:?}: {}{}", denied.out, denied.err);
            fails(&denied, 6, "token");
        }
        if !is(&["worker", "run"]) && !is(&["task", "wait"]) {
            let nobody = "http://127.0.0.1:9";
            let absent = with(&["--url", nobody, "-o", "name"]);
            assert_eq!(absent.code, 1, "{args:?}: {}{}", absent.out, absent.err);
            fails(&absent, 1, nobody);
        }
    }
}

#[test]
fn an_unknown_option_is_wrong_usage_everywhere() {
    for (path, _) in every_command() {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--no-such-option"]).collect();
        let said = codeq(&args);
        assert_eq!(said.code, 2, "{args:?}: {}", said.err);
        assert!(
            said.err.contains("--no-such-option") || said.err.contains("Usage"),
            "{}",
            said.err
        );
    }
}
