//! `--help`: every command says what it does and shows an example.

use std::collections::VecDeque;
use std::path::Path;

use crate::cli::harness::{Said, codeq};

/// The help of every command. `CODEQ_WRITE_FIXTURE=1` writes it anew.
const SNAPSHOT: &str = "tests/cli/help.txt";

/// The commands below one, as its help lists them.
fn below(help: &str) -> impl Iterator<Item = &str> {
    let section = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
    let section = section.split("\n\n").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help")
}

/// Every command and its help, nouns before their verbs.
pub fn every_command() -> Vec<(Vec<String>, Said)> {
    let mut all = Vec::new();
    let mut open = VecDeque::from([Vec::<String>::new()]);
    while let Some(path) = open.pop_front() {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = codeq(&args);
        open.extend(below(&help.out).map(|noun| [path.clone(), vec![noun.to_owned()]].concat()));
        all.push((path, help));
    }
    all
}

#[test]
fn every_command_has_help_with_an_example() {
    let mut all = String::new();
    for (path, help) in every_command() {
        let name = ["codeq"].into_iter().chain(path.iter().map(String::as_str)).collect::<Vec<_>>();
        let name = name.join(" ");
        assert_eq!(help.code, 0, "{name}");
        let shows =
            |line: &str| line.starts_with("  ") && format!("{line} ").contains(&format!("{name} "));
        let example = help.out.lines().any(shows);
        assert!(example || below(&help.out).next().is_some(), "no example:\n{}", help.out);
        all.push_str(&format!("$ {name} --help\n{}\n", help.out));
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(SNAPSHOT);
    if std::env::var_os("CODEQ_WRITE_FIXTURE").is_some() {
        std::fs::write(&file, &all).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(all.lines()).find(|(kept, now)| kept != now);
    assert!(kept == all, "{SNAPSHOT} differs, write it anew: {differs:?}");
}

#[test]
fn the_version_is_printed() {
    let said = codeq(&["--version"]);
    assert_eq!(said.out.trim(), format!("codeq {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn no_command_is_a_usage_error() {
    let said = codeq(&[]);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("Usage: codeq"), "{}", said.err);
}
