//! Printing: tables for people, JSON and YAML for programs, names for pipes.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use serde::Serialize;

use super::escape::{compact_json, printable, printable_lines};
use super::failure::{Done, Failure};
use super::yaml::to_yaml;

/// Space between columns.
const GAP: usize = 2;
/// No column is wider in a pipe, where longer cells push the rest of their line to the right.
const COLUMN_MAX: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Json,
    // One document per line.
    Jsonl,
    Yaml,
    // Ids or names only, one per line.
    Name,
}

/// Something to print.
pub trait Show: Serialize {
    /// Column titles. What is never in a list has `details` instead.
    const COLUMNS: &'static [&'static str] = &[];
    /// How wide the columns are when rows come one by one, since later rows may be longer than the first.
    const STREAMED: &'static [usize] = &[];
    /// One value per column.
    fn cells(&self) -> Vec<String> {
        Vec::new()
    }
    /// What `-o name` prints.
    fn name(&self) -> String;
    /// The same, for an item that has several names.
    fn names(&self) -> Vec<String> {
        vec![self.name()]
    }
    /// Everything worth knowing about one item, line by line. Empty values are left out.
    fn details(&self) -> Vec<(&'static str, String)> {
        Self::COLUMNS.iter().copied().zip(self.cells()).collect()
    }
}

/// Prints to stdout.
#[derive(Clone, Copy)]
pub struct Output {
    format: Format,
    /// Width and emphasis of the terminal, if stdout is one.
    width: Option<usize>,
    bold: bool,
}

/// A list being printed, page by page.
pub struct List {
    out: Output,
    /// Rows come one by one.
    streamed: bool,
    widths: Vec<usize>,
    printed: u64,
}

impl Output {
    pub fn new(format: Option<Format>) -> Output {
        let terminal = io::stdout().is_terminal();
        let default = if terminal { Format::Table } else { Format::Json };
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let size = terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
        let width = size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
        Output { format: format.unwrap_or(default), width, bold: terminal && !plain }
    }

    /// Prints one item.
    pub fn item<T: Show>(&self, item: &T) -> Done {
        let text = match self.format {
            Format::Table => details(&item.details()),
            Format::Json => pretty(item)? + "\n",
            Format::Jsonl => compact(item)? + "\n",
            Format::Yaml => yaml(item)?,
            Format::Name => names(item),
        };
        emit(&text)
    }

    /// Begins a list.
    pub fn list(&self) -> List {
        List { out: *self, streamed: false, widths: Vec::new(), printed: 0 }
    }

    /// Begins a list whose items come one by one, without an end: JSON has one document per line.
    pub fn streamed(&self) -> List {
        let format = match self.format {
            Format::Json => Format::Jsonl,
            other => other,
        };
        List { streamed: true, ..Output { format, ..*self }.list() }
    }

    /// Prints a whole list.
    pub fn items<T: Show>(&self, items: &[T]) -> Done {
        let mut list = self.list();
        list.page(items)?;
        list.end()
    }
}

impl List {
    /// Prints some items. The first page decides how wide the columns of a table are, unless they are fixed.
    pub fn page<T: Show>(&mut self, items: &[T]) -> Done {
        if items.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        if self.out.format == Format::Table {
            let rows: Vec<Vec<String>> = items.iter().map(|item| clean(item.cells())).collect();
            if self.printed == 0 {
                let wanted = match self.streamed {
                    true => T::STREAMED.to_vec(),
                    false => longest(T::COLUMNS, &rows),
                };
                self.widths = fitted(T::COLUMNS, wanted, self.out.width);
                let titles: Vec<_> = T::COLUMNS.iter().map(|title| (*title).to_owned()).collect();
                let header = row(&titles, &self.widths, self.out.width);
                let bold = self.out.bold;
                text += &if bold { format!("\x1b[1m{header}\x1b[0m\n") } else { header + "\n" };
            }
            for cells in &rows {
                text += &row(cells, &self.widths, self.out.width);
                text.push('\n');
            }
        } else {
            for (at, item) in items.iter().enumerate() {
                text += &match self.out.format {
                    Format::Name => names(item),
                    Format::Jsonl => compact(item)? + "\n",
                    Format::Yaml => yaml(&[item])?,
                    Format::Json | Format::Table => {
                        let begin = if self.printed == 0 && at == 0 { "[\n" } else { ",\n" };
                        let lines = pretty(item)?;
                        begin.to_owned() + "  " + &lines.replace('\n', "\n  ")
                    }
                };
            }
        }
        self.printed += items.len() as u64;
        emit(&text)
    }

