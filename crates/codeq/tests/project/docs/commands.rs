//! Every command that a page shows in an `sh` block is run, page by page and from top to bottom, against a server that
//! `codeq dev` started. A `console` block is for commands that a test cannot run, for example because they need root or a package.
//!
//! A line that starts with `#>` says what the block prints: the parts between `…` must appear in this order.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use super::pages::{Block, Page, pages, root};
use super::server::Server;

/// Blocks that are not programs: commands that are run, commands that are not, what they print, and data.
const BLOCKS: [&str; 5] = ["sh", "console", "text", "json", "yaml"];
/// Languages whose programs `programs.rs` accounts for.
const PROGRAMS: [&str; 6] = ["bash", "python", "ts", "js", "go", "rust"];
/// Tools that not every machine has. A block that needs a missing one is not run, and that is said.
const OPTIONAL: [&str; 4] = ["go", "jq", "node", "tsc"];
/// No page needs more than a few seconds; two cores may be busy with other tests.
const PATIENCE: &str = "120";
/// Separates what the blocks print.
const MARK: &str = "@@@ block at line ";

#[test]
fn every_block_names_its_language() {
    let mut count = BTreeMap::new();
    for page in pages() {
        for block in page.blocks() {
            let known = BLOCKS.contains(&block.language) || PROGRAMS.contains(&block.language);
            assert!(
                known,
                "{}:{}: mark the block as one of {BLOCKS:?} or {PROGRAMS:?}, not '{}'",
                page.path, block.line, block.language
            );
            *count.entry(block.language.to_owned()).or_insert(0) += 1;
        }
    }
    let (run, shown) = (count["sh"], count["console"]);
    assert!(run > shown, "{run} blocks of commands are run, {shown} are only shown");
}

/// Whether a program is on the path.
fn installed(tool: &str, path: &str) -> bool {
    path.split(':').any(|dir| Path::new(dir).join(tool).is_file())
}

/// The first tool that a block needs and this machine lacks.
fn missing(block: &Block<'_>, path: &str) -> Option<&'static str> {
    let words = || block.code.split(|c: char| c.is_whitespace() || "|;&()$".contains(c));
    // The worker in bash uses jq.
    let needs = |tool: &str| {
        words().any(|word| word == tool || tool == "jq" && word.ends_with("worker.sh"))
    };
    OPTIONAL.into_iter().find(|tool| needs(tool) && !installed(tool, path))
}

/// Where a page's commands run: a place that looks like the repository, with a server and a path of its own.
pub struct Place {
    dir: tempfile::TempDir,
    server: Server,
    path: String,
}

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bin", "work"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["docs", "dist", "crates", "scripts"] {
            symlink(root().join(name), dir.path().join("work").join(name)).unwrap();
        }
        let bin = dir.path().join("bin");
        symlink(env!("CARGO_BIN_EXE_codeq"), bin.join("codeq")).unwrap();
        let inherited = std::env::var("PATH").unwrap();
        // An error response fails the block.
        let curl =
            inherited.split(':').map(|dir| Path::new(dir).join("curl")).find(|file| file.is_file());
        let curl = format!("#!/bin/sh\nexec {} --fail-with-body \"$@\"\n", curl.unwrap().display());
        fs::write(bin.join("curl"), curl).unwrap();
        fs::set_permissions(bin.join("curl"), fs::Permissions::from_mode(0o755)).unwrap();
        let node = root().join("target/node/node_modules/.bin");
        let path = format!("{}:{}:{inherited}", bin.display(), node.display());
        let server = Server::start(dir.path());
        Place { dir, server, path }
    }

    /// Runs a script and returns whether it succeeded, and what it printed.
    pub fn run(&self, script: &str) -> (bool, String) {
        let at = |name: &str| -> PathBuf { self.dir.path().join(name) };
        let mut script = script.to_owned();
        for (said, is) in &self.server.addresses {
            script = script.replace(said, is);
        }
        fs::write(at("script"), &script).unwrap();
        let out = File::create(at("output")).unwrap();
        let mut command = Command::new("timeout");
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CODEQ_")) {
            command.env_remove(name);
        }
        let url = self.server.addresses.iter().find(|(said, _)| said.ends_with(":8080")).unwrap();
        let mut shell = command
            .args([PATIENCE, "sh", "-e"])
            .arg(at("script"))
            .current_dir(at("work"))
            .env("PATH", &self.path)
            .env("XDG_CONFIG_HOME", at("config"))
            .env("CODEQ_HTTP_URL", format!("http://{}", url.1))
            .env("TMPDIR", at("work"))
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .process_group(0)
            .spawn()
            .unwrap();
        let done = shell.wait().unwrap().success();
        // Workers that the page left running.
        let group = format!("-{}", shell.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        (done, String::from_utf8_lossy(&fs::read(at("output")).unwrap()).into_owned())
    }
}

