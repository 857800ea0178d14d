//! `codeq task enqueue`.

use std::time::Duration;

use codeq_client::TaskRecord;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::cli::{About, Done, Failure, Session, duration, input, seconds, talk, time};

pub const HELP: &str = "\
With --wait, prints the result instead of the task. Exit code: 0 completed, 1 failed, 4 the idempotency key
was used before with a different queue or payload, 5 not finished in time.

Examples:
  codeq task enqueue resize --payload '{\"image\": 7}'
  codeq task enqueue resize --payload @image.json --priority 9 --delay 5m --max-run 10m
  echo '{\"image\": 7}' | codeq task enqueue resize --payload - --wait
  codeq task create --event resize --payload '{\"image\": 7}'";

#[derive(clap::Args)]
pub struct Args {
    /// The queue: the kind of work.
    #[arg(required_unless_present = "event", conflicts_with = "event")]
    queue: Option<String>,
    /// The queue, under the name that the original codeQ's command line gives this option.
    #[arg(long, value_name = "QUEUE", hide = true)]
    event: Option<String>,
    /// The payload: JSON, @FILE, or - for stdin.
    #[arg(long, short, value_name = "JSON", default_value = "{}")]
    payload: String,
    /// 0 to 9; higher is claimed first.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: u8,
    /// Do not start the task before this much time has passed.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "run_at")]
    delay: Option<Duration>,
    /// Do not start the task before this time, such as 2026-01-31T08:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time)]
    run_at: Option<String>,
    /// Attempts before the task becomes a dead letter, 1 to 1000. Default: the queue's or the server's setting.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    max_attempts: Option<u32>,
    /// How long an attempt may run before it fails. Default: the queue's limit, or none.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_run: Option<Duration>,
    /// Enqueueing again with the same key returns the existing task.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// URL to which the server posts the outcome.
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Wait for the result and print it.
    #[arg(long)]
    wait: bool,
    /// How long to wait.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration, requires = "wait")]
    timeout: Duration,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewTask<'a> {
    command: &'a str,
    payload: &'a RawValue,
    priority: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_run_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<&'a str>,
}

pub async fn run(args: &Args, session: &Session) -> Done {
    let queue = args.queue.as_ref().or(args.event.as_ref()).map_or("", String::as_str);
    let payload = input(&args.payload)?;
    let payload: &RawValue = serde_json::from_slice(&payload).map_err(|error| {
        Failure::usage(
            format!("the payload is not JSON: {error}"),
            r#"quote it for the shell: --payload '{"image": 7}', or read a file: --payload @task.json"#,
        )
    })?;
    let task = NewTask {
        command: queue,
        payload,
        priority: args.priority,
        delay_seconds: args.delay.map(seconds),
        run_at: args.run_at.as_deref(),
        max_attempts: args.max_attempts,
        max_run_seconds: args.max_run.map(seconds),
        idempotency_key: args.idempotency_key.as_deref(),
        webhook: args.webhook.as_deref(),
    };
    let task: TaskRecord =
        session.http.post(&["tasks"], &task).await.about(&format!("queue {queue}"))?;
    note_policy(args, &task);
    if !args.wait {
        return session.out.item(&task);
    }
    talk(&format!("task {} enqueued", task.id));
    super::wait(session, &task.id, args.timeout).await
}

/// Says what the queue's policy has made of the options.
fn note_policy(args: &Args, task: &TaskRecord) {
    if args.idempotency_key.is_some() {
        // The task may be an earlier one.
        return;
    }
    let changed = |option: &str, from: i64, to: i64| {
        if from != to {
            talk(&format!("the queue's policy changed {option} {from} to {to}"));
        }
    };
    changed("--priority", args.priority.into(), task.priority.into());
    let attempts = args.max_attempts.map_or(task.max_attempts.into(), i64::from);
    changed("--max-attempts", attempts, task.max_attempts.into());
}
