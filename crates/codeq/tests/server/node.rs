//! A server in a process of its own.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::http::Client;

/// A start or an end that takes longer does not come.
pub const PATIENCE: Duration = Duration::from_secs(30);
const LAST_LINE: &str = "Ctrl-C stops the server.";

pub struct Node {
    child: Option<Child>,
    pid: u32,
    pub addr: SocketAddr,
    /// What it said on its standard output until it was ready.
    pub greeting: String,
    /// Open, so that it may say more.
    _stdout: BufReader<ChildStdout>,
}

/// `codeq` with these arguments and nothing of this process's settings.
pub fn codeq(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codeq"));
    let ours = std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("CODEQ_"));
    ours.for_each(|name| {
        command.env_remove(name);
    });
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

impl Node {
    /// `codeq dev` on this directory. Its log is beside it.
    pub fn dev(dir: &Path, more: &[&str]) -> Node {
        let mut args = vec!["dev", "--data-dir", dir.to_str().unwrap()];
        args.extend(["--http-addr", "127.0.0.1:0"]);
        args.extend(more);
        let path = dir.with_extension("log");
        let log = File::options().create(true).append(true).open(&path).unwrap();
        Node::greeted(codeq(&args).stderr(log), &path)
    }

    /// Starts a server that greets, and reads the greeting. Where there is none, its log says why.
    pub fn greeted(command: &mut Command, log: &Path) -> Node {
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (stdout, greeting) = within("a greeting", move || read_greeting(stdout));
        let url = greeting.lines().find_map(|line| line.trim().strip_prefix("API "));
        let Some(url) = url else {
            let (status, log) = (child.wait(), std::fs::read_to_string(log));
            panic!("no address in the greeting '{greeting}', {status:?}: {log:?}");
        };
        let addr = url.trim().strip_prefix("http://").unwrap();
        let addr = addr.strip_suffix("/v1/codeq").unwrap().parse().unwrap();
        Node { pid: child.id(), child: Some(child), addr, greeting, _stdout: stdout }
    }

    pub fn client(&self) -> Client {
        Client::new(self.addr)
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM. Whoever says so waits for the end.
    pub fn terminate(&self) {
        signal("TERM", self.pid);
    }

    /// SIGSTOP: it does nothing more, and keeps what it has.
    pub fn pause(&self) {
        signal("STOP", self.pid);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        signal("CONT", self.pid);
    }

    /// Waits until it ended by itself.
    pub fn ended(mut self) -> ExitStatus {
        let child = self.child.take().unwrap();
        ended(child)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal the way a person does.
pub fn signal(name: &str, pid: u32) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().unwrap();
    assert!(sent.success());
}

/// Waits until a process ended by itself.
pub fn ended(mut child: Child) -> ExitStatus {
    let pid = child.id();
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait()));
    wait.recv_timeout(PATIENCE)
        .unwrap_or_else(|_| {
            signal("KILL", pid);
            panic!("the process did not end within {PATIENCE:?}")
        })
        .unwrap()
}

/// Runs `codeq` to its end: exit code and standard error.
pub fn refused(args: &[&str]) -> (i32, String) {
    let mut child = codeq(args).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let status = ended(child);
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    (status.code().unwrap_or(-1), text)
}

/// Does a thing that may block for ever, and does not.
fn within<T: Send + 'static>(what: &str, job: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(job()));
    wait.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {what} within {PATIENCE:?}"))
}

fn read_greeting(mut stdout: BufReader<ChildStdout>) -> (BufReader<ChildStdout>, String) {
    let mut text = String::new();
    while !text.trim_end().ends_with(LAST_LINE) && stdout.read_line(&mut text).unwrap() > 0 {}
    (stdout, text)
}
