//! What `task list`, `dlq list` and `dlq groups` share: which tasks, and how many.

use codeq_client::{Error, Search, TaskPage, TaskRecord};

use crate::cli::{About, Done, Progress, moment};

/// Tasks per request. The server's limit.
const PAGE: u64 = 1_000;

/// Which tasks to list: all conditions that are given must hold.
#[derive(clap::Args)]
pub struct Matching {
    /// Only tasks whose error contains this text.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only tasks whose latest claim was by this worker.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Only tasks created after this time, or at most this long ago.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    created_after: Option<String>,
    /// Only tasks created before this time, or at least this long ago.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    created_before: Option<String>,
    /// Read this many matching tasks at most. Default: 50; 10,000 for `codeq dlq groups` and `codeq dlq list --group`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Look at all tasks that match.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

impl Matching {
    /// Calls `each` with every page. True if there are more tasks than the limit allows.
    pub async fn pages(
        &self,
        default_limit: u64,
        subject: &str,
        mut search: Search,
        mut fetch: impl AsyncFnMut(&Search) -> Result<TaskPage, Error>,
        mut each: impl FnMut(Vec<TaskRecord>) -> Done,
    ) -> Done<bool> {
        search.filter = filter(&[
            ("worker=", self.worker.as_deref()),
            ("error~", self.error.as_deref()),
            ("created>=", self.created_after.as_deref()),
            ("created<", self.created_before.as_deref()),
        ]);
        let mut progress = Progress::new("tasks read");
        let (limit, mut seen) =
            (if self.all { u64::MAX } else { self.limit.unwrap_or(default_limit) }, 0);
        while seen < limit {
            search.limit = u32::try_from(limit.saturating_sub(seen).min(PAGE)).ok();
            let page = fetch(&search).await.about(subject)?;
            seen = seen.saturating_add(page.items.len() as u64);
            progress.clear();
            each(page.items)?;
            progress.at(seen, None);
            search.cursor = page.next_cursor;
            if search.cursor.is_none() {
                return Ok(false);
            }
        }
        Ok(search.cursor.is_some())
    }
}

/// The terms that have a value, in the syntax of the server. None if there are none.
fn filter(terms: &[(&str, Option<&str>)]) -> Option<String> {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let given = terms.iter().filter_map(|(term, value)| Some((term, (*value)?)));
    let terms = given.map(|(term, value)| format!("{term}\"{}\"", quoted(value)));
    Some(terms.collect::<Vec<_>>().join(" ")).filter(|filter| !filter.is_empty())
}