    pub fn printed(&self) -> u64 {
        self.printed
    }

    /// Ends the list.
    pub fn end(&self) -> Done {
        match (self.out.format, self.printed) {
            (Format::Json, 0) => emit("[]\n"),
            (Format::Yaml, 0) => emit("[]\n"),
            (Format::Json, _) => emit("\n]\n"),
            _ => Ok(()),
        }
    }
}

/// A value for a cell; empty if there is none.
pub fn cell(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Prints to stdout. A reader that has seen enough (`codeq task list --all | head`) ends the command.
fn emit(text: &str) -> Done {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            Err(Failure::error(format!("cannot write to stdout: {error}"), "check where it goes"))
        }
    }
}

fn pretty(item: &impl Serialize) -> Done<String> {
    // Adds escapes that JSON does not need, but a terminal does. The JSON means the same.
    // A result is written as the worker sent it, so it may contain tabs and carriage returns between its tokens.
    let text = serde_json::to_string_pretty(item).map_err(unprintable)?.replace(['\t', '\r'], " ");
    Ok(printable_lines(&text))
}

fn compact(item: &impl Serialize) -> Done<String> {
    serde_json::to_string(item).map_err(unprintable).map(|text| printable(&compact_json(&text)))
}

fn names(item: &impl Show) -> String {
    item.names().iter().map(|name| printable(name) + "\n").collect()
}

fn yaml(item: &impl Serialize) -> Done<String> {
    to_yaml(item).map_err(unprintable).map(|text| printable_lines(&text))
}

fn unprintable(error: serde_json::Error) -> Failure {
    Failure::error(format!("cannot print: {error}"), "try another format: -o table")
}

/// An empty cell is a dash, so that columns can be counted.
fn clean(cells: Vec<String>) -> Vec<String> {
    let clean = |text: String| match text.is_empty() {
        true => "-".to_owned(),
        false => printable(&text),
    };
    cells.into_iter().map(clean).collect()
}

/// The text, with an ellipsis where it is cut.
pub fn cut(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// The lengths of the longest cells of the columns.
fn longest(titles: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let longest = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.max().unwrap_or_default()
    };
    (0..titles.len()).map(longest).collect()
}

/// The widths of the columns: those wanted. If that is too much for the terminal, the widest columns are narrowed, so that
/// a long name does not push the others out, but not so far that names look the same. Ids, times and states stay whole:
/// half of one is of no use. A table of queues leaves more room for their names than for the numbers at its end.
fn fitted(titles: &[&str], wanted: Vec<usize>, terminal: Option<usize>) -> Vec<usize> {
    const NARROW: usize = 12;
    const WHOLE: [&str; 5] = ["ID", "TASK", "AT", "EVENT", "STATE"];
    const QUEUE: usize = 30;
    let widest = terminal.unwrap_or(COLUMN_MAX);
    let mut widths: Vec<usize> = titles
        .iter()
        .zip(wanted)
        .map(|(title, wanted)| title.len().max(wanted.min(widest)))
        .collect();
    let terminal = terminal.unwrap_or(usize::MAX);
    let room = terminal.saturating_sub(GAP * titles.len().saturating_sub(1));
    let narrowest = |at: usize, title: &str| match at == 0 && title == "QUEUE" {
        true => QUEUE.min(terminal / 2).max(NARROW),
        false => NARROW,
    };
    while widths.iter().sum::<usize>() > room
        && let Some((_, (widest, _))) = widths
            .iter_mut()
            .zip(titles)
            .enumerate()
            .filter(|(at, (width, title))| {
                **width > narrowest(*at, title) && !WHOLE.contains(title)
            })
            .max_by_key(|(_, (width, _))| **width)
    {
        *widest -= 1;
    }
    widths
}

/// A line of a table. On a terminal, cells are cut at their column's width, and the last one at the edge. In a pipe,
/// nothing is cut.
fn row(cells: &[String], widths: &[usize], terminal: Option<usize>) -> String {
    let mut line = String::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let last = at + 1 == cells.len();
        let cell = if last || terminal.is_none() { cell.clone() } else { cut(cell, *width) };
        let pad = if last { 0 } else { width.saturating_sub(cell.chars().count()) + GAP };
        line += &cell;
        line.extend(std::iter::repeat_n(' ', pad));
    }
    match terminal {
        Some(terminal) => cut(line.trim_end(), terminal),
        None => line.trim_end().to_owned(),
    }
}

