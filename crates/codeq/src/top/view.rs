//! One view of `codeq top`, as text.

use std::cmp::Ordering;

use codeq_client::Queue;

use super::Snapshot;
use super::screen::Key;
use crate::cli::{cell, cut, printable};
use crate::queue::oldest;

/// Width of a column of numbers, with the space before it.
const COLUMN: usize = 8;
/// Names have at least, and at most, this width.
const NAME_MIN: usize = 24;
const NAME_MAX: usize = 48;
/// A narrower bar would show too little, so it is left out.
const BAR_MIN: usize = 12;
const BAR_MAX: usize = 60;
/// Lines above and below the queues.
const HEADER_LINES: usize = 6;
const FOOTER_LINES: usize = 2;

struct Column {
    title: &'static str,
    text: fn(&Queue) -> String,
    value: fn(&Queue) -> f64,
    /// Any value above 0 deserves attention.
    alarming: bool,
}

/// The most important first: a narrow terminal leaves out the last ones.
const COLUMNS: [Column; 11] = [
    column("READY", |it| it.stats.ready.to_string(), |it| it.stats.ready as f64),
    column("DELAYED", |it| it.stats.delayed.to_string(), |it| it.stats.delayed as f64),
    column("RUNNING", |it| it.stats.in_progress.to_string(), |it| it.stats.in_progress as f64),
    Column {
        alarming: true,
        ..column("DEAD", |it| it.stats.dlq.to_string(), |it| it.stats.dlq as f64)
    },
    column("OLDEST", age, |it| if it.stats.ready == 0 { -1.0 } else { it.oldest_ready_seconds }),
    column("IN/S", |it| rate(it.enqueued_per_second), |it| it.enqueued_per_second),
    column("OUT/S", |it| rate(it.finished_per_second), |it| it.finished_per_second),
    column("CLAIM/S", |it| rate(it.claimed_per_second), |it| it.claimed_per_second),
    column("DONE", |it| it.stats.completed.to_string(), |it| it.stats.completed as f64),
    column("FAILED", |it| it.stats.failed.to_string(), |it| it.stats.failed as f64),
    column("SIZE", |it| bytes(it.bytes), |it| it.bytes as f64),
];

const fn column(
    title: &'static str,
    text: fn(&Queue) -> String,
    value: fn(&Queue) -> f64,
) -> Column {
    Column { title, text, value, alarming: false }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Title,
    Alarm,
    Faint,
}

/// A line: pieces of text, each with its emphasis.
#[derive(Default)]
struct Line(Vec<(String, Style)>);

/// What the viewer has chosen.
#[derive(Default)]
pub struct View {
    /// The column to sort by, from 1; 0 sorts by ready plus running tasks.
    sort: usize,
    reverse: bool,
    /// Number of queues above the first one that is shown.
    scroll: usize,
}

impl View {
    pub fn press(&mut self, key: Key, height: usize) {
        let page = height.saturating_sub(HEADER_LINES + FOOTER_LINES).max(1);
        match key {
            Key::Left => self.sort = self.sort.checked_sub(1).unwrap_or(COLUMNS.len()),
            Key::Right => self.sort = (self.sort + 1) % (COLUMNS.len() + 1),
            Key::Reverse => self.reverse = !self.reverse,
            Key::Up => self.scroll = self.scroll.saturating_sub(1),
            Key::Down => self.scroll = self.scroll.saturating_add(1),
            Key::PageUp => self.scroll = self.scroll.saturating_sub(page),
            Key::PageDown => self.scroll = self.scroll.saturating_add(page),
            Key::Quit => {}
        }
    }

    /// The view on a terminal of this width and height.
    pub fn text(
        &mut self,
        snapshot: &Snapshot,
        (width, height): (usize, usize),
        emphasis: bool,
    ) -> String {
        let live = height != usize::MAX;
        let mut queues: Vec<&Queue> = snapshot.queues.iter().collect();
        queues.sort_by(|a, b| self.order(a, b));
        let footer = if live { FOOTER_LINES } else { 0 };
        let room = height.saturating_sub(HEADER_LINES + footer).max(1);
        self.scroll = self.scroll.min(queues.len().saturating_sub(room));
        let shown = queues.iter().skip(self.scroll).take(room);
        let below = queues.len().saturating_sub(self.scroll + room);

        let mut lines = summary(snapshot);
        let layout = Layout::new(&queues, width);
        lines.push(layout.titles(self.sort, self.reverse));
        lines.extend(shown.map(|queue| layout.queue(queue)));
        if queues.is_empty() {
            lines.push(Line::faint("no queues yet: a queue appears with its first task"));
        }
        if live {
            // The footer is at the bottom, however few queues there are.
            lines.resize_with(height.saturating_sub(FOOTER_LINES), Line::default);
            let more = match (self.scroll, below) {
                (0, 0) => String::new(),
                (above, 0) => format!("{above} more above"),
                (0, below) => format!("{below} more below"),
                (above, below) => format!("{above} more above, {below} more below"),
            };
            lines.push(Line::plain(&more));
            lines.push(Line::faint("q quit   ←→ sort   r reverse   ↑↓ scroll"));
        }
        lines.iter().map(|line| line.paint(width, emphasis) + "\n").collect()
    }

