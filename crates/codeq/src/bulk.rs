//! What purge, replay and cancel share: which tasks, and the work in slices.

use codeq_client::{BulkOptions, BulkProgress, Error, Purged};
use serde::Serialize;

use crate::cli::{About, Confirm, Done, Output, Progress, Show, moment};

/// Which tasks: all conditions that are given must hold.
#[derive(clap::Args, Clone, Default, PartialEq)]
pub struct Which {
    /// Only tasks whose error contains this text.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only tasks that ended (or, if unfinished, were created) before this time or at least this long ago.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    before: Option<String>,
    /// Only tasks that ended (or, if unfinished, were created) after this time or at most this long ago.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    after: Option<String>,
    /// Only tasks whose latest claim was by this worker.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// At most this many tasks. Default: all that match.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

/// Tasks per request. The server's limit.
pub const SLICE: u64 = 1_000;

/// The outcome of one request.
pub struct Slice {
    pub done: u64,
    pub remaining: u64,
    pub progress: BulkProgress,
}

/// The outcome of all requests.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Total {
    queue: String,
    /// Such as `purged` or `replayed`.
    #[serde(skip)]
    verb: &'static str,
    #[serde(rename = "count")]
    done: u64,
    /// In a dry run, how many tasks match.
    #[serde(skip_serializing_if = "Option::is_none")]
    matched: Option<u64>,
    pub remaining: u64,
    dry_run: bool,
}

impl Total {
    pub fn new(queue: &str, verb: &'static str, dry_run: bool) -> Total {
        let (queue, matched) = (queue.to_owned(), dry_run.then_some(0));
        Total { queue, verb, done: 0, matched, remaining: 0, dry_run }
    }

    /// How many tasks are done or, in a dry run, would be.
    pub fn so_far(&self) -> u64 {
        self.matched.unwrap_or(self.done)
    }

    pub fn add(&mut self, tasks: u64) {
        match &mut self.matched {
            Some(matched) => *matched += tasks,
            None => self.done += tasks,
        }
    }
}

impl Which {
    pub fn limit(&self) -> u64 {
        self.limit.unwrap_or(u64::MAX)
    }
}

impl Show for Total {
    const COLUMNS: &'static [&'static str] = &["QUEUE", "ACTION", "TASKS", "REMAINING"];

    fn cells(&self) -> Vec<String> {
        let action = match self.dry_run {
            true => format!("would be {}", self.verb),
            false => self.verb.to_owned(),
        };
        let (tasks, remaining) = (self.so_far().to_string(), self.remaining.to_string());
        vec![self.queue.clone(), action, tasks, remaining]
    }

    fn name(&self) -> String {
        self.queue.clone()
    }
}

/// The options of a command that purges.
#[derive(clap::Args)]
pub struct Purge {
    /// Name of the queue.
    pub queue: String,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub confirm: Confirm,
}

impl Purge {
    /// Asks for confirmation, then purges slice by slice.
    pub async fn run(
        &self,
        out: &Output,
        what: &str,
        mut purge: impl AsyncFnMut(BulkOptions) -> Result<Purged, Error>,
    ) -> Done {
        let Purge { queue, which, confirm } = self;
        confirm.ask(what, queue)?;
        run(out, which, confirm.dry_run, (queue, "purged"), async |options| {
            let Purged { purged: done, remaining, progress, .. } = purge(options).await?;
            Ok(Slice { done, remaining, progress })
        })
        .await
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
    let Which { error, before, after, worker, .. } = which.clone();
    let options =
        BulkOptions { error_contains: error, before, after, worker, ..BulkOptions::default() };
    let mut options = BulkOptions { dry_run, ..options };
    let limit = which.limit();
    let mut total = Total::new(queue, verb, dry_run);
    let mut progress = Progress::new(if dry_run { "matching tasks found" } else { verb });
    loop {
        options.limit = u32::try_from(limit.saturating_sub(total.so_far()).min(SLICE)).ok();
        let done = slice(options.clone()).await.about(&format!("queue {queue}"))?;
        total.add(if dry_run { done.progress.matched.unwrap_or_default() } else { done.done });
        total.remaining = done.remaining;
        options.cursor = done.progress.next_cursor;
        if options.cursor.is_none() || total.so_far() >= limit {
            break;
        }
        let left = total.remaining.min(limit.saturating_sub(total.so_far()));
        // In a dry run, those found remain.
        let all = (!dry_run).then(|| total.so_far().saturating_add(left));
        progress.at(total.so_far(), all);
    }
    drop(progress);
    out.item(&total)
}