/// The lines of a block that say what it prints and are not in what it printed.
fn unmet<'a>(block: &'a Block<'_>, printed: &str) -> Vec<&'a str> {
    let expected = block.code.lines().filter_map(|line| line.trim().strip_prefix("#>"));
    let met = |line: &str| {
        let mut rest = printed;
        line.trim().split('…').all(|part| match rest.find(part.trim()) {
            Some(at) => {
                rest = &rest[at + part.trim().len()..];
                true
            }
            None => false,
        })
    };
    expected.filter(|line| !met(line)).collect()
}

/// What is wrong with the commands of a page.
fn problems(page: &Page) -> Vec<String> {
    let blocks: Vec<Block<'_>> =
        page.blocks().into_iter().filter(|block| block.language == "sh").collect();
    if blocks.is_empty() {
        return Vec::new();
    }
    let place = Place::new();
    let mut script = String::new();
    let (skipped, run): (Vec<_>, Vec<_>) =
        blocks.iter().partition(|block| missing(block, &place.path).is_some());
    for block in skipped {
        let tool = missing(block, &place.path).unwrap_or_default();
        // Straight to stderr, which the test harness does not keep to itself.
        let _ = writeln!(
            std::io::stderr(),
            "{}:{}: not run, because {tool} is not installed",
            page.path,
            block.line
        );
    }
    for block in &run {
        let _ = write!(script, "echo; echo '{MARK}{}'\n{}\n", block.line, block.code);
    }
    let (done, output) = place.run(&script);
    let mut printed: Vec<(&str, &str)> =
        output.split(MARK).skip(1).filter_map(|part| part.split_once('\n')).collect();
    let mut found = Vec::new();
    if !done {
        let (line, text) = printed.pop().unwrap_or(("?", &output));
        found.push(format!("{}:{line}: a command failed:\n{text}", page.path));
    }
    for (block, (_, text)) in run.iter().zip(printed) {
        for line in unmet(block, text) {
            found.push(format!("{}:{}: expected{line}, but got:\n{text}", page.path, block.line));
        }
    }
    found
}

#[test]
fn every_command_of_the_documentation_runs() {
    let only = std::env::var("CODEQ_DOCS_PAGE").ok();
    let chosen = |page: &Page| only.as_ref().is_none_or(|only| page.path.contains(only));
    let pages: Vec<Page> = pages().into_iter().filter(chosen).collect();
    let (next, found) = (Mutex::new(pages.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let page = next.lock().unwrap().next();
                    let Some(page) = page else { break };
                    found.lock().unwrap().extend(problems(page));
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn failing_blocks_are_reported() {
    let page = |code: &str| {
        let text = format!("# A page\n\n```sh\necho one\n#> one\n```\n\n```sh\n{code}\n```\n");
        Page { path: "a.md".to_owned(), text }
    };
    assert_eq!(problems(&page("echo 2 3 4\n#> 2 … 4")), [""; 0]);
    let failed = problems(&page("curl -s http://127.0.0.1:8080/v1/codeq/no-such-route"));
    assert!(
        failed[0].contains("a.md:9: a command failed") && failed[0].contains("no_such_route"),
        "{failed:?}"
    );
    let wrong = problems(&page("echo 2 3 4\n#> 4 … 2"));
    assert!(wrong[0].contains("expected 4 … 2, but got:\n2 3 4"), "{wrong:?}");
}
