//! `codeq dlq`: dead letters, by queue.

mod group;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use codeq_client::{Replay, ReplayFrom, Search, TaskRecord};
use serde::Serialize;

use crate::bulk::{self, Purge, Slice, Which};
use crate::cli::{Connection, Done, Noun, Session, Show, age, talk};
use crate::queue::find;
use crate::search::Matching;

/// How many dead letters are looked at for groups, unless --limit or --all says otherwise.
const GROUPED: u64 = 10_000;
/// Maximum number of groups that are counted separately; the rest are counted together.
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
Errors that differ only in numbers are one group; ERROR is that of its newest dead letter. `codeq dlq list`,
`codeq dlq replay` and `codeq dlq purge` take a GROUP.

Examples:
  codeq dlq groups resize
  codeq dlq replay resize --group 5f3a91c2 --dry-run")]
    Groups {
        /// Name of the queue.
        queue: String,
        #[command(flatten)]
        matching: Matching,
    },
    /// Return dead letters to their queue, with a fresh set of attempts.
    #[command(after_help = "\
Examples:
  codeq dlq replay resize --error timeout --dry-run
  codeq dlq replay resize --error timeout
  codeq dlq replay resize --group 5f3a91c2
  codeq dlq replay resize --from failed --after 1h")]
    Replay {
        /// Name of the queue.
        queue: String,
        /// Which tasks.
        #[arg(long, value_enum, default_value_t = From::Dead)]
        from: From,
        /// Only dead letters of this group, as `codeq dlq groups` prints it.
        #[arg(long, value_name = "GROUP", conflicts_with_all = ["from", "error", "before", "after", "worker"])]
        group: Option<String>,
        #[command(flatten)]
        which: Which,
        /// Change nothing; print how many tasks would be replayed.
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete dead letters.
    #[command(after_help = "\
Asks for the queue's name unless --yes is given.

Examples:
  codeq dlq purge resize --before 30d --dry-run
  codeq dlq purge resize --before 30d --yes
  codeq dlq purge resize --group 5f3a91c2 --dry-run")]
    Purge(PurgeDead),
}

impl Verb {
    fn queue(&self) -> &str {
        match self {
            Verb::List(List { queue, .. })
            | Verb::Groups { queue, .. }
            | Verb::Replay { queue, .. }
            | Verb::Purge(PurgeDead { purge: Purge { queue, .. }, .. }) => queue,
        }
    }
}

#[derive(clap::Args)]
pub struct List {
    /// Name of the queue.
    queue: String,
    /// Only dead letters of this group, as `codeq dlq groups` prints it.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    #[command(flatten)]
    matching: Matching,
}

#[derive(clap::Args)]
pub struct PurgeDead {
    #[command(flatten)]
    purge: Purge,
    /// Only dead letters of this group, as `codeq dlq groups` prints it.
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["error", "before", "after", "worker"])]
    group: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum From {
    /// Tasks that used up their attempts.
    Dead,
    /// Tasks that a worker ended with the status FAILED.
    Failed,
    /// Cancelled tasks.
    Cancelled,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    /// What `--group` takes.
    group: String,
    count: u64,
    /// The error of the newest dead letter.
    error: String,
    /// The newest dead letter.
    latest: String,
    latest_at: String,
}

impl Show for Group {
    const COLUMNS: &'static [&'static str] = &["COUNT", "LATEST", "GROUP", "ERROR"];

    fn cells(&self) -> Vec<String> {
        let count = self.count.to_string();
        vec![count, age(&self.latest_at), self.group.clone(), self.error.clone()]
    }

    fn name(&self) -> String {
        self.group.clone()
    }
}

