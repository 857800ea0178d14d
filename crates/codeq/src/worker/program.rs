//! One run of the program for one task.
//!
//! Each run uses blocking threads for its pipes, which is cheap enough: at most 256 programs run at once.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use codeq_client::{Acknowledged, Outcome, Task, TaskInfo};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::value::{RawValue, to_raw_value};

use super::supervise;
use crate::cli::{Done, Failure, printable, span};

/// The program asks for a retry (EX_TEMPFAIL).
const RETRY: i32 = 75;
/// Largest result that any server accepts. The SDK nacks results above its own limit.
const RESULT_MAX: usize = 16 << 20;
/// Longest line that is kept as a reason.
const LINE_MAX: usize = 4_096;
/// How long a program may take to end after SIGTERM.
const TERMINATION_GRACE: Duration = Duration::from_secs(5);
/// How long the output is awaited after the program has ended: something else may hold the pipe.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// The program to run.
pub struct Program {
    arguments: Vec<OsString>,
    /// The tasks that the worker holds, by id.
    held: Mutex<HashMap<String, Held>>,
}

/// A task from its start to the server's acknowledgement.
struct Held {
    queue: String,
    began: Instant,
    /// How long the program ran, once it has ended.
    took: Option<Duration>,
}

/// A running program's process group; `None` once the program has ended. [`Stop`] kills it.
#[derive(Default)]
struct Group(Mutex<Option<Pid>>);

/// How a run ended.
struct Finished {
    status: ExitStatus,
    stdout: Vec<u8>,
    last_line: String,
}

impl Program {
    /// Checks that the program can be run, so that a typo does not use up the attempts of all tasks.
    pub fn find(arguments: Vec<OsString>) -> Done<Program> {
        let name = arguments.first().cloned().unwrap_or_default();
        let runs = |path: &Path| {
            use std::os::unix::fs::PermissionsExt;
            let meta = path.metadata();
            meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = match Path::new(&name).components().count() {
            1 if !name.to_string_lossy().contains('/') => {
                std::env::split_paths(&path).any(|dir| runs(&dir.join(&name)))
            }
            _ => runs(Path::new(&name)),
        };
        if found {
            return Ok(Program { arguments, held: Mutex::default() });
        }
        let what = format!("cannot run {}: not an executable file", name.display());
        Err(Failure::usage(what, "check the path, or make it executable: chmod +x"))
    }

    /// Runs the program for a task.
    pub async fn run(&self, task: Task<Box<RawValue>>) -> Outcome {
        let Task { payload, info, .. } = task;
        let held = Held { queue: info.command.clone(), began: Instant::now(), took: None };
        self.held.lock().insert(info.id.clone(), held);
        let outcome = match self.finish(payload, &info).await {
            Ok(finished) => finished.outcome(),
            Err(error) => Outcome::nack(format!("cannot run the program: {error}")),
        };
        // Gone if the lease was lost meanwhile.
        if let Some(held) = self.held.lock().get_mut(&info.id) {
            held.took = Some(held.began.elapsed());
        }
        outcome
    }

    /// The line about a task whose outcome the server has acknowledged.
    pub fn acknowledged(&self, id: &str, what: &Acknowledged) -> String {
        let held = self.held.lock().remove(id);
        let queue = held.as_ref().map_or("", |held| held.queue.as_str());
        let took = held.as_ref().map(|held| held.took.unwrap_or_else(|| held.began.elapsed()));
        let took = span(took.unwrap_or_default());
        let what = match what {
            Acknowledged::Completed => format!("completed in {took}"),
            Acknowledged::Failed { error } => format!("failed after {took}: {}", printable(error)),
            Acknowledged::Nacked { reason, dead_letter } => {
                let next = match dead_letter {
                    true => "now a dead letter",
                    false => "will be retried unless it was cancelled",
                };
                format!("nacked after {took}, {next}: {}", printable(reason))
            }
            Acknowledged::Abandoned => format!("returned to its queue after {took}"),
            Acknowledged::Lost { code } => format!(
                "lease lost after {took}, so this outcome does not count ({})",
                printable(code)
            ),
            _ => format!("ended after {took}"),
        };
        format!("{id} {queue}: {what}")
    }

    /// Starts the program and waits for its end. Stops it if the task is cancelled or its lease is lost.
    async fn finish(&self, payload: Box<RawValue>, info: &TaskInfo) -> std::io::Result<Finished> {
        let mut command = supervise::command(&self.arguments);
        command
            .env("CODEQ_TASK_ID", &info.id)
            .env("CODEQ_QUEUE", &info.command)
            .env("CODEQ_ATTEMPT", info.attempts.saturating_add(1).to_string())
            .env("CODEQ_MAX_ATTEMPTS", info.max_attempts.to_string())
            .env("CODEQ_PRIORITY", info.priority.to_string())
            .env("CODEQ_FENCE", info.fence.to_string())
            .env("CODEQ_TENANT", &info.tenant_id)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C in the terminal is for this process, which lets the program finish.
            .process_group(0);
        if !info.trace_parent.is_empty() {
            command.env("TRACEPARENT", &info.trace_parent);
        }
        let child = command.spawn()?;
        let group = Arc::new(Group(Mutex::new(Some(Pid::from_child(&child)))));
        let guard = Stop(Arc::clone(&group));
        let mut running = tokio::task::spawn_blocking(move || complete(child, &payload, &group));
        tokio::select! {
            done = &mut running => return done?,
            _ = info.cancellation.cancelled() => guard.0.signal(Signal::TERM),
        }
        if let Ok(done) = tokio::time::timeout(TERMINATION_GRACE, &mut running).await {
            return done?;
        }
        guard.0.signal(Signal::KILL);
        running.await?
    }
}

/// Kills the process group when a run is dropped.
struct Stop(Arc<Group>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
    }
}

