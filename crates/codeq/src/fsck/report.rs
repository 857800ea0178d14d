//! The output and the exit code of `codeq fsck`.

use std::fmt::Display;
use std::process::ExitCode;

/// Maximum printed problems; the rest are only counted. One cause often has many effects.
const PRINTED: usize = 50;

/// Findings, printed as they are found.
#[derive(Default)]
pub struct Report {
    problems: usize,
}

impl Report {
    /// Prints a part without problems.
    pub fn fine(&self, part: &str, text: impl Display) {
        println!("{part:<10} ok       {text}");
    }

    /// Prints a part with a problem.
    pub fn problem(&mut self, part: &str, text: impl Display) {
        self.problems += 1;
        if self.problems <= PRINTED {
            println!("{part:<10} PROBLEM  {text}");
        }
    }

    /// Prints a remark.
    pub fn note(&self, text: impl Display) {
        println!("{:<10} note     {text}", "");
    }

    /// Whether no problem has been found so far.
    pub fn is_sound(&self) -> bool {
        self.problems == 0
    }

    /// Prints the last line.
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
