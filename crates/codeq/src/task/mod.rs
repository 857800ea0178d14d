//! `codeq task`: enqueue tasks and follow them.

mod enqueue;
mod show;
mod watch;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use codeq_client::{Search, Status, TaskRecord, TaskResult};
use serde::Serialize;

use crate::cli::{About, Connection, Done, Exit, Failure, Noun, Session, Show, duration, talk};
use crate::search::Matching;

#[derive(Subcommand)]
pub enum Verb {
    /// Enqueue a task.
    #[command(visible_alias = "create", after_help = enqueue::HELP)]
    Enqueue(Box<enqueue::Args>),
    /// Show a task.
    #[command(after_help = "\
Examples:
  codeq task get 0d2c0a8f-0000-7000-8000-000000000001
  codeq task get 0d2c0a8f-0000-7000-8000-000000000001 -o json")]
    Get {
        /// The task's id.
        id: String,
    },
    /// List tasks, newest first.
    #[command(after_help = "\
Examples:
  codeq task list --queue resize --status failed
  codeq task list --error 'connection refused' --created-after 2h
  codeq task list --queue resize --all -o name")]
    List(List),
    /// Print transitions as they happen: of one task until it is finished, or of all tasks.
    #[command(after_help = "\
Prints one line of JSON per transition unless stdout is a terminal.

Examples:
  codeq task watch 0d2c0a8f-0000-7000-8000-000000000001
  codeq task watch --queue resize")]
    Watch {
        /// The task's id.
        id: Option<String>,
        /// Only tasks of this queue.
        #[arg(long, value_name = "QUEUE", conflicts_with = "id")]
        queue: Option<String>,
    },
    /// Wait until a task is finished, and print its result.
    #[command(after_help = "\
Exit code: 0 completed, 1 failed, 3 no such task, 5 not finished in time.

Example:
  codeq task wait 0d2c0a8f-0000-7000-8000-000000000001 --timeout 5m")]
    Wait {
        /// The task's id.
        id: String,
        /// How long to wait.
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
        timeout: Duration,
    },
    /// Print the result of a finished task.
    #[command(after_help = "\
Exit code: 0 completed, 1 failed, 3 no such task or not finished.

Examples:
  codeq task result 0d2c0a8f-0000-7000-8000-000000000001
  codeq task result 0d2c0a8f-0000-7000-8000-000000000001 --raw")]
    Result {
        /// The task's id.
        id: String,
        /// Only what the worker returned, byte for byte.
        #[arg(long)]
        raw: bool,
    },
    /// Cancel tasks. A running task ends when its worker stops.
    #[command(after_help = "Example:\n  codeq task cancel 0d2c0a8f-0000-7000-8000-000000000001")]
    Cancel {
        /// The tasks' ids.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Return dead-lettered, failed or cancelled tasks to their queue.
    #[command(after_help = "Example:\n  codeq task replay 0d2c0a8f-0000-7000-8000-000000000001")]
    Replay {
        /// The tasks' ids.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Explain why a task is where it is: what it waits for, who has it, or how it ended.
    #[command(after_help = "Example:\n  codeq task why 0d2c0a8f-0000-7000-8000-000000000001")]
    Why {
        /// The task's id.
        id: String,
    },
    /// Print every transition of a task: when, what, who and why.
    #[command(after_help = "Example:\n  codeq task history 0d2c0a8f-0000-7000-8000-000000000001")]
    History {
        /// The task's id.
        id: String,
    },
}

#[derive(clap::Args)]
pub struct List {
    /// Only tasks of this queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Only tasks with this status.
    #[arg(long, value_enum, ignore_case = true)]
    status: Option<State>,
    #[command(flatten)]
    matching: Matching,
}

#[derive(Clone, Copy, ValueEnum)]
enum State {
    Pending,
    #[value(alias = "in_progress", alias = "running")]
    InProgress,
    Completed,
    Failed,
}

#[derive(Serialize)]
struct Cancelled<'a> {
    id: &'a str,
    /// `cancelled`, or `requested` if its worker was asked to stop.
    state: &'static str,
}

impl Show for Cancelled<'_> {
    const COLUMNS: &'static [&'static str] = &["ID", "STATE"];

    fn cells(&self) -> Vec<String> {
        vec![self.id.to_owned(), self.state.to_owned()]
    }

    fn name(&self) -> String {
        self.id.to_owned()
    }
}

