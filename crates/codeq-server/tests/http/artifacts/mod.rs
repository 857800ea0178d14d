//! Artifacts: outputs that are submitted with a result, stored, downloaded and removed.

mod refusals;
mod removal;
mod round_trip;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};

use crate::http::harness::{Harness, Reply, WORKER};

/// More than one part of an upload.
const LARGE: usize = 7_000_000;

/// Bytes of all values without a short period.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(31) as u8).collect()
}

/// An artifact with content.
fn content(name: &str, bytes: &[u8]) -> Value {
    json!({"name": name, "contentBase64": BASE64_STANDARD.encode(bytes)})
}

fn completed(artifacts: Value) -> Value {
    json!({"status": "COMPLETED", "artifacts": artifacts})
}

async fn submit(h: &Harness, token: &str, id: &str, body: Value) -> Reply {
    h.post(token, &format!("tasks/{id}/result"), body).await
}

/// Finishes a task with these artifacts. Returns the URLs in its result.
async fn finish(h: &Harness, id: &str, artifacts: Value) -> Vec<String> {
    let record = submit(h, WORKER, id, completed(artifacts)).await.expect(200).json();
    urls(&record)
}

fn urls(record: &Value) -> Vec<String> {
    let artifacts = record["artifacts"].as_array().unwrap();
    artifacts.iter().map(|artifact| artifact["url"].as_str().unwrap().to_owned()).collect()
}

/// Downloads what an address names.
async fn download(h: &Harness, token: &str, url: &str) -> Reply {
    let base = format!("http://{}", h.addr());
    h.get(token, url.strip_prefix(&base).unwrap_or_else(|| panic!("{url} is not at {base}"))).await
}

/// All files of the store.
fn files(h: &Harness) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![h.dir().join("artifacts")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { dirs.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Waits until the store is empty, directories included.
async fn emptied(dir: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::fs::read_dir(dir).unwrap().next().is_some() {
        assert!(Instant::now() < deadline, "{dir:?} still holds something");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
