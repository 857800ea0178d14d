//! The audit log: every action of an admin, as a line of JSON in `audit/` of the data directory.
//!
//! Lines are only appended. A file is named after the number of its first line. A new file begins when one is full, and
//! then the oldest may be removed. An unfinished line, left by a crash, is skipped.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::times::Timestamp;

/// A file that has this many bytes is full.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of files.
const FILES_MAX: usize = 8;
/// A body with more bytes is left out.
const BODY_BYTES_MAX: usize = 4 << 10;
/// Replaces secrets.
const MASK: &str = "***";

/// What an admin did.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Action {
    /// When the request came.
    pub at: Timestamp,
    /// The tenant of the token.
    pub tenant_id: Arc<str>,
    /// The subject of the token.
    pub subject: String,
    /// The operation's id.
    pub operation: &'static str,
    /// Parameters of path and query. Absent if there are none.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// The body, with secrets masked. Absent if it is empty or longer than 4 KiB, and if the request was refused: then
    /// a secret may be anywhere in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// Where the request came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_address: Option<IpAddr>,
    /// The id of the request.
    pub request_id: String,
    /// The status of the response. Absent if the client left before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The error code of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
}

/// An entry of the audit log.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AdminAction")]
pub struct Line<'a> {
    /// Grows with every entry.
    id: u64,
    #[serde(flatten)]
    action: &'a Action,
}

/// The fields by which lines are found.
#[derive(Deserialize)]
struct Found<'a> {
    id: u64,
    #[serde(rename = "tenantId", borrow)]
    tenant: std::borrow::Cow<'a, str>,
}

/// Some lines, oldest first.
#[derive(Debug, Default)]
pub struct AuditPage {
    /// The lines as they are in the file.
    pub items: Vec<Box<RawValue>>,
    /// The number after which newer lines begin.
    pub next_after: u64,
}

/// The audit log of a data directory.
pub struct AuditLog {
    dir: PathBuf,
    /// Syncs every line.
    sync: bool,
    tail: Mutex<Option<Tail>>,
}

/// The end of the newest file.
struct Tail {
    file: File,
    bytes: u64,
    next: u64,
}

impl AuditLog {
    /// The log in a data directory. Nothing is created before the first action.
    pub fn new(data_dir: &Path, sync: bool) -> AuditLog {
        AuditLog { dir: data_dir.join("audit"), sync, tail: Mutex::new(None) }
    }

    /// Appends an action. Blocks.
    pub fn append(&self, action: &Action) -> io::Result<()> {
        let mut tail = self.tail.lock();
        // After an error the file is opened again: it may end with a part of a line.
        let mut open = match tail.take() {
            Some(open) => open,
            None => self.open()?,
        };
        if open.bytes >= FILE_BYTES_MAX {
            open = self.begin(open.next)?;
            self.remove_old()?;
        }
        let mut line = serde_json::to_vec(&Line { id: open.next, action })?;
        line.push(b'\n');
        open.file.write_all(&line)?;
        if self.sync {
            open.file.sync_data()?;
        }
        open.bytes += line.len() as u64;
        open.next += 1;
        *tail = Some(open);
        Ok(())
    }

    /// At most `limit` lines, of one tenant or of all: the first ones after a number, or else the newest. Blocks.
    pub fn read(
        &self,
        tenant: Option<&str>,
        after: Option<u64>,
        limit: usize,
    ) -> io::Result<AuditPage> {
        let files = self.files()?;
        match after {
            Some(after) => self.read_after(&files, tenant, after, limit),
            None => self.read_newest(&files, tenant, limit),
        }
    }

    fn read_after(
        &self,
        files: &[u64],
        tenant: Option<&str>,
        after: u64,
        limit: usize,
    ) -> io::Result<AuditPage> {
        let mut page = AuditPage { items: Vec::new(), next_after: after };
        let skipped = files.partition_point(|first| *first <= after).saturating_sub(1);
        for first in files.iter().skip(skipped) {
            let text = self.text(*first)?;
            for (found, line) in lines(&text).filter(|(found, _)| found.id > after) {
                if page.items.len() == limit {
                    return Ok(page);
                }
                page.next_after = found.id;
                if tenant.is_none_or(|tenant| *tenant == *found.tenant) {
                    page.items.push(line.to_owned());
                }
            }
        }
        Ok(page)
    }