    fn order(&self, a: &Queue, b: &Queue) -> Ordering {
        let busy: fn(&Queue) -> f64 = |it| (it.stats.ready + it.stats.in_progress) as f64;
        let chosen = self.sort.checked_sub(1).and_then(|at| COLUMNS.get(at));
        let value = chosen.map_or(busy, |column| column.value);
        let order = value(b).total_cmp(&value(a));
        let order = if self.reverse { order.reverse() } else { order };
        order.then_with(|| a.stats.command.cmp(&b.stats.command))
    }
}

/// The lines above the queues.
fn summary(snapshot: &Snapshot) -> Vec<Line> {
    let Snapshot { url, queues, workers, metrics, before } = snapshot;
    // `sum` of nothing is -0.0.
    let sum = |of: fn(&Queue) -> f64| queues.iter().map(of).fold(0.0, |sum, it| sum + it);
    let count = |of: fn(&Queue) -> u64| queues.iter().map(of).sum::<u64>();
    let longest =
        queues.iter().max_by(|a, b| a.oldest_ready_seconds.total_cmp(&b.oldest_ready_seconds));
    let age = longest.map_or("-".to_owned(), age);
    let dead = count(|queue| queue.stats.dlq);
    let mut tasks = Line::plain(&format!(
        "tasks    {} ready, {} delayed, {} running, ",
        count(|queue| queue.stats.ready),
        count(|queue| queue.stats.delayed),
        count(|queue| queue.stats.in_progress),
    ));
    let alarm = if dead > 0 { Style::Alarm } else { Style::Plain };
    tasks.0.push((format!("{dead} dead"), alarm));
    tasks.0.push((format!("; oldest {age}"), Style::Plain));
    let rates = format!(
        "rates    {}/s enqueued, {}/s claimed, {}/s finished (last minute)",
        rate(sum(|queue| queue.enqueued_per_second)),
        rate(sum(|queue| queue.claimed_per_second)),
        rate(sum(|queue| queue.finished_per_second)),
    );
    let metrics = metrics.map(|now| format!(", {}", now.line(*before)));
    vec![
        Line::plain(&format!("codeq top - {} - {} queue(s)", printable(url), queues.len())),
        tasks,
        Line::plain(&rates),
        Line::plain(&format!("server   workers (1h) {workers}{}", cell(metrics))),
        Line::default(),
    ]
}

/// Which columns fit.
struct Layout {
    name: usize,
    columns: &'static [Column],
    /// Width of the bar that compares the queues, and what a full one means.
    bar: usize,
    most: u64,
}

impl Layout {
    fn new(queues: &[&Queue], width: usize) -> Layout {
        let longest = queues.iter().map(|queue| title(queue).chars().count()).max();
        let wanted = longest.unwrap_or_default().clamp(NAME_MIN, NAME_MAX);
        let fitting = width.saturating_sub(NAME_MIN) / COLUMN;
        let columns = COLUMNS.get(..fitting.min(COLUMNS.len())).unwrap_or_default();
        let left = width.saturating_sub(columns.len() * COLUMN);
        let name = wanted.min(left);
        let bar = left.saturating_sub(name + 2).min(BAR_MAX);
        let whole = columns.len() == COLUMNS.len() && bar >= BAR_MIN;
        let most = queues.iter().map(|queue| waiting(queue)).max().unwrap_or_default();
        Layout { name, columns, bar: if whole { bar } else { 0 }, most }
    }

    fn titles(&self, sort: usize, reverse: bool) -> Line {
        let mut text = format!("{:<1$}", "QUEUE", self.name);
        for (at, column) in self.columns.iter().enumerate() {
            let mark = match (at + 1 == sort, reverse) {
                (false, _) => "",
                (true, false) => "▾",
                (true, true) => "▴",
            };
            text += &format!("{:>COLUMN$}", format!("{mark}{}", column.title));
        }
        if self.bar > 0 {
            text += &format!("  {:<1$}", "WAITING", self.bar);
        }
        Line(vec![(text, Style::Title)])
    }

    fn queue(&self, queue: &Queue) -> Line {
        let name = cut(&title(queue), self.name);
        let mut line = Line(vec![(format!("{name:<0$}", self.name), Style::Plain)]);
        for column in self.columns {
            let alarm = column.alarming && (column.value)(queue) > 0.0;
            let style = if alarm { Style::Alarm } else { Style::Plain };
            line.0.push((format!("{:>COLUMN$}", (column.text)(queue)), style));
        }
        if self.bar > 0 && self.most > 0 {
            let share = waiting(queue) as f64 / self.most as f64;
            let length = (share * self.bar as f64).ceil() as usize;
            line.0.push((format!("  {}", "▇".repeat(length.min(self.bar))), Style::Plain));
        }
        line
    }
}

