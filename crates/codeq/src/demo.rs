//! `codeq demo`: tasks and workers to look at, on any server.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use codeq_client::{Outcome, Task, TaskRecord, Worker};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{About, Connection, Done, Failure, Session, duration, run as connected, talk};

/// The queues of the demo, and how long their tasks take.
const QUEUES: [(&str, u64); 3] = [("demo-resize", 40), ("demo-mail", 10), ("demo-report", 150)];
/// One task in this many fails all its attempts and becomes a dead letter.
const POISON: u64 = 25;

#[derive(clap::Args)]
#[command(after_help = "\
Enqueues tasks in the queues demo-resize, demo-mail and demo-report, works on them, and lets one in 25 end as a
dead letter. Watch it with `codeq top`, `codeq queue list`, `codeq task watch` and `codeq dlq groups demo-resize`.
Needs a server such as `codeq dev`, and a token that may produce and work.

Examples:
  codeq demo
  codeq demo --rate 100 --for 1m")]
pub struct Args {
    /// Tasks per second.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    rate: u64,
    /// How long to enqueue. Default: until Ctrl-C.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    length: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
}

pub fn run(args: Args, top: &Connection) -> ExitCode {
    let Args { rate, length, connection } = args;
    connected(&connection.over(top), async |session| play(session, rate, length).await)
}

async fn play(session: Session, rate: u64, length: Option<Duration>) -> Done {
    let mut builder = Worker::builder(session.options.clone()).concurrency(20);
    for (queue, millis) in QUEUES {
        builder = builder.handle(queue, move |task: Task<Value>| async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            let number = task.payload.get("number").and_then(Value::as_u64).unwrap_or_default();
            match number % POISON {
                0 => Ok(Outcome::nack_after(Duration::ZERO, format!("image {number} is broken"))),
                _ => Outcome::complete(&json!({ "number": number, "millis": millis })),
            }
        });
    }
    let worker = builder.build()?;
    let handle = worker.handle();
    let failed = |error: std::io::Error| Failure::error(error.to_string(), "try again");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let until = length.and_then(|length| Instant::now().checked_add(length));
    talk(&format!("{rate} tasks per second at {}; watch them with `codeq top`", session.url));
    let producing = async {
        tokio::select! {
            done = produce(&session, rate, until) => done,
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    };
    let working = worker.run();
    tokio::pin!(working);
    let produced = tokio::select! {
        done = producing => done,
        // The worker stops by itself only if the server refuses it.
        ended = &mut working => return Ok(ended?),
    };
    handle.shutdown();
    working.await?;
    let stats = handle.stats();
    talk(&format!("{} completed, {} attempts failed", stats.completed, stats.nacked));
    produced
}

async fn produce(session: &Session, rate: u64, until: Option<Instant>) -> Done {
    let mut ticks =
        tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate).unwrap_or(1));
    for number in 1_u64.. {
        ticks.tick().await;
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let at = usize::try_from(number).unwrap_or_default() % QUEUES.len();
        let Some((queue, _)) = QUEUES.get(at) else { continue };
        let task = json!({
            "command": queue, "payload": { "number": number }, "priority": number % 10, "maxAttempts": 2,
        });
        let _: TaskRecord =
            session.http.post(&["tasks"], &task).await.about(&format!("queue {queue}"))?;
    }
    Ok(())
}