pub fn run(noun: Noun<Verb>, top: &Connection) -> ExitCode {
    noun.run(top, async |verb, session| match verb {
        Verb::Enqueue(args) => enqueue::run(&args, &session).await,
        Verb::Get { id } => {
            let task = session.http.task(&id).await.about(&format!("task {id}"))?;
            session.out.item(&task)
        }
        Verb::List(args) => args.run(&session).await,
        Verb::Watch { id: Some(id), .. } => watch::one(&session, &id).await,
        Verb::Watch { queue, .. } => watch::all(&session, queue.as_deref()).await,
        Verb::Wait { id, timeout } => wait(&session, &id, timeout).await,
        Verb::Result { id, raw } => result(&session, &id, raw).await,
        Verb::Cancel { ids } => cancel(&session, &ids).await,
        Verb::Replay { ids } => replay(&session, &ids).await,
        Verb::Why { id } => crate::why::task(&session, &id).await,
        Verb::History { id } => {
            let history = session.http.history(&id).await.about(&format!("task {id}"))?;
            if history.dropped > 0 {
                talk(&format!(
                    "{} transitions after the first are no longer kept",
                    history.dropped
                ));
            }
            session.out.items(&history.items)
        }
    })
}

impl List {
    async fn run(self, session: &Session) -> Done {
        let status = self.status.map(|state| match state {
            State::Pending => Status::Pending,
            State::InProgress => Status::InProgress,
            State::Completed => Status::Completed,
            State::Failed => Status::Failed,
        });
        let search = Search { command: self.queue, status, ..Search::default() };
        let mut list = session.out.list();
        let fetch = async |search: &Search| session.http.tasks(search).await;
        let each = |items: Vec<TaskRecord>| list.page(&items);
        let more = self.matching.pages(50, "the list of tasks", search, fetch, each).await?;
        list.end()?;
        match list.printed() {
            0 => talk("no tasks match"),
            printed if more => {
                talk(&format!("{printed} tasks listed, there are more: --all lists them"))
            }
            _ => {}
        }
        Ok(())
    }
}

/// Waits for the result and prints it. A failed task is an error.
async fn wait(session: &Session, id: &str, timeout: Duration) -> Done {
    let result = session.http.wait_result(id, timeout).await;
    let result = result.map_err(|error| match error {
        codeq_client::Error::Timeout => Failure::new(
            Exit::Timeout,
            format!("task {id} is not finished after {}", crate::cli::span(timeout)),
            format!("wait longer with --timeout, or see where it is: codeq task get {id}"),
        ),
        other => Failure::from(other).about(&format!("task {id}")),
    })?;
    session.out.item(&result)?;
    succeeded(&result)
}

async fn result(session: &Session, id: &str, raw: bool) -> Done {
    let result = session.http.result(id, Duration::ZERO).await.about(&format!("task {id}"))?;
    let result = result.ok_or_else(|| {
        let hint = format!("wait for it: codeq task wait {id}");
        Failure::new(Exit::NotFound, format!("task {id} has no result yet"), hint)
    })?;
    if raw {
        let json = result.result.as_deref().map_or("null", |json| json.get());
        match std::io::stdout().is_terminal() {
            true => println!("{}", crate::cli::printable_lines(json)),
            false => println!("{json}"),
        }
    } else {
        session.out.item(&result)?;
    }
    succeeded(&result)
}

fn succeeded(result: &TaskResult) -> Done {
    if result.status == Status::Completed {
        return Ok(());
    }
    let TaskResult { task_id: id, error, .. } = result;
    let what = format!("task {id} failed: {}", crate::cli::printable(error));
    Err(Failure::error(what, format!("see its attempts: codeq task history {id}")))
}

async fn cancel(session: &Session, ids: &[String]) -> Done {
    let mut list = session.out.list();
    let mut failed = None;
    for id in ids {
        match session.http.cancel(id).await.about(&format!("task {id}")) {
            Ok(done) => {
                let state = if done { "cancelled" } else { "requested" };
                list.page(&[Cancelled { id, state }])?;
            }
            Err(failure) => report(&mut failed, failure),
        }
    }
    list.end()?;
    failed.map_or(Ok(()), Err)
}

async fn replay(session: &Session, ids: &[String]) -> Done {
    let mut list = session.out.list();
    let mut failed = None;
    for id in ids {
        match session.http.replay_task(id).await.about(&format!("task {id}")) {
            Ok(task) => list.page(&[task])?,
            Err(failure) => report(&mut failed, failure),
        }
    }
    list.end()?;
    failed.map_or(Ok(()), Err)
}

/// Keeps the latest failure for the end, where it decides the exit code, and prints the one before.
fn report(kept: &mut Option<Failure>, failure: Failure) {
    if let Some(before) = kept.replace(failure) {
        talk(&format!("codeq: {}", before.what()));
    }
}
