//! What `codeq fsck` prints, and the code that it ends with.

use std::fmt::Display;
use std::process::ExitCode;

/// Printed problems; the rest is counted. One cause tends to have many effects.
const PRINTED: usize = 50;

/// Findings, printed as they come.
#[derive(Default)]
pub struct Report {
    problems: usize,
}

impl Report {
    /// A part that is as it should be.
    pub fn fine(&self, part: &str, text: impl Display) {
        println!("{part:<10} ok       {text}");
    }

    /// A part that is not.
    pub fn problem(&mut self, part: &str, text: impl Display) {
        self.problems += 1;
        if self.problems <= PRINTED {
            println!("{part:<10} PROBLEM  {text}");
        }
    }

    /// Something to know.
    pub fn note(&self, text: impl Display) {
        println!("{:<10} note     {text}", "");
    }

    /// Whether no problem was found so far.
    pub fn is_sound(&self) -> bool {
        self.problems == 0
    }

    /// The last line.
    pub fn finish(&self) -> ExitCode {
        match self.problems {
            0 => {
                println!("no problems found");
                ExitCode::SUCCESS
            }
            found => {
                println!("{found} problem(s) found; nothing was changed");
                ExitCode::FAILURE
            }
        }
    }
}
