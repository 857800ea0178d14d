//! The ledger of a run: what every client requested, and what it was answered.
//!
//! It is on another file system than the data. Each client has its own file and appends one JSON line, in one write,
//! before a request, and another right after the answer, so a killed client leaves at most its last line incomplete.
//! A request without an answer is *unknown*.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use codeq_sim::ledger::{Line, Listed, Op, Outcome};
use serde::{Deserialize, Serialize};

use crate::sys::monotonic_ns;

/// A line of a client's file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Entry {
    /// The client is about to send a request.
    Asked {
        /// When, by the shared monotonic clock.
        t: u64,
        /// The operation.
        op: Op,
    },
    /// The answer to the last request.
    Heard {
        /// When, by the shared monotonic clock.
        t: u64,
        /// The outcome.
        outcome: Outcome,
    },
    /// A read showed these tasks.
    Read {
        /// When, by the shared monotonic clock.
        t: u64,
        /// The tasks.
        tasks: Vec<Listed>,
    },
}

/// What one client knows.
#[derive(Debug, Default)]
pub struct ClientLedger {
    /// Its operations, in order.
    pub lines: Vec<Line>,
    /// What its reads showed.
    pub reads: Vec<Listed>,
}

/// A client's file.
pub struct Writer(File);

impl Writer {
    /// Creates the file of client number `client`.
    pub fn create(dir: &Path, client: usize) -> io::Result<Writer> {
        fs::create_dir_all(dir)?;
        File::create(dir.join(format!("{client:03}.jsonl"))).map(Writer)
    }

    /// Records what is about to be requested.
    pub fn asked(&mut self, op: Op) -> io::Result<()> {
        let t = monotonic_ns();
        self.append(&Entry::Asked { t, op })
    }

    /// Records an outcome. The time is taken here, after the answer.
    pub fn heard(&mut self, outcome: Outcome) -> io::Result<()> {
        let t = monotonic_ns();
        self.append(&Entry::Heard { t, outcome })
    }

    /// Records what a read showed.
    pub fn read(&mut self, tasks: Vec<Listed>) -> io::Result<()> {
        let t = monotonic_ns();
        self.append(&Entry::Read { t, tasks })
    }

    fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// Reads the files of all clients of a run. Answers at `cut` or later count as never received: after a power cut a
/// sync may still report success, but a machine without power would not have passed the answer on.
pub fn load(dir: &Path, cut: Option<u64>) -> io::Result<Vec<ClientLedger>> {
    let mut paths: Vec<PathBuf> = match fs::read_dir(dir) {
        Ok(entries) => {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "jsonl"));
    paths.sort();
    let texts = paths.iter().map(fs::read_to_string);
    texts.map(|text| parse(&text?, cut)).collect()
}

fn parse(text: &str, cut: Option<u64>) -> io::Result<ClientLedger> {
    let late = |t: u64| cut.is_some_and(|cut| t >= cut);
    let mut client = ClientLedger::default();
    let mut open: Option<Line> = None;
    let whole = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or("");
    for line in whole.lines() {
        match serde_json::from_str(line).map_err(io::Error::other)? {
            Entry::Asked { t, op } => {
                client.lines.extend(open.take());
                open = Some(Line { invoked: t, done: t, op, outcome: Outcome::Unknown });
            }
            Entry::Heard { t, outcome } => {
                if let Some(mut line) = open.take() {
                    line.done = t;
                    if !late(t) {
                        line.outcome = outcome;
                    }
                    client.lines.push(line);
                }
            }
            Entry::Read { t, tasks } if !late(t) => client.reads.extend(tasks),
            Entry::Read { .. } => {}
        }
    }
    client.lines.extend(open);
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(entry: &Entry) -> String {
        format!("{}\n", serde_json::to_string(entry).unwrap())
    }

    #[test]
    fn answers_after_the_cut_count_as_unknown() {
        let op = || Op::Other("x".into());
        let outcome = || Outcome::Refused { at: 1, code: "no".into() };
        let mut text = String::new();
        for t in [10, 20] {
            text += &entry(&Entry::Asked { t, op: op() });
            text += &entry(&Entry::Heard { t: t + 5, outcome: outcome() });
        }
        text += &entry(&Entry::Asked { t: 30, op: op() });
        text += "{\"Heard\":{\"t\"";
        let client = parse(&text, Some(25)).unwrap();
        let known: Vec<bool> = client.lines.iter().map(|line| !line.is_unknown()).collect();
        assert_eq!(known, [true, false, false]);
    }
}