    fn read_newest(
        &self,
        files: &[u64],
        tenant: Option<&str>,
        limit: usize,
    ) -> io::Result<AuditPage> {
        let (mut items, mut next_after) = (VecDeque::new(), 0);
        for first in files.iter().rev() {
            let text = self.text(*first)?;
            let mut of_file = VecDeque::new();
            for (found, line) in lines(&text) {
                next_after = next_after.max(found.id);
                if tenant.is_none_or(|tenant| *tenant == *found.tenant) {
                    of_file.push_back(line);
                    if of_file.len() + items.len() > limit {
                        of_file.pop_front();
                    }
                }
            }
            of_file.into_iter().rev().for_each(|line| items.push_front(line.to_owned()));
            if items.len() == limit {
                break;
            }
        }
        Ok(AuditPage { items: items.into(), next_after })
    }

    /// The numbers of the first lines of all files, in order.
    fn files(&self) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("audit-"));
            let number: Option<u64> =
                number.and_then(|name| name.strip_suffix(".jsonl")?.parse().ok());
            files.extend(number);
        }
        files.sort_unstable();
        Ok(files)
    }

    fn path(&self, first: u64) -> PathBuf {
        self.dir.join(format!("audit-{first:020}.jsonl"))
    }

    /// A file's text; empty if the file was removed meanwhile.
    fn text(&self, first: u64) -> io::Result<String> {
        match fs::read(self.path(first)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => Ok(String::from_utf8_lossy(&read?).into_owned()),
        }
    }

    /// Opens the newest file, or begins the first.
    fn open(&self) -> io::Result<Tail> {
        let Some(first) = self.files()?.last().copied() else {
            return self.begin(1);
        };
        let text = self.text(first)?;
        let next = lines(&text).last().map_or(first, |(found, _)| found.id + 1);
        let mut file = OpenOptions::new().append(true).open(self.path(first))?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        Ok(Tail { file, bytes: text.len() as u64, next })
    }

    fn begin(&self, first: u64) -> io::Result<Tail> {
        fs::create_dir_all(&self.dir)?;
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(self.path(first))?;
        if self.sync {
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(Tail { file, bytes: 0, next: first })
    }

    fn remove_old(&self) -> io::Result<()> {
        let files = self.files()?;
        let surplus = files.len().saturating_sub(FILES_MAX);
        files.iter().take(surplus).try_for_each(|first| fs::remove_file(self.path(*first)))
    }
}

/// The complete lines of a file.
fn lines(text: &str) -> impl Iterator<Item = (Found<'_>, &RawValue)> {
    let complete = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    complete.filter_map(parse)
}

fn parse(line: &str) -> Option<(Found<'_>, &RawValue)> {
    let raw: &RawValue = serde_json::from_str(line).ok()?;
    Some((serde_json::from_str(raw.get()).ok()?, raw))
}

