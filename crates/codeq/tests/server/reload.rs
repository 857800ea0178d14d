//! A configuration file that changes: a signal or an operator has it read again.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use crate::server::http::Client;
use crate::server::node::{PATIENCE, Process, codeq};

const OPERATOR: &str = "the-operators-own-token";
const TASK: &str = r#"{"command":"a","payload":1}"#;

struct Served {
    process: Process,
    addr: SocketAddr,
    file: PathBuf,
    /// Its log, line by line.
    lines: Receiver<String>,
}

fn write(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A configuration with these producers, and more keys.
fn yaml(dir: &Path, tokens: &[&str], more: &str) -> String {
    let mut text = format!("dataDir: {}\nhttpAddr: 127.0.0.1:0\n{more}", dir.display());
    text.push_str("producerAuth:\n  staticTokens:\n");
    text.push_str(&format!(
        "    - {{token: {OPERATOR}, subject: ops, tenant: t, scopes: ['codeq:operator']}}\n"
    ));
    for token in tokens {
        text.push_str(&format!("    - {{token: {token}, subject: {token}, tenant: t}}\n"));
    }
    text
}

impl Served {
    fn start(base: &Path, yaml: &str) -> Served {
        let file = base.join("codeq.yaml");
        write(&file, yaml);
        let mut command = codeq(&["serve", "--config", file.to_str().unwrap()]);
        let mut process = Process::spawn(command.stderr(Stdio::piped()));
        let stderr = BufReader::new(process.stderr());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let mut served =
            Served { process, addr: SocketAddr::from(([127, 0, 0, 1], 0)), file, lines };
        let ready = served.line(" ms on ");
        let rest = ready.split_once(" ms on ").unwrap().1;
        served.addr = rest.split(';').next().unwrap().parse().unwrap();
        served
    }

    /// The next line with this text.
    fn line(&self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no line with '{part}'"));
            if line.contains(part) {
                return line;
            }
        }
    }

    fn enqueue(&self, token: &str) -> u16 {
        Client::with_token(self.addr, token).post("/tasks", TASK).unwrap().status
    }

    /// `codeq config reload`: exit code and what it said.
    fn reload(&self, token: &str) -> (Option<i32>, String) {
        let mut command = codeq(&["config", "reload", "-o", "table", "--url"]);
        command.arg(format!("http://{}", self.addr));
        let output = command.env("CODEQ_TOKEN", token).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), text)
    }
}

#[test]
fn a_signal_and_a_command_reload_and_say_what_changed() {
    let base = tempfile::tempdir().unwrap();
    let data = base.path().join("data");
    let served = Served::start(base.path(), &yaml(&data, &["first-token"], ""));
    assert_eq!((served.enqueue("first-token"), served.enqueue("second-token")), (202, 401));

    write(&served.file, &yaml(&data, &["second-token"], ""));
    served.process.signal("HUP");
    let line: Value = serde_json::from_str(&served.line("configuration reloaded")).unwrap();
    let changed = "producerAuth.staticTokens: 2 entries -> 2 entries, changed";
    assert_eq!((&line["changed"], &line["needs_restart"]), (&changed.into(), &"".into()), "{line}");
    assert_eq!((served.enqueue("first-token"), served.enqueue("second-token")), (401, 202));

    let more =
        "logLevel: warn\nshards: 3\nrateLimit: {producer: {requestsPerMinute: 60, burst: 1}}\n";
    write(&served.file, &yaml(&data, &["second-token"], more));
    let (code, said) = served.reload(OPERATOR);
    let expected = "Changed          logLevel: info -> warn\n\
                    Changed          rateLimit.producer.requestsPerMinute: none -> 60\n\
                    Changed          rateLimit.producer.burst: none -> 1\n\
                    Needs a restart  shards\n";
    assert_eq!((code, said.as_str()), (Some(0), expected));
    assert_eq!((served.enqueue("second-token"), served.enqueue("second-token")), (202, 429));
    let (code, said) = served.reload(OPERATOR);
    assert_eq!((code, said.as_str()), (Some(0), "Needs a restart  shards\n"));
    let (code, said) = served.reload("second-token");
    assert_eq!(code, Some(6));
    assert!(said.contains("codeq:operator"), "{said}");
}

#[test]
fn a_broken_file_changes_nothing_and_says_why() {
    let base = tempfile::tempdir().unwrap();
    let data = base.path().join("data");
    let served = Served::start(base.path(), &yaml(&data, &["first-token"], ""));
    let broken = yaml(&data, &["second-token"], "logLevle: warn\nmaxBatchSize: many\n");
    write(&served.file, &broken);
    served.process.signal("HUP");
    let line: Value =
        serde_json::from_str(&served.line("the configuration was not changed")).unwrap();
    let why = line["why"].as_str().unwrap();
    assert!(why.contains("codeq.yaml:3:1: unknown key 'logLevle', did you mean"), "{why}");
    assert!(why.contains("codeq.yaml:4:15: maxBatchSize: "), "{why}");
    let (code, said) = served.reload(OPERATOR);
    assert_eq!(code, Some(1));
    assert!(said.contains("invalid_configuration") && said.contains("logLevle"), "{said}");
    assert!(!said.contains("second-token") && !why.contains("second-token"), "{said}");
    assert_eq!((served.enqueue("first-token"), served.enqueue("second-token")), (202, 401));
    // A missing file changes nothing either.
    std::fs::remove_file(&served.file).unwrap();
    let (code, said) = served.reload(OPERATOR);
    assert!(code == Some(1) && said.contains("codeq.yaml"), "{said}");
    assert_eq!(served.enqueue("first-token"), 202);
}