impl Group {
    /// Signals the group unless the program has ended: its number may belong to another process by then.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = *self.0.lock() {
            // It may have ended at this moment.
            let _ = kill_process_group(pid, signal);
        }
    }
}

/// Feeds the program, reads its output, and waits for its end.
fn complete(mut child: Child, payload: &RawValue, group: &Group) -> std::io::Result<Finished> {
    let input = child.stdin.take();
    let bytes = payload.get().as_bytes().to_vec();
    // A program that does not read its payload closes the pipe, which is fine.
    std::thread::spawn(move || input.map(|mut input| input.write_all(&bytes)));
    let result = Arc::new(Mutex::new(Vec::new()));
    let read = Arc::clone(&result);
    let stdout = background(child.stdout.take(), move |pipe| read_result(pipe, &read));
    let stderr = background(child.stderr.take(), forward);
    // Waits without reaping: until then, the number of the process is not reused.
    let pid = Pid::from_child(&child);
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(error) = waitid(WaitId::Pid(pid), ended) {
        if error != rustix::io::Errno::INTR {
            break;
        }
    }
    group.signal(Signal::KILL);
    *group.0.lock() = None;
    let status = child.wait()?;
    let deadline = Instant::now() + OUTPUT_GRACE;
    let rest = || deadline.saturating_duration_since(Instant::now());
    // A process that the program left behind may hold the pipe open. What the program wrote has been read by then.
    let _ = stdout.recv_timeout(rest());
    let stdout = std::mem::take(&mut *result.lock());
    let last_line = stderr.recv_timeout(rest()).unwrap_or_default();
    Ok(Finished { status, stdout, last_line })
}

/// Reads a pipe to its end on a thread of its own.
fn background<P: Send + 'static, T: Send + 'static>(
    pipe: Option<P>,
    read: impl FnOnce(P) -> T + Send + 'static,
) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || pipe.map(|pipe| sender.send(read(pipe))));
    receiver
}

/// Reads the result, and goes on reading beyond its limit: the program would block on a full pipe.
fn read_result(mut pipe: ChildStdout, result: &Mutex<Vec<u8>>) {
    let mut chunk = vec![0; 65_536];
    while let Ok(read @ 1..) = pipe.read(&mut chunk) {
        let mut result = result.lock();
        let room = (RESULT_MAX + 1).saturating_sub(result.len());
        result.extend(chunk.iter().take(read.min(room)));
    }
}

/// Copies the program's stderr to ours and returns its last line that is not empty.
fn forward(pipe: ChildStderr) -> String {
    let mut reader = BufReader::new(pipe);
    let (mut last, mut line) = (String::new(), Vec::new());
    loop {
        line.clear();
        match reader.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return last,
            Ok(_) => {
                let _ = std::io::stderr().write_all(&line);
                let text = String::from_utf8_lossy(&line);
                if !text.trim().is_empty() {
                    last = text.trim().to_owned();
                }
            }
        }
    }
}

impl Finished {
    fn outcome(self) -> Outcome {
        let Finished { status, stdout, last_line } = self;
        match (status.code(), last_line.is_empty()) {
            (Some(0), _) => completed(&stdout),
            (Some(RETRY), false) => Outcome::nack(last_line),
            (Some(code), true) => Outcome::nack(format!("exit code {code}")),
            (Some(code), false) => Outcome::nack(format!("exit code {code}: {last_line}")),
            (None, _) => {
                let signal = status.signal().unwrap_or_default();
                let rest =
                    if last_line.is_empty() { String::new() } else { format!(": {last_line}") };
                Outcome::nack(format!("killed by signal {signal}{rest}"))
            }
        }
    }
}

/// The result: a JSON object as it is, no output as `{}`, anything else as `{"output": …}`.
fn completed(stdout: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(stdout);
    let text = text.trim();
    if text.is_empty() {
        return Outcome::done();
    }
    let json: Option<Box<RawValue>> = serde_json::from_str(text).ok();
    let result = match json {
        Some(object) if text.starts_with('{') => Ok(object),
        Some(value) => to_raw_value(&serde_json::json!({ "output": value })),
        None => to_raw_value(&serde_json::json!({ "output": text })),
    };
    match result {
        Ok(result) => Outcome::Complete(result),
        Err(error) => Outcome::nack(format!("the result cannot be encoded: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(stdout: &str) -> String {
        match completed(stdout.as_bytes()) {
            Outcome::Complete(json) => json.get().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_result_must_be_an_object() {
        assert_eq!(json("{\"a\": 1.50}\n"), "{\"a\": 1.50}");
        assert_eq!(json("[1, 2]"), "{\"output\":[1,2]}");
        assert_eq!(json("done\nand dusted\n"), "{\"output\":\"done\\nand dusted\"}");
        assert_eq!(json("{not json}"), "{\"output\":\"{not json}\"}");
        assert_eq!(json(" \n"), "null");
    }

    #[test]
    fn any_exit_but_success_nacks() {
        let reason = |raw: i32, last_line: &str| {
            let (status, last_line) = (ExitStatus::from_raw(raw), last_line.to_owned());
            match (Finished { status, stdout: Vec::new(), last_line }).outcome() {
                Outcome::Nack { reason, .. } => reason,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(reason(75 << 8, "busy"), "busy");
        assert_eq!(reason(75 << 8, ""), "exit code 75");
        assert_eq!(reason(3 << 8, "broken"), "exit code 3: broken");
        assert_eq!(reason(9, ""), "killed by signal 9");
        assert_eq!(reason(9, "last words"), "killed by signal 9: last words");
    }
}
