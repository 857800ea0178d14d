//! `codeq dlq`: dead letters, by queue.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use codeq_client::{Replay, ReplayFrom, Search, TaskRecord};
use serde::Serialize;

use crate::bulk::{self, Slice, Which};
use crate::cli::{About, Confirm, Connection, Done, Noun, Session, Show, age, moment, talk};
use crate::task::filter;

/// Dead letters per request. The server's limit.
const PAGE: u64 = 1_000;
/// Different errors that are counted apart.
const GROUPS_MAX: usize = 1_000;

#[derive(Subcommand)]
pub enum Verb {
    /// List the dead letters of a queue, newest first.
    #[command(after_help = "\
Examples:
  codeq dlq list resize
  codeq dlq list resize --error timeout --all -o name")]
    List(List),
    /// Count the dead letters of a queue by error.
    #[command(after_help = "\
Errors that differ only in numbers are counted together.

Example:
  codeq dlq groups resize")]
    Groups(List),
    /// Return dead letters to their queue, with a fresh set of attempts.
    #[command(after_help = "\
Examples:
  codeq dlq replay resize --error timeout --dry-run
  codeq dlq replay resize --error timeout
  codeq dlq replay resize --from failed --after 1h")]
    Replay {
        /// Name of the queue.
        queue: String,
        /// Which tasks.
        #[arg(long, value_enum, default_value_t = From::Dead)]
        from: From,
        #[command(flatten)]
        which: Which,
        /// Change nothing; say how many would be replayed.
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete dead letters.
    #[command(after_help = "\
Asks for the queue's name unless --yes is given.

Examples:
  codeq dlq purge resize --before 30d --dry-run
  codeq dlq purge resize --before 30d --yes")]
    Purge {
        /// Name of the queue.
        queue: String,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        confirm: Confirm,
    },
}

#[derive(clap::Args)]
pub struct List {
    /// Name of the queue.
    queue: String,
    /// Only dead letters whose error contains this text.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only dead letters that this worker claimed last.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Only tasks created after this time, or at most this long ago.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    created_after: Option<String>,
    /// How many dead letters to look at. Default: 50 for list, 10,000 for groups.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Look at all of them.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum From {
    /// Tasks that used up their attempts.
    Dead,
    /// Tasks that a worker failed for good.
    Failed,
    /// Cancelled tasks.
    Cancelled,
}

#[derive(Serialize)]
struct Group {
    count: u64,
    error: String,
    /// The newest dead letter of the group.
    latest: String,
    #[serde(rename = "latestAt")]
    latest_at: String,
}

impl Show for Group {
    const COLUMNS: &'static [&'static str] = &["COUNT", "LATEST", "ERROR", "ID"];

    fn cells(&self) -> Vec<String> {
        let count = self.count.to_string();
        vec![count, age(&self.latest_at), self.error.clone(), self.latest.clone()]
    }

    fn name(&self) -> String {
        self.error.clone()
    }
}

pub fn run(noun: Noun<Verb>, top: &Connection) -> ExitCode {
    noun.run(top, async |verb, session| match verb {
        Verb::List(args) => list(&session, &args).await,
        Verb::Groups(args) => groups(&session, &args).await,
        Verb::Replay { queue, from, which, dry_run } => {
            let from = match from {
                From::Dead => ReplayFrom::DeadLetters,
                From::Failed => ReplayFrom::Failed,
                From::Cancelled => ReplayFrom::Cancelled,
            };
            bulk::run(&session.out, &which, dry_run, (&queue, "replayed"), async |options| {
                let replay = Replay { from, options };
                let done = session.http.replay_dead_letters(&queue, &replay).await?;
                let (matched, remaining) = (done.matched, done.remaining);
                Ok(Slice { done: done.replayed, matched, remaining, next_cursor: done.next_cursor })
            })
            .await
        }
        Verb::Purge { queue, which, confirm } => {
            confirm.ask(&format!("delete dead letters of queue {queue} for good"), &queue)?;
            bulk::run(&session.out, &which, confirm.dry_run, (&queue, "purged"), async |options| {
                let done = session.http.purge_dead_letters(&queue, &options).await?;
                let (matched, remaining) = (done.matched, done.remaining);
                Ok(Slice { done: done.purged, matched, remaining, next_cursor: done.next_cursor })
            })
            .await
        }
    })
}

impl List {
    /// Calls `each` with every page. True if there are more than the limit allows.
    async fn pages(
        &self,
        session: &Session,
        default: u64,
        mut each: impl FnMut(Vec<TaskRecord>) -> Done,
    ) -> Done<bool> {
        let filter = filter(&[
            ("worker=", self.worker.clone()),
            ("error~", self.error.clone()),
            ("created>=", self.created_after.clone()),
        ]);
        let mut search = Search { filter, ..Search::default() };
        let mut left = if self.all { u64::MAX } else { self.limit.unwrap_or(default) };
        while left > 0 {
            search.limit = u32::try_from(left.min(PAGE)).ok();
            let subject = format!("dead letters of queue {}", self.queue);
            let page = session.http.dead_letters(&self.queue, &search).await.about(&subject)?;
            left = left.saturating_sub(page.items.len() as u64);
            each(page.items)?;
            search.cursor = page.next_cursor;
            if search.cursor.is_none() {
                return Ok(false);
            }
        }
        Ok(search.cursor.is_some())
    }
}

async fn list(session: &Session, args: &List) -> Done {
    let mut list = session.out.list();
    let more = args.pages(session, 50, |items| list.page(&items)).await?;
    list.end()?;
    match list.printed() {
        0 => talk(&format!("queue {} has no dead letters that match", args.queue)),
        n if more => talk(&format!("{n} dead letters listed, there are more: --all lists them")),
        _ => {}
    }
    Ok(())
}

async fn groups(session: &Session, args: &List) -> Done {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    let mut seen = 0;
    let more = args
        .pages(session, 10_000, |items| {
            seen += items.len();
            for task in items {
                let mut kind = kind(&task.error);
                if groups.len() >= GROUPS_MAX && !groups.contains_key(&kind) {
                    kind = "(other errors)".to_owned();
                }
                let group = groups.entry(kind).or_insert_with_key(|kind| Group {
                    count: 0,
                    error: kind.clone(),
                    latest: task.id,
                    latest_at: task.updated_at,
                });
                group.count += 1;
            }
            Ok(())
        })
        .await?;
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.error.cmp(&b.error)));
    session.out.items(&groups)?;
    match seen {
        0 => talk(&format!("queue {} has no dead letters that match", args.queue)),
        seen if more => talk(&format!("only the newest {seen} were counted: --all counts all")),
        _ => {}
    }
    Ok(())
}

/// The error without what differs from task to task: every number becomes `N`.
fn kind(error: &str) -> String {
    let mut kind = String::new();
    for c in error.chars() {
        match c.is_ascii_digit() {
            true if kind.ends_with('N') => {}
            true => kind.push('N'),
            false => kind.push(c),
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_split_a_group() {
        assert_eq!(kind("timeout after 30 s"), "timeout after N s");
        assert_eq!(kind("timeout after 5 s"), kind("timeout after 30 s"));
        assert_eq!(kind(""), "");
    }
}