fn waiting(queue: &Queue) -> u64 {
    queue.stats.ready + queue.stats.delayed
}

fn title(queue: &Queue) -> String {
    let mark = if queue.paused { "(paused) " } else { "" };
    format!("{mark}{}", printable(&queue.stats.command))
}

/// Age of the oldest claimable task.
fn age(queue: &Queue) -> String {
    Some(oldest(queue)).filter(|age| !age.is_empty()).unwrap_or("-".to_owned())
}

fn rate(per_second: f64) -> String {
    format!("{per_second:.1}")
}

fn bytes(bytes: u64) -> String {
    let kib = bytes as f64 / 1024.0;
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{kib:.1} K"),
        1_048_576..1_073_741_824 => format!("{:.1} M", kib / 1024.0),
        _ => format!("{:.1} G", kib / 1_048_576.0),
    }
}

impl Line {
    fn plain(text: &str) -> Line {
        Line(vec![(text.to_owned(), Style::Plain)])
    }

    fn faint(text: &str) -> Line {
        Line(vec![(text.to_owned(), Style::Faint)])
    }

    /// Cut at the width. Only emphasis that is readable on light and on dark backgrounds.
    fn paint(&self, width: usize, emphasis: bool) -> String {
        let (mut text, mut left) = (String::new(), width);
        for (piece, style) in &self.0 {
            let piece: String = piece.chars().take(left).collect();
            left -= piece.chars().count();
            match style {
                _ if !emphasis => text += &piece,
                Style::Plain => text += &piece,
                Style::Title => {
                    text += &format!("\x1b[7m{piece:<0$}\x1b[0m", piece.chars().count() + left)
                }
                Style::Alarm => text += &format!("\x1b[1;31m{piece}\x1b[0m"),
                Style::Faint => text += &format!("\x1b[2m{piece}\x1b[0m"),
            }
        }
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(names: &[(&str, u64)]) -> Snapshot {
        let queue = |(name, ready): &(&str, u64)| -> Queue {
            let json = serde_json::json!({
                "command": name, "tenantId": "t", "ready": ready, "delayed": 0, "inProgress": 0, "dlq": 1,
                "completed": 7, "failed": 0, "bytes": 2048, "paused": false, "oldestReadySeconds": 61.0,
                "enqueuedPerSecond": 1.5, "claimedPerSecond": 2.5, "finishedPerSecond": 0.5,
            });
            serde_json::from_value(json).unwrap()
        };
        let queues = names.iter().map(queue).collect();
        Snapshot { url: "u".to_owned(), queues, workers: 3, metrics: None, before: None }
    }

    #[test]
    fn a_wide_terminal_shows_more_and_a_low_one_says_how_much_is_missing() {
        let names: Vec<String> = (0..30).map(|n| format!("queue-{n:02}")).collect();
        let queues: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(0..).collect();
        let snapshot = snapshot(&queues);
        let mut view = View::default();
        let narrow = view.text(&snapshot, (80, 24), false);
        assert_eq!(narrow.lines().count(), 24);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains("14 more below") && narrow.contains("q quit"), "{narrow}");
        assert!(narrow.contains("   OUT/S\n") && !narrow.contains("FAILED"), "{narrow}");
        // The busiest first.
        assert!(narrow.lines().nth(6).unwrap().starts_with("queue-29"), "{narrow}");
        let wide = view.text(&snapshot, (200, 50), false);
        let full = wide.lines().nth(6).unwrap();
        let expected = "queue-29                      29       0       0       1   1m01s     1.5     0.5     2.5       7       0   2.0 K  ▇";
        assert!(full.starts_with(expected) && full.chars().count() > 150, "{full}");
        assert!(!wide.contains("more below"), "{wide}");

        view.press(Key::PageDown, 24);
        let below = view.text(&snapshot, (80, 24), false);
        assert!(below.contains("14 more above\n"), "{below}");
        // Sorted by the last column, in which all are equal: names decide. Then one line up.
        view.press(Key::Left, 24);
        view.press(Key::Up, 24);
        let sorted = view.text(&snapshot, (200, 24), true);
        assert!(sorted.contains("▾SIZE"), "{sorted}");
        assert!(sorted.contains("13 more above, 1 more below"), "{sorted}");
        assert!(sorted.contains("\x1b[1;31m       1\x1b[0m"), "{sorted}");
    }

    #[test]
    fn a_name_cannot_control_the_terminal() {
        let text = View::default().text(&snapshot(&[("a\x1b[2Jb", 1)]), (80, 24), false);
        assert!(text.contains(r"a\u001b[2Jb") && !text.contains('\x1b'), "{text}");
        assert!(View::default().text(&snapshot(&[]), (80, 24), false).contains("no queues yet"));
    }
}
