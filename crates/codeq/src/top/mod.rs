//! `codeq top`: a live view of the queues.

mod metrics;
mod screen;
mod view;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use codeq_client::Queue;
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::cli::{
    About, Connection, Done, Exit, Failure, Session, duration, printable, run as connected,
};
use crate::http;

use metrics::Metrics;
use screen::{Key, Screen};
use view::View;

#[derive(clap::Args)]
#[command(after_help = "\
Shows rates, depths, the oldest waiting task, workers, waiting claims and the latency of commits. Rates are those of
the last minute. Workers (1h) are those seen within the last hour. Waiting claims and the latency come from the
server's metrics, which by default only the server's machine can read. A wider terminal shows more columns.

Keys: q quits, left and right choose the column to sort by, r reverses, up and down scroll.

Examples:
  codeq top
  codeq top --interval 5s
  codeq top --once")]
pub struct Args {
    /// Time between two views.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    interval: Duration,
    /// Print one view and exit.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    connection: Connection,
}

/// What the server says at one moment.
pub struct Snapshot {
    url: String,
    queues: Vec<Queue>,
    /// Workers that have a stream, hold a task, or asked for tasks within the last hour.
    workers: u64,
    /// None if this machine may not read the metrics.
    metrics: Option<Metrics>,
    /// The metrics of the previous snapshot.
    before: Option<Metrics>,
}

#[derive(Deserialize)]
struct Workers {
    total: u64,
}

pub fn run(args: Args, top: &Connection) -> ExitCode {
    let Args { interval, once, connection } = args;
    connected(&connection.over(top), async |session| {
        if once {
            let snapshot = Snapshot::take(&session, None).await?;
            print!("{}", View::default().text(&snapshot, (screen::width(), usize::MAX), false));
            return Ok(());
        }
        if !std::io::stdout().is_terminal() {
            let hint = "use --once, or `codeq queue list -o json`";
            return Err(Failure::usage("stdout is not a terminal", hint));
        }
        watch(&session, interval.max(Duration::from_millis(100))).await
    })
}

impl Snapshot {
    async fn take(session: &Session, before: Option<Metrics>) -> Done<Snapshot> {
        let queues = session.http.queues().await.about("the list of queues")?;
        let path = ["admin", "workers"];
        let workers: Workers =
            session.http.get(&path, &[("limit", Some("1"))]).await.about("workers")?;
        // Metrics may be on another port, or closed to this machine.
        let metrics = match http::get(session, "metrics").await {
            Ok((200, text)) => Some(Metrics::parse(&text)),
            _ => None,
        };
        let url = session.url.clone();
        Ok(Snapshot { url, queues, workers: workers.total, metrics, before })
    }
}

/// Whether a later snapshot may succeed: a server that restarts comes back, and a slow one becomes faster.
fn is_temporary(failure: &Failure) -> bool {
    matches!(failure.exit, Exit::Error | Exit::Timeout)
}

/// Shows snapshots until `q` or a signal. Keys work while the server is slow to answer.
async fn watch(session: &Session, interval: Duration) -> Done {
    let failed = |error: std::io::Error| Failure::error(error.to_string(), "try again");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let (sender, mut snapshots) = mpsc::channel(1);
    let taking = async {
        let mut before = None;
        loop {
            let taken = Snapshot::take(session, before).await;
            before = taken.as_ref().ok().and_then(|taken| taken.metrics).or(before);
            if sender.send(taken).await.is_err() {
                return;
            }
            tokio::time::sleep(interval).await;
        }
    };
    tokio::pin!(taking);
    let screen = Screen::open();
    let mut keys = screen.keys();
    let mut view = View::default();
    let mut last: Option<Snapshot> = None;
    loop {
        let problem = tokio::select! {
            () = &mut taking => None,
            Some(taken) = snapshots.recv() => match taken {
                Ok(taken) => {
                    last = Some(taken);
                    None
                }
                Err(failure) if is_temporary(&failure) => Some(failure),
                Err(failure) => return Err(failure),
            },
            Some(key) = keys.recv() => match key {
                Key::Quit => return Ok(()),
                key => {
                    view.press(key, screen::height());
                    None
                }
            },
            _ = resized.recv() => None,
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        };
        let size = (screen::width(), screen::height());
        let text = match (problem, &last) {
            (Some(failure), _) => printable(failure.what()) + "\n\nq quits\n",
            (None, Some(snapshot)) => view.text(snapshot, size, screen.emphasis),
            (None, None) => continue,
        };
        // Moves the cursor home and clears what the last view left. Each line is cleared before it is written: after a line
        // as wide as the terminal, the cursor is still on its last character, and clearing would remove that.
        let text = text.trim_end_matches('\n').replace('\n', "\r\n\x1b[K");
        print!("\x1b[H\x1b[K{text}\x1b[J");
        let _ = std::io::stdout().flush();
    }
}

#[cfg(test)]
mod tests {
    use codeq_client::Error;

    use super::*;

    #[test]
    fn a_server_that_does_not_answer_is_tried_again() {
        for error in [Error::Timeout, Error::Closed] {
            assert!(is_temporary(&error.into()));
        }
        let refused = Error::Refused { code: "unauthenticated".to_owned(), message: String::new() };
        assert!(!is_temporary(&refused.into()));
    }
}
