//! A server in its own process.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::server::http::Client;

/// A start or stop that takes longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);
const LAST_LINE: &str = "Ctrl-C stops the server.";

/// A process that does not outlive the test, however that ends.
pub struct Process {
    child: Child,
    /// Kept open, so that the process can print more. It ends when the process does.
    stdout: Option<BufReader<ChildStdout>>,
}

pub struct Node {
    process: Process,
    pub addr: SocketAddr,
    /// Its standard output until it was ready.
    pub greeting: String,
}

/// `codeq` with these arguments, and without the environment of this process.
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
        let mut process = Process::spawn(command);
        let greeting = process.greeting();
        let url = greeting.lines().find_map(|line| line.trim().strip_prefix("API "));
        let Some(url) = url else {
            let (status, log) = (process.child.wait(), std::fs::read_to_string(log));
            panic!("no address in the greeting '{greeting}', {status:?}: {log:?}");
        };
        let addr = url.trim().strip_prefix("http://").unwrap();
        let addr = addr.strip_suffix("/v1/codeq").unwrap().parse().unwrap();
        Node { process, addr, greeting }
    }

    pub fn client(&self) -> Client {
        Client::new(self.addr)
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What it says on its standard error, if that is piped.
    pub fn stderr(&mut self) -> BufReader<ChildStderr> {
        self.process.stderr()
    }

    /// SIGKILL.
    pub fn kill(self) {
        self.process.kill();
    }

    /// SIGTERM. The caller waits for the end.
    pub fn terminate(&self) {
        self.process.signal("TERM");
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.process.signal("STOP");
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.process.signal("CONT");
    }

    /// Waits until it ended by itself.
    pub fn ended(self) -> ExitStatus {
        self.process.ended()
    }
}

impl Process {
    pub fn spawn(command: &mut Command) -> Process {
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        Process { child, stdout }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What a development server says until it is ready.
    pub fn greeting(&mut self) -> String {
        let stdout = self.stdout.take().unwrap();
        let (stdout, greeting) = within("greeting", move || read_greeting(stdout));
        self.stdout = Some(stdout);
        greeting
    }

    /// What it says on its standard error, if that is piped.
    pub fn stderr(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.child.stderr.take().unwrap())
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal the way a person does.
    pub fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    }

    /// Waits until it ended by itself.
    pub fn ended(self) -> ExitStatus {
        self.finished().0
    }

    /// Waits until it ended by itself. Also returns its standard output.
    pub fn finished(mut self) -> (ExitStatus, String) {
        let mut stdout = self.stdout.take().unwrap();
        let read = move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).map(|_| bytes)
        };
        let bytes = within("end", read).unwrap();
        (self.child.wait().unwrap(), String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended is not found any more, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `codeq` to its end: exit code and standard error.
pub fn refused(args: &[&str]) -> (i32, String) {
    let mut process = Process::spawn(codeq(args).stderr(Stdio::piped()));
    let mut stderr = process.stderr();
    let status = process.ended();
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    (status.code().unwrap_or(-1), text)
}

/// Runs something that must not block for ever.
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
