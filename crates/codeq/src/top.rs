//! `codeq top`: a live view of the queues.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use codeq_client::Queue;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{
    About, Connection, Done, Failure, Session, cell, duration, printable, run as connected, span,
};
use crate::http;
use crate::queue::oldest;

/// Switches to a second screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

#[derive(clap::Args)]
#[command(after_help = "\
Shows rates, depths, the oldest waiting task, open worker streams, waiting claims and the latency of commits. The
last three come from the server's metrics, which by default only answer this machine. Ctrl-C ends it.

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

/// Sums over all labels, from the metrics.
#[derive(Default, Clone, Copy, PartialEq)]
struct Server {
    worker_streams: f64,
    claims_waiting: f64,
    sync_seconds: f64,
    syncs: f64,
}

pub fn run(args: Args, top: &Connection) -> ExitCode {
    let Args { interval, once, connection } = args;
    connected(&connection.over(top), async |session| {
        if once {
            let (text, _) = view(&session, None, None).await?;
            print!("{text}");
            return Ok(());
        }
        if !std::io::stdout().is_terminal() {
            let hint = "use --once, or `codeq queue list -o json`";
            return Err(Failure::usage("stdout is not a terminal", hint));
        }
        watch(&session, interval.max(Duration::from_millis(100))).await
    })
}

async fn watch(session: &Session, interval: Duration) -> Done {
    let failed = |error: std::io::Error| Failure::error(error.to_string(), "try again");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    print!("{ENTER}");
    let mut before = None;
    let done = loop {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        match view(session, before, size).await {
            Ok((text, server)) => {
                before = server;
                // Home, and clear what the last view leaves.
                print!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\r\n"));
            }
            // A server that restarts comes back.
            Err(failure) if failure.exit == crate::cli::Exit::Error => {
                print!("\x1b[H{}\x1b[K\r\n\x1b[J", printable(failure.what()));
            }
            Err(failure) => break Err(failure),
        }
        let _ = std::io::stdout().flush();
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = resized.recv() => {}
            _ = interrupt.recv() => break Ok(()),
            _ = terminate.recv() => break Ok(()),
        }
    };
    print!("{LEAVE}");
    let _ = std::io::stdout().flush();
    done
}

/// One view, for a terminal of this size, and the numbers to compare the next one with.
async fn view(
    session: &Session,
    before: Option<Server>,
    size: Option<(usize, usize)>,
) -> Done<(String, Option<Server>)> {
    let mut queues = session.http.queues().await.about("the list of queues")?;
    // Metrics may be on another port, or closed to this machine.
    let server = match http::get(session, "metrics").await {
        Ok((200, text)) => Some(Server::parse(&text)),
        _ => None,
    };
    queues.sort_by(|a, b| {
        let waiting = |queue: &Queue| queue.stats.ready + queue.stats.in_progress;
        waiting(b).cmp(&waiting(a)).then_with(|| a.stats.command.cmp(&b.stats.command))
    });
    let (width, height) = size.unwrap_or((100, usize::MAX));
    let text = render(&session.url, &queues, (server, before), (width, height.saturating_sub(1)));
    let cut = |line: &str| line.chars().take(width).collect::<String>();
    Ok((text.lines().map(|line| cut(line.trim_end()) + "\n").collect(), server))
}

