//! A record of what the server acknowledged, to check after a crash.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;

/// A file of lines: `C <task id>` for an acknowledged create, `D <task id>` for an acknowledged completion.
pub struct Ledger {
    file: BufWriter<File>,
    /// The first failed write, reported at the end: message handlers cannot act on it.
    failed: Option<std::io::Error>,
}

impl Ledger {
    /// Creates the file, replacing an existing one.
    pub fn create(path: &Path) -> anyhow::Result<Ledger> {
        let file = File::create(path)
            .with_context(|| format!("cannot write the ledger {}", path.display()))?;
        Ok(Ledger { file: BufWriter::with_capacity(1 << 20, file), failed: None })
    }

    /// Adds a line.
    pub fn line(&mut self, what: &str, id: &str) {
        if let Err(error) = writeln!(self.file, "{what} {id}") {
            self.failed.get_or_insert(error);
        }
    }

    /// Flushes, and returns the first error.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error).context("the ledger is not complete"),
            None => self.file.flush().context("the ledger is not complete"),
        }
    }
}