fn details(lines: &[(&'static str, String)]) -> String {
    let shown: Vec<_> = lines.iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = shown.iter().map(|(title, _)| title.len()).max().unwrap_or_default();
    let line = |(title, value): &&(&str, String)| format!("{title:width$}  {}\n", printable(value));
    shown.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(titles: &[&str], rows: &[Vec<String>], terminal: Option<usize>) -> Vec<usize> {
        fitted(titles, longest(titles, rows), terminal)
    }

    #[test]
    fn a_table_is_aligned_and_cut_at_the_terminal() {
        let rows = vec![
            clean(vec!["a".to_owned(), String::new(), "x\x1b[2J\ny".to_owned()]),
            clean(vec!["größer".to_owned(), "2".to_owned(), "z".repeat(200)]),
        ];
        let wide = widths(&["ID", "N", "ERROR"], &rows, None);
        assert_eq!(wide, [6, 1, 120]);
        assert_eq!(row(&rows[0], &wide, None), r"a       -  x\u001b[2J\ny");
        let line = row(&rows[1], &wide, Some(20));
        assert_eq!((line.chars().count(), line.ends_with("z…")), (20, true));
        // A long name leaves room for the numbers behind it.
        let rows = vec![clean(vec!["n".repeat(90), "17".to_owned(), "3".to_owned()])];
        let narrow = widths(&["QUEUE", "READY", "DEAD"], &rows, Some(40));
        let line = row(&rows[0], &narrow, Some(40));
        assert!(line.contains("n…  17     3") && line.chars().count() <= 40, "{line}");
        let rows = vec![clean(vec!["i".repeat(36), "n".repeat(30), "e".repeat(30)])];
        assert_eq!(widths(&["ID", "QUEUE", "ERROR"], &rows, Some(70)), [36, 15, 15]);
        // The names of queues take precedence over numbers that do not fit.
        let rows = vec![clean([vec!["q".repeat(40)], vec!["12345678".to_owned(); 9]].concat())];
        let titles = ["QUEUE", "A", "B", "C", "D", "E", "F", "G", "H", "I"];
        assert_eq!(widths(&titles, &rows, Some(80))[..2], [30, 8]);
        let rows = vec![clean(vec!["i".repeat(36), "n".repeat(30), "e".repeat(30)])];
        // Names stay distinguishable; the last column is cut.
        assert_eq!(widths(&["ID", "QUEUE", "ERROR"], &rows, Some(60)), [36, 12, 12]);
    }

    #[test]
    fn the_last_column_takes_the_room_there_is() {
        let error = "e".repeat(300);
        let rows = vec![clean(vec!["i".repeat(36), error.clone()])];
        let line = |terminal| row(&rows[0], &widths(&["ID", "ERROR"], &rows, terminal), terminal);
        assert!(line(None).ends_with(&format!("i  {error}")));
        assert_eq!(line(Some(200)), format!("{}  {}…", "i".repeat(36), "e".repeat(161)));
        // In a pipe, no other column is cut either.
        let rows = vec![clean(vec![error.clone(), "w".to_owned()])];
        assert_eq!(
            row(&rows[0], &widths(&["ERROR", "WORKER"], &rows, None), None),
            format!("{error}  w")
        );
    }

    #[test]
    fn the_columns_of_a_stream_do_not_depend_on_its_first_rows() {
        let (titles, streamed) = (["AT", "EVENT", "STATE", "WHO", "WHY"], vec![24, 16, 9, 40, 40]);
        let fitted = |terminal| fitted(&titles, streamed.clone(), terminal);
        assert_eq!(fitted(Some(200)), [24, 16, 9, 40, 40]);
        // Events and states stay whole, and the reason is not pushed out.
        assert_eq!(fitted(Some(120)), [24, 16, 9, 32, 31]);
        assert_eq!(fitted(Some(80)), [24, 16, 9, 12, 12]);
        let step = ["a".repeat(24), "cancel_requested".to_owned(), "CANCELLED".to_owned()];
        let cells = [step.as_slice(), &["w".repeat(50), "y".repeat(90)]].concat();
        let line = row(&cells, &fitted(Some(200)), Some(200));
        assert!(line.contains("  cancel_requested  CANCELLED  ww"), "{line}");
        assert!(line.ends_with(&format!("w…  {}", "y".repeat(90))), "{line}");
    }

    #[test]
    fn details_leave_out_what_is_empty() {
        let lines = [("Id", "1".to_owned()), ("Error", String::new()), ("Status", "x".to_owned())];
        assert_eq!(details(&lines), "Id      1\nStatus  x\n");
    }
}
