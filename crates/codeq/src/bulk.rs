//! What purge and replay share: which tasks, and the work in slices.

use std::io::IsTerminal;

use codeq_client::{BulkOptions, Error};
use serde::Serialize;

use crate::cli::{About, Done, Output, Show, moment};

/// Which tasks: all conditions that are given must hold.
#[derive(clap::Args, Clone)]
pub struct Which {
    /// Only tasks whose error contains this text.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only tasks that finished, or else were created, before this time, or at least this long ago.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    before: Option<String>,
    /// Only tasks that finished, or else were created, after this time, or at most this long ago.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    after: Option<String>,
    /// Only tasks that this worker claimed last.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// At most this many tasks. Default: all that match.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

/// Tasks per request. The server's limit.
const SLICE: u64 = 1_000;

/// The outcome of one request.
pub struct Slice {
    pub done: u64,
    pub matched: Option<u64>,
    pub remaining: u64,
    pub next_cursor: Option<String>,
}

/// The outcome of all requests.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Total {
    queue: String,
    /// `purged`, `replayed` or so.
    #[serde(skip)]
    verb: &'static str,
    #[serde(rename = "count")]
    done: u64,
    /// In a dry run, how many tasks match.
    #[serde(skip_serializing_if = "Option::is_none")]
    matched: Option<u64>,
    remaining: u64,
    dry_run: bool,
}

impl Show for Total {
    const COLUMNS: &'static [&'static str] = &["QUEUE", "ACTION", "TASKS", "REMAINING"];

    fn cells(&self) -> Vec<String> {
        let action = match self.dry_run {
            true => format!("would be {}", self.verb),
            false => self.verb.to_owned(),
        };
        let tasks = self.matched.filter(|_| self.dry_run).unwrap_or(self.done);
        vec![self.queue.clone(), action, tasks.to_string(), self.remaining.to_string()]
    }

    fn name(&self) -> String {
        self.queue.clone()
    }
}

/// Calls the server until everything that matches is done, and prints the total.
pub async fn run(
    out: &Output,
    which: &Which,
    dry_run: bool,
    (queue, verb): (&str, &'static str),
    mut slice: impl AsyncFnMut(BulkOptions) -> Result<Slice, Error>,
) -> Done {
    let Which { error, before, after, worker, limit } = which.clone();
    let options =
        BulkOptions { error_contains: error, before, after, worker, ..BulkOptions::default() };
    let mut options = BulkOptions { dry_run, ..options };
    let limit = limit.unwrap_or(u64::MAX);
    let queue = queue.to_owned();
    let matched = dry_run.then_some(0);
    let mut total = Total { queue, verb, done: 0, matched, remaining: 0, dry_run };
    loop {
        let so_far = total.matched.unwrap_or(total.done);
        options.limit = u32::try_from(limit.saturating_sub(so_far).min(SLICE)).ok();
        let done = slice(options.clone()).await.about(&format!("queue {}", total.queue))?;
        total.done += done.done;
        total.matched = total.matched.map(|so_far| so_far + done.matched.unwrap_or_default());
        total.remaining = done.remaining;
        options.cursor = done.next_cursor;
        let so_far = total.matched.unwrap_or(total.done);
        if options.cursor.is_none() || so_far >= limit {
            break;
        }
        progress(&format!("{so_far} {verb}, {} remaining", total.remaining));
    }
    progress("");
    out.item(&total)
}

/// Replaces the line of progress, if a person is watching.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        let line = format!("\r\x1b[K{text}");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
}
