//! `codeq task`: enqueue tasks and follow them.

mod change;
mod enqueue;
mod show;
mod watch;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use codeq_client::{CancelTasks, Error, Search, Status, TaskRecord, TaskResult, TaskState};
use serde::Serialize;

use crate::bulk::{self, Slice, Which};
use crate::cli::{
    About, Confirm, Connection, Done, Exit, Failure, Noun, Session, Show, duration, each, talk,
};
use crate::dlq;
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
  codeq task list --queue resize --state failed
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
Keeps trying while the server cannot be reached. Exit code: 0 completed, 1 failed, 3 no such task, 5 not finished in
time, or no answer.

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
    /// Make waiting tasks claimable now, without further delay.
    #[command(after_help = "\
For delayed tasks and for those that wait for a retry. Exit code: 3 no such task, 4 the task is running or
finished.

Example:
  codeq task run-now 0d2c0a8f-0000-7000-8000-000000000001")]
    RunNow {
        /// The tasks' ids.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Change the priority or the delay of waiting tasks.
    #[command(after_help = change::HELP)]
    Update(change::Args),
    /// Cancel tasks, by id or all that match. A running task ends when its worker stops.
    #[command(after_help = "\
With --queue, cancels the ready and delayed tasks of the queue that match, and asks for the queue's name unless
--yes is given. An interrupted command can be repeated: it continues with what is left.

Examples:
  codeq task cancel 0d2c0a8f-0000-7000-8000-000000000001
  codeq task cancel --queue resize --error timeout --dry-run
  codeq task cancel --queue resize --before 7d --include-running --yes")]
    Cancel(Cancel),
    /// Return dead letters, failed or cancelled tasks to their queue, by id or all that match.
    #[command(after_help = "\
With --queue, replays the queue's dead letters that match or, with --from, its failed or cancelled tasks.

Examples:
  codeq task replay 0d2c0a8f-0000-7000-8000-000000000001
  codeq task replay --queue resize --from cancelled --dry-run
  codeq task replay --queue resize --error timeout")]
    Replay(Replay),
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
pub struct Cancel {
    /// The tasks' ids.
    #[arg(value_name = "ID", required_unless_present = "queue", conflicts_with = "queue")]
    ids: Vec<String>,
    /// Cancel tasks of this queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Also ask the workers of running tasks to stop.
    #[arg(long)]
    include_running: bool,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(clap::Args)]
pub struct Replay {
    /// The tasks' ids.
    #[arg(value_name = "ID", required_unless_present = "queue", conflicts_with = "queue")]
    ids: Vec<String>,
    /// Replay tasks of this queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Which tasks of the queue.
    #[arg(long, value_enum, default_value_t = dlq::From::Dead, conflicts_with = "ids")]
    from: dlq::From,
    #[command(flatten)]
    which: Which,
    /// Change nothing; print how many tasks would be replayed.
    #[arg(long)]
    dry_run: bool,
}

#[derive(clap::Args)]
pub struct List {
    /// Only tasks of this queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Only tasks in this state.
    #[arg(long, alias = "status", value_enum, ignore_case = true)]
    state: Option<State>,
    #[command(flatten)]
    matching: Matching,
}

#[derive(Clone, Copy, ValueEnum)]
enum State {
    Ready,
    Delayed,
    #[value(alias = "in-progress", alias = "in_progress")]
    Running,
    Completed,
    Failed,
    Cancelled,
    Dead,
    // Ready or delayed: the status of the API.
    #[value(hide = true)]
    Pending,
}

#[derive(Serialize)]
struct Cancelled {
    id: String,
    /// `cancelled`, or `requested` if its worker was asked to stop.
    state: &'static str,
}

impl Show for Cancelled {
    const COLUMNS: &'static [&'static str] = &["ID", "STATE"];

    fn cells(&self) -> Vec<String> {
        vec![self.id.clone(), self.state.to_owned()]
    }

    fn name(&self) -> String {
        self.id.clone()
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
        Verb::RunNow { ids } => change::run_now(&session, &ids).await,
        Verb::Update(args) => change::update(&session, args).await,
        Verb::Cancel(args) => args.run(&session).await,
        Verb::Replay(args) => args.run(&session).await,
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
        let state = self.state.and_then(|state| match state {
            State::Ready => Some(TaskState::Ready),
            State::Delayed => Some(TaskState::Delayed),
            State::Running => Some(TaskState::Running),
            State::Completed => Some(TaskState::Completed),
            State::Failed => Some(TaskState::Failed),
            State::Cancelled => Some(TaskState::Cancelled),
            State::Dead => Some(TaskState::Dead),
            State::Pending => None,
        });
        let status = matches!(self.state, Some(State::Pending)).then_some(Status::Pending);
        let search = Search { command: self.queue, status, state, ..Search::default() };
        let mut list = session.out.list();
        let fetch = async |search: &Search| session.http.tasks(search).await;
        let each = |items: Vec<TaskRecord>| list.page(&items);
        let more = self.matching.pages(50, "the list of tasks", search, fetch, each).await?;
        list.end()?;
        match list.printed() {
            0 => talk("no tasks match"),
            printed if more => talk(&format!("these are the newest {printed}; --all lists all")),
            _ => {}
        }
        Ok(())
    }
}