/// A request's body for the log: JSON that is not too long, with secrets masked.
pub fn shown_body(bytes: &[u8]) -> Option<Value> {
    let body = bytes.trim_ascii();
    if body.is_empty() || body.len() > BODY_BYTES_MAX {
        return None;
    }
    let mut value = serde_json::from_slice(body).ok().filter(|value| *value != Value::Null)?;
    mask(&mut value);
    Some(value)
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let name = name.to_ascii_lowercase();
                if ["secret", "token", "password"].iter().any(|word| name.contains(word)) {
                    *value = Value::from(MASK);
                } else {
                    mask(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(mask),
        _ => {}
    }
}

/// An action in progress. It is recorded even if the client leaves before the response.
pub struct Recording {
    log: Arc<AuditLog>,
    action: Option<Box<Action>>,
}

impl Recording {
    /// Begins to record an action.
    pub fn new(log: &Arc<AuditLog>, action: Action) -> Recording {
        Recording { log: Arc::clone(log), action: Some(Box::new(action)) }
    }

    /// Records how the action ended, and returns once that is written.
    pub async fn done(mut self, status: u16, code: Option<&'static str>) {
        if let Some(mut action) = self.action.take() {
            (action.status, action.code) = (Some(status), code);
            if status >= 400 {
                action.body = None;
            }
            let log = Arc::clone(&self.log);
            // If the task cannot run, the runtime is shutting down.
            let _ = tokio::task::spawn_blocking(move || write(&log, &action)).await;
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let (Some(mut action), Ok(runtime)) =
            (self.action.take(), tokio::runtime::Handle::try_current())
        {
            action.body = None;
            let log = Arc::clone(&self.log);
            runtime.spawn_blocking(move || write(&log, &action));
        }
    }
}

/// A failed write does not fail the action, which is done already.
fn write(log: &AuditLog, action: &Action) {
    if let Err(error) = log.append(action) {
        let (operation, tenant, subject) = (action.operation, &*action.tenant_id, &*action.subject);
        tracing::error!(target: "codeq::audit", %error, operation, tenant, subject, "not recorded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn action(tenant: &str, text: &str) -> Action {
        Action {
            at: crate::times::Times::new("UTC").unwrap().timestamp(0),
            tenant_id: tenant.into(),
            subject: "admin".to_owned(),
            operation: "pauseQueue",
            parameters: Map::from_iter([("command".to_owned(), json!(text))]),
            body: None,
            remote_address: None,
            request_id: "r".to_owned(),
            status: Some(200),
            code: None,
        }
    }

    fn ids(
        log: &AuditLog,
        tenant: Option<&str>,
        after: Option<u64>,
        limit: usize,
    ) -> (Vec<u64>, u64) {
        let page = log.read(tenant, after, limit).unwrap();
        let id = |line: &RawValue| {
            serde_json::from_str::<Value>(line.get()).unwrap()["id"].as_u64().unwrap()
        };
        (page.items.iter().map(|line| id(line)).collect(), page.next_after)
    }

    #[test]
    fn lines_are_read_by_tenant_and_number_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::new(dir.path(), true);
        assert_eq!(ids(&log, None, None, 9), (vec![], 0));
        assert!(!dir.path().join("audit").exists(), "reading creates nothing");
        for n in 0..3 {
            log.append(&action("a", &n.to_string())).unwrap();
            log.append(&action("b", "x")).unwrap();
        }
        let log = AuditLog::new(dir.path(), false);
        log.append(&action("a", "3")).unwrap();
        assert_eq!(ids(&log, Some("a"), None, 9), (vec![1, 3, 5, 7], 7));
        assert_eq!(ids(&log, Some("a"), None, 2), (vec![5, 7], 7));
        assert_eq!(ids(&log, Some("a"), Some(1), 2), (vec![3, 5], 5));
        assert_eq!(ids(&log, Some("a"), Some(6), 2), (vec![7], 7));
        assert_eq!(ids(&log, None, Some(4), 9), (vec![5, 6, 7], 7));
        assert_eq!(ids(&log, Some("c"), Some(0), 9), (vec![], 7));
        assert_eq!(ids(&log, None, Some(99), 9), (vec![], 99));
    }

    #[test]
    fn a_torn_line_is_skipped_and_full_files_give_way() {
        let dir = tempfile::tempdir().unwrap();
        AuditLog::new(dir.path(), false).append(&action("a", "0")).unwrap();
        let path = dir.path().join("audit/audit-00000000000000000001.jsonl");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(br#"{"id":2,"tenan"#).unwrap();
        let log = AuditLog::new(dir.path(), false);
        assert_eq!(ids(&log, None, None, 9), (vec![1], 1));
        log.append(&action("a", "1")).unwrap();
        assert_eq!(ids(&log, None, None, 9), (vec![1, 2], 2));
        let long = "x".repeat(1 << 20);
        let total = 4 * FILES_MAX as u64 + 8;
        for _ in 2..total {
            log.append(&action("a", &long)).unwrap();
        }
        let files = log.files().unwrap();
        assert_eq!(files.len(), FILES_MAX);
        let (all, _) = ids(&log, None, None, 1_000);
        assert_eq!((all[0], all[all.len() - 1]), (files[0], total));
        let middle = files[3];
        assert_eq!(ids(&log, None, Some(middle - 2), 3).0, [middle - 1, middle, middle + 1]);
        assert_eq!(ids(&log, None, None, 6).0.len(), 6, "from several files");
    }

    #[tokio::test]
    async fn an_action_is_recorded_even_if_its_client_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(AuditLog::new(dir.path(), false));
        let begun = || Recording::new(&log, Action { status: None, ..action("a", "x") });
        begun().done(404, Some("not_found")).await;
        drop(begun());
        let read = || log.read(None, None, 9).unwrap().items;
        while read().len() < 2 {
            tokio::task::yield_now().await;
        }
        let items: Vec<Value> =
            read().iter().map(|line| serde_json::from_str(line.get()).unwrap()).collect();
        assert_eq!((&items[0]["status"], &items[0]["code"]), (&json!(404), &json!("not_found")));
        assert_eq!((items[1].get("status"), items[1].get("code")), (None, None));
    }

    #[test]
    fn secrets_are_masked_and_bodies_bounded() {
        let body = br#"{"secret":"whsec_1","overlapSeconds":5,"deep":[{"apiToken":"t"}],"x":null}"#;
        let shown = shown_body(body).unwrap();
        let expected =
            json!({"secret": "***", "overlapSeconds": 5, "deep": [{"apiToken": "***"}], "x": null});
        assert_eq!(shown, expected);
        for bad in [
            &b""[..],
            b" ",
            b"null",
            b"{",
            &[b' '; 9],
            format!("[{}]", "1,".repeat(4_096)).as_bytes(),
        ] {
            assert_eq!(shown_body(bad), None);
        }
    }
}