pub fn run(noun: Noun<Verb>, top: &Connection) -> ExitCode {
    noun.run(top, async |verb, session| {
        find(&session, verb.queue()).await?;
        match verb {
            Verb::List(args) => list(&session, &args).await,
            Verb::Groups { queue, matching } => groups(&session, &queue, &matching).await,
            Verb::Replay { queue, group: Some(group), which, dry_run, .. } => {
                group::replay(&session, &queue, &group, &which, dry_run).await
            }
            Verb::Replay { queue, from, which, dry_run, .. } => {
                replay(&session, &queue, from, &which, dry_run).await
            }
            Verb::Purge(PurgeDead { purge, group: Some(group) }) => {
                group::purge(&session, &purge, &group).await
            }
            Verb::Purge(PurgeDead { purge, .. }) => {
                let what = format!("delete dead letters of queue {} for good", purge.queue);
                purge
                    .run(&session.out, &what, async |options| {
                        session.http.purge_dead_letters(&purge.queue, &options).await
                    })
                    .await
            }
        }
    })
}

/// Calls `each` with every page of dead letters. True if there are more than the limit allows.
async fn pages(
    session: &Session,
    queue: &str,
    (matching, default_limit): (&Matching, u64),
    each: impl FnMut(Vec<TaskRecord>) -> Done,
) -> Done<bool> {
    let subject = format!("dead letters of queue {queue}");
    let fetch = async |search: &Search| session.http.dead_letters(queue, search).await;
    matching.pages(default_limit, &subject, Search::default(), fetch, each).await
}

/// Returns the matching tasks of a queue to the queue.
pub async fn replay(
    session: &Session,
    queue: &str,
    from: From,
    which: &Which,
    dry_run: bool,
) -> Done {
    let from = match from {
        From::Dead => ReplayFrom::DeadLetters,
        From::Failed => ReplayFrom::Failed,
        From::Cancelled => ReplayFrom::Cancelled,
    };
    bulk::run(&session.out, which, dry_run, (queue, "replayed"), async |options| {
        let replay = Replay { from, options };
        let done = session.http.replay_dead_letters(queue, &replay).await?;
        Ok(Slice { done: done.replayed, remaining: done.remaining, progress: done.progress })
    })
    .await
}

async fn list(session: &Session, args: &List) -> Done {
    let List { queue, group, matching } = args;
    let mut list = session.out.list();
    let of_group =
        |task: &TaskRecord| group.as_ref().is_none_or(|id| *id == group::id(&task.error));
    // Looks for the group among as many dead letters as `groups` counts.
    let limit = if group.is_some() { GROUPED } else { 50 };
    let mut seen = 0;
    let each = |mut items: Vec<TaskRecord>| {
        seen += items.len();
        items.retain(of_group);
        list.page(&items)
    };
    let more = pages(session, queue, (matching, limit), each).await?;
    list.end()?;
    match (group, list.printed()) {
        (_, 0) if !more => talk(&format!("queue {queue} has no dead letters that match")),
        _ if !more => {}
        (Some(group), 0) => {
            talk(&format!("none of the newest {seen} is of group {group}: --all looks at all"));
        }
        (Some(_), _) => talk(&format!("only the newest {seen} were looked at: --all looks at all")),
        (None, _) => talk(&format!("these are the newest {seen}; --all lists all")),
    }
    Ok(())
}

async fn groups(session: &Session, queue: &str, matching: &Matching) -> Done {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    let mut seen = 0;
    let each = |items: Vec<TaskRecord>| {
        seen += items.len();
        for task in items {
            let mut id = group::id(&task.error);
            let mut error = task.error;
            if groups.len() >= GROUPS_MAX && !groups.contains_key(&id) {
                (id, error) = (String::new(), "(other errors)".to_owned());
            }
            let group = groups.entry(id).or_insert_with_key(|id| Group {
                group: id.clone(),
                count: 0,
                error,
                latest: task.id,
                latest_at: task.updated_at,
            });
            group.count += 1;
        }
        Ok(())
    };
    let more = pages(session, queue, (matching, GROUPED), each).await?;
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.error.cmp(&b.error)));
    session.out.items(&groups)?;
    match seen {
        0 => talk(&format!("queue {queue} has no dead letters that match")),
        seen if more => talk(&format!("only the newest {seen} were counted: --all counts all")),
        _ => {}
    }
    Ok(())
}