/// Waits for the result and prints it. A failed task is an error.
async fn wait(session: &Session, id: &str, timeout: Duration) -> Done {
    // Requests have failed since the server's last answer.
    let mut silent = false;
    let note = |error: Option<&Error>| {
        match error {
            Some(error) if !silent => {
                talk(&format!("{}: {error}; trying again until --timeout", session.url));
            }
            None if silent => talk(&format!("{}: reached again", session.url)),
            _ => {}
        }
        silent = error.is_some();
    };
    let result = session.http.wait_result_with(id, timeout, note).await;
    let result = result.map_err(|error| match error {
        Error::Timeout if silent => Failure::new(
            Exit::Timeout,
            format!("{}: no answer within {}", session.url, crate::cli::span(timeout)),
            format!("`codeq doctor` checks the connection; then wait again: codeq task wait {id}"),
        ),
        Error::Timeout => Failure::new(
            Exit::Timeout,
            format!("task {id} is not finished after {}", crate::cli::span(timeout)),
            format!("wait longer with --timeout, or see what it waits for: codeq task why {id}"),
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

impl Cancel {
    async fn run(self, session: &Session) -> Done {
        let Cancel { ids, queue, include_running, which, confirm } = self;
        let Some(queue) = queue else {
            if include_running || which != Which::default() || confirm != Confirm::default() {
                return Err(without_queue());
            }
            return each(session.out, &ids, async |id| {
                let done = session.http.cancel(id).await.about(&format!("task {id}"))?;
                let state = if done { "cancelled" } else { "requested" };
                Ok(Cancelled { id: id.to_owned(), state })
            })
            .await;
        };
        let kinds =
            if include_running { "ready, delayed and running" } else { "ready and delayed" };
        confirm.ask(&format!("cancel {kinds} tasks of queue {queue}"), &queue)?;
        bulk::run(&session.out, &which, confirm.dry_run, (&queue, "cancelled"), async |options| {
            let cancel = CancelTasks { include_running, options };
            let done = session.http.cancel_tasks(&queue, &cancel).await?;
            let all = done.cancelled + done.cancel_requested;
            Ok(Slice { done: all, remaining: done.remaining, progress: done.progress })
        })
        .await
    }
}

impl Replay {
    async fn run(self, session: &Session) -> Done {
        let Replay { ids, queue, from, which, dry_run } = self;
        match queue {
            Some(queue) => dlq::replay(session, &queue, from, &which, dry_run).await,
            None if dry_run || which != Which::default() => Err(without_queue()),
            None => {
                each(session.out, &ids, async |id| {
                    session.http.replay_task(id).await.about(&format!("task {id}"))
                })
                .await
            }
        }
    }
}

/// That these options need --queue is checked here: clap ignores `requires = "queue"` once ids are given, because --queue
/// conflicts with them.
fn without_queue() -> Failure {
    let hint = "name the queue with --queue, or give the ids alone";
    Failure::usage("options and filters need --queue: tasks given by id take none", hint)
}
