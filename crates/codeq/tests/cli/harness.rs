//! Running the binary, and directories for it to work on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use codeq_core::command::{Claim, Enqueue, NewTask, Selector};
use codeq_core::command::{Command as Ask, Millis};
use codeq_core::reply::Reply;
use codeq_core::settings::Settings;
use codeq_engine::{Engine, Options};

pub const TENANT: &str = "acme";
/// Unlike the default, so that a command which resets settings is noticed.
pub const RETENTION: Millis = 12_345_000;

/// What the binary said.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn codeq(args: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codeq"));
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (code, out, err) = (output.status.code(), text(output.stdout), text(output.stderr));
    Said { code: code.unwrap_or(-1), out, err }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub fn options() -> Options {
    Options {
        segment_bytes: 256 << 10,
        settings: Settings { retention: RETENTION, ..Settings::default() },
        ..Options::default()
    }
}

pub fn put(engine: &Engine, number: u64) {
    let payload = format!(r#"{{"n": {number}}}"#).into();
    let task = NewTask { command: "work".into(), payload, ..NewTask::default() };
    let tasks = vec![task];
    let enqueue = Enqueue { tenant: TENANT.into(), tasks, atomic: false, seed: number };
    engine.propose_blocking(Ask::Enqueue(enqueue)).unwrap();
}

/// A directory with tasks in its stores and in its log, all waiting except one that is leased.
pub fn filled(dir: &Path, shards: u16) {
    let engine = Engine::open(dir, Options { shards: Some(shards), ..options() }).unwrap();
    (0..40).for_each(|number| put(&engine, number));
    engine.checkpoint().unwrap();
    (40..60).for_each(|number| put(&engine, number));
    let from = Selector::Commands(vec!["work".into()]);
    let (tenant, worker) = (TENANT.into(), "w".into());
    let claim = Claim { tenant, worker, from, lease: 3_600_000, count: 1 };
    let reply = engine.claim_blocking(claim).unwrap();
    assert!(matches!(reply, Reply::Claimed(tasks) if tasks.len() == 1));
}

/// A directory as a crash leaves it: the log holds what the stores do not.
pub fn crashed(dir: &Path, shards: u16) {
    let running = dir.with_extension("running");
    let engine = Engine::open(&running, Options { shards: Some(shards), ..options() }).unwrap();
    (0..60).for_each(|number| put(&engine, number));
    copy(&running, dir);
    drop(engine);
    std::fs::remove_dir_all(running).unwrap();
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Everything in a directory, to see whether it changed.
pub fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
    found
}

pub fn ready(engine: &Engine) -> (u64, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let stats = runtime.block_on(engine.queue(TENANT, "work")).unwrap().unwrap();
    (stats.counts.ready(), stats.counts.in_progress)
}
