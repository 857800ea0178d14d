//! `codeq task update` and `codeq task run-now`: change tasks that are not running yet.

use std::time::Duration;

use codeq_client::TaskChanges;

use crate::cli::{About, Done, Session, duration, each, seconds, time};

pub const HELP: &str = "\
Changes tasks that are waiting: ready, delayed, or waiting for a retry. A new delay or time replaces the old
one. A task that becomes ready, or gets another priority while it is ready, goes to the back of its priority.
Exit code: 3 no such task, 4 the task is running or finished.

Examples:
  codeq task update 0d2c0a8f-0000-7000-8000-000000000001 --priority 9
  codeq task update 0d2c0a8f-0000-7000-8000-000000000001 --delay 10m
  codeq task update 0d2c0a8f-0000-7000-8000-000000000001 --run-at 2026-01-31T08:00:00Z";

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub struct Args {
    /// The tasks' ids.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// 0 to 9; higher is claimed first.
    #[arg(long, value_name = "N", group = "change", value_parser = clap::value_parser!(i64).range(0..=9))]
    priority: Option<i64>,
    /// Do not start the task before this much time has passed; 0 means now.
    #[arg(long, value_name = "DURATION", group = "change", value_parser = duration, conflicts_with = "run_at")]
    delay: Option<Duration>,
    /// Do not start the task before this time, such as 2026-01-31T08:00:00Z.
    #[arg(long, value_name = "TIME", group = "change", value_parser = time)]
    run_at: Option<String>,
}

pub async fn update(session: &Session, args: Args) -> Done {
    let Args { ids, priority, delay, run_at } = args;
    change(session, &ids, &TaskChanges { priority, delay_seconds: delay.map(seconds), run_at })
        .await
}

pub async fn run_now(session: &Session, ids: &[String]) -> Done {
    change(session, ids, &TaskChanges { delay_seconds: Some(0), ..TaskChanges::default() }).await
}

async fn change(session: &Session, ids: &[String], changes: &TaskChanges) -> Done {
    each(session.out, ids, async |id| {
        session.http.change(id, changes).await.about(&format!("task {id}"))
    })
    .await
}