fn render(
    url: &str,
    queues: &[Queue],
    (server, before): (Option<Server>, Option<Server>),
    (width, height): (usize, usize),
) -> String {
    let sum = |of: fn(&Queue) -> f64| queues.iter().map(of).sum::<f64>();
    let count = |of: fn(&Queue) -> u64| queues.iter().map(of).sum::<u64>();
    let longest =
        queues.iter().max_by(|a, b| a.oldest_ready_seconds.total_cmp(&b.oldest_ready_seconds));
    let age = longest.map(oldest).filter(|age| !age.is_empty()).unwrap_or("-".to_owned());
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "codeq top - {url} - {} queue(s)", queues.len());
    let _ = writeln!(
        text,
        "tasks    {} ready, {} delayed, {} running, {} dead; oldest {age}",
        count(|queue| queue.stats.ready),
        count(|queue| queue.stats.delayed),
        count(|queue| queue.stats.in_progress),
        count(|queue| queue.stats.dlq),
    );
    let _ = writeln!(
        text,
        "rates    {:.1}/s enqueued, {:.1}/s claimed, {:.1}/s finished (last minute)",
        sum(|queue| queue.enqueued_per_second),
        sum(|queue| queue.claimed_per_second),
        sum(|queue| queue.finished_per_second),
    );
    let _ = writeln!(text, "server   {}\n", cell(server.map(|now| now.line(before))));
    // What the numbers leave of the line.
    let name_width = width.saturating_sub(7 * 8).clamp(12, 40);
    let _ = writeln!(
        text,
        "{:<name_width$} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}",
        "QUEUE", "READY", "DELAYED", "RUNNING", "DEAD", "OLDEST", "IN/S", "OUT/S"
    );
    let room = height.saturating_sub(6).max(1);
    for queue in queues.iter().take(room) {
        let stats = &queue.stats;
        let mark = if queue.paused { "(paused) " } else { "" };
        let name = printable(&format!("{mark}{}", stats.command));
        let name: String = name.chars().take(name_width).collect();
        let _ = writeln!(
            text,
            "{name:<name_width$} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7.1} {:>7.1}",
            stats.ready,
            stats.delayed,
            stats.in_progress,
            stats.dlq,
            oldest(queue),
            queue.enqueued_per_second,
            queue.finished_per_second,
        );
    }
    text
}

impl Server {
    fn parse(metrics: &str) -> Server {
        let mut server = Server::default();
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let value: f64 = value.parse().unwrap_or_default();
            match name.split('{').next().unwrap_or_default() {
                "codeq_grpc_streams_open" if name.contains("worker") => {
                    server.worker_streams += value;
                }
                "codeq_claims_waiting" => server.claims_waiting += value,
                "codeq_log_sync_seconds_sum" => server.sync_seconds += value,
                "codeq_log_sync_seconds_count" => server.syncs += value,
                _ => {}
            }
        }
        server
    }

    /// Workers, and the mean latency of commits since the view before, or since the start.
    fn line(self, before: Option<Server>) -> String {
        let since = before.filter(|before| before.syncs < self.syncs).unwrap_or_default();
        let syncs = self.syncs - since.syncs;
        let mean = (self.sync_seconds - since.sync_seconds) / syncs;
        let latency = Duration::try_from_secs_f64(mean).ok().map(|mean| match mean.as_millis() {
            0 => format!("{} µs", mean.as_micros()),
            1..=9 => format!("{:.1} ms", mean.as_secs_f64() * 1_000.0),
            _ => span(mean),
        });
        let latency = latency.unwrap_or("-".to_owned());
        format!(
            "{} worker stream(s), {} claim(s) waiting, commit latency {latency}",
            self.worker_streams, self.claims_waiting
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_are_summed_and_compared() {
        let first = "# HELP codeq_x\ncodeq_grpc_streams_open{service=\"worker\"} 2\n\
                     codeq_grpc_streams_open{service=\"producer\"} 9\ncodeq_claims_waiting 3\n\
                     codeq_log_sync_seconds_sum 1.5\ncodeq_log_sync_seconds_count 100\n";
        let server = Server::parse(first);
        let line = server.line(None);
        assert_eq!(line, "2 worker stream(s), 3 claim(s) waiting, commit latency 15ms");
        let later = Server { sync_seconds: 1.502, syncs: 101.0, ..server };
        assert!(
            later.line(Some(server)).ends_with("commit latency 2.0 ms"),
            "{}",
            later.line(None)
        );
        let quiet = Server::default().line(None);
        assert!(quiet.ends_with("commit latency -"), "{quiet}");
    }
}
