//! A line of progress on stderr, for as long as a person watches. Nothing is printed if stderr is not a terminal.

use std::io::{IsTerminal, Write};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::text::span;

/// The shortest time between two changes of the line: more frequent ones would flicker.
const REDRAW: Duration = Duration::from_millis(100);
/// Work that ends sooner needs no line.
const DELAY: Duration = Duration::from_millis(300);
const BAR_WIDTH: usize = 24;

/// The progress of counted work. The line disappears when this is dropped.
pub struct Progress {
    /// Such as `replayed`, or `bytes copied`.
    what: String,
    started: Instant,
    drawn: Option<Instant>,
    terminal: bool,
}

impl Progress {
    pub fn new(what: impl Into<String>) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { what: what.into(), started: Instant::now(), drawn: None, terminal }
    }

    /// Shows that `done` is done, of `total` if that is known.
    pub fn at(&mut self, done: u64, total: Option<u64>) {
        self.show(|what, elapsed| line(what, done, total, elapsed));
    }

    /// Shows only the elapsed time, because it is not known how much is done.
    pub fn waiting(&mut self) {
        self.show(|what, elapsed| format!("{what}, {}", span(whole(elapsed))));
    }

    fn show(&mut self, text: impl FnOnce(&str, Duration) -> String) {
        let since = self.drawn.map_or(self.started.elapsed() + REDRAW, |drawn| drawn.elapsed());
        let early = self.drawn.is_none() && self.started.elapsed() < DELAY;
        if !self.terminal || early || since < REDRAW {
            return;
        }
        self.drawn = Some(Instant::now());
        let text = text(&self.what, self.started.elapsed());
        let width = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(80, |size| size.ws_col);
        // A line that wraps could not be replaced.
        let text: String = text.chars().take(usize::from(width).saturating_sub(1)).collect();
        draw(&text);
    }

    /// Removes the line, so that something else can be printed.
    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            draw("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Does `work` on this thread, and shows its progress from another one. `measure` says how much is done, and of how much
/// if that is known; while it returns `None`, only the elapsed time is shown.
pub fn watched<T>(
    what: &str,
    measure: impl Fn() -> Option<(u64, Option<u64>)> + Send + 'static,
    work: impl FnOnce() -> T,
) -> T {
    let mut progress = Progress::new(what);
    if !progress.terminal {
        return work();
    }
    let (stop, stopped) = mpsc::channel::<()>();
    let watching: JoinHandle<()> = std::thread::spawn(move || {
        while stopped.recv_timeout(REDRAW) == Err(mpsc::RecvTimeoutError::Timeout) {
            match measure() {
                Some((done, total)) => progress.at(done, total),
                None => progress.waiting(),
            }
        }
    });
    let done = work();
    drop(stop);
    // The thread removes the line before it ends.
    let _ = watching.join();
    done
}

/// Shows how long something has been awaited.
pub async fn waiting<T>(what: &str, outcome: impl Future<Output = T>) -> T {
    let mut progress = Progress::new(what);
    tokio::pin!(outcome);
    loop {
        tokio::select! {
            outcome = &mut outcome => return outcome,
            () = tokio::time::sleep(Duration::from_secs(1)) => progress.waiting(),
        }
    }
}

/// The bytes of the files below a directory, as far as they can be read.
pub fn bytes_below(dir: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// `[=========>              ]  42%  4,200 of 10,000 replayed, 1,400/s, 4s left`
fn line(what: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
    let per_second = format!("{}/s", grouped(rate as u64));
    let Some(total) = total.filter(|total| *total > 0) else {
        return format!("{} {what}, {per_second}, {}", grouped(done), span(whole(elapsed)));
    };
    let share = (done as f64 / total as f64).clamp(0.0, 1.0);
    let filled = (share * BAR_WIDTH as f64) as usize;
    let head = if filled < BAR_WIDTH { ">" } else { "" };
    let bar = format!("{}{head}", "=".repeat(filled));
    let left = total.saturating_sub(done) as f64 / rate;
    let left =
        Duration::try_from_secs_f64(left).map(|left| format!(", {} left", span(whole(left))));
    format!(
        "[{bar:BAR_WIDTH$}] {:3}%  {} of {} {what}, {per_second}{}",
        (share * 100.0) as u64,
        grouped(done),
        grouped(total),
        left.unwrap_or_default()
    )
}

fn whole(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs())
}

/// A number with thousands separators.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn draw(text: &str) {
    // Nobody is reading if stderr is closed.
    let _ = std::io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_much_how_fast_and_how_long() {
        let at = |done, total| line("replayed", done, total, Duration::from_secs(3));
        assert_eq!(
            at(4_200, Some(10_000)),
            "[==========>             ]  42%  4,200 of 10,000 replayed, 1,400/s, 4s left"
        );
        assert_eq!(
            at(10_000, Some(10_000)),
            "[========================] 100%  10,000 of 10,000 replayed, 3,333/s, 0s left"
        );
        assert_eq!(at(1_234_567, None), "1,234,567 replayed, 411,522/s, 3s");
        assert_eq!(at(0, Some(7)), "[>                       ]   0%  0 of 7 replayed, 0/s");
    }
}
