//! A development server, and commands that talk to it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::harness::Said;
use crate::server::http::{Answer, Client};
use crate::server::node::{Node, codeq};

pub struct Shop {
    pub node: Node,
    /// The user's home directory.
    pub home: TempDir,
    _data: TempDir,
}

impl Shop {
    pub fn open() -> Shop {
        let (data, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let node = Node::dev(&data.path().join("data"), &[]);
        Shop { node, home, _data: data }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.node.addr)
    }

    pub fn worker_url(&self) -> String {
        let streams =
            self.node.greeting.lines().find_map(|line| line.trim().strip_prefix("Streams "));
        let worker = streams.unwrap().split(", ").nth(1).unwrap().split(' ').next().unwrap();
        format!("http://{worker}")
    }

    /// A command for this server.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = alone(self.home.path(), args);
        command.env("CODEQ_HTTP_URL", self.url()).env("CODEQ_TOKEN", "dev-token");
        command.env("CODEQ_WORKER_URL", self.worker_url());
        command
    }

    pub fn run(&self, args: &[&str]) -> Said {
        said(&mut self.command(args), "")
    }

    pub fn run_with(&self, args: &[&str], stdin: &str) -> Said {
        said(&mut self.command(args), stdin)
    }

    /// What a command prints as JSON, if it succeeds.
    pub fn json(&self, args: &[&str]) -> Value {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{args:?}: {}", said.err);
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {}", said.out))
    }

    /// Enqueues a task and returns its id.
    pub fn enqueue(&self, queue: &str, more: &[&str]) -> String {
        let said = self.run(&[&["task", "enqueue", queue, "-o", "name"], more].concat());
        assert_eq!(said.code, 0, "{}", said.err);
        said.out.trim().to_owned()
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        let answer = Client::new(self.node.addr).post(path, body).unwrap();
        assert!(answer.status < 300, "{path}: {answer:?}");
        answer
    }

    /// Claims the next task of a queue: its id.
    pub fn claim(&self, queue: &str) -> String {
        let answer = self.post("/tasks/claim", &format!(r#"{{"commands":["{queue}"]}}"#));
        answer.json::<Value>()["id"].as_str().unwrap().to_owned()
    }

    /// A dead letter with this reason: its id.
    pub fn dead(&self, queue: &str, reason: &str) -> String {
        let id = self.enqueue(queue, &["--max-attempts", "1"]);
        assert_eq!(self.claim(queue), id);
        self.post(&format!("/tasks/{id}/nack"), &format!(r#"{{"reason":"{reason}"}}"#));
        id
    }
}

/// A command without any server, in this home.
pub fn alone(home: &Path, args: &[&str]) -> Command {
    let mut command = codeq(args);
    command.env("HOME", home).env("XDG_CONFIG_HOME", home.join("config"));
    command.stderr(Stdio::piped());
    command
}

pub fn said(command: &mut Command, stdin: &str) -> Said {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // A command that does not read it may have ended.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap_or(-1);
    Said { code, out: text(output.stdout), err: text(output.stderr) }
}

/// An error: the code, nothing on stdout, what is wrong, and what to try at the end.
#[track_caller]
pub fn fails(said: &Said, code: i32, what: &str) {
    assert_eq!(said.code, code, "{}{}", said.out, said.err);
    assert!(said.err.contains(what), "'{what}' is not in: {}", said.err);
    let last = said.err.trim_end().lines().last().unwrap();
    assert!(last.starts_with("hint: ") || last.starts_with("For more information, try"), "{last}");
    assert!(said.out.is_empty(), "{}", said.out);
}
