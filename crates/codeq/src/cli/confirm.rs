//! Confirmation of destructive commands.

use std::io::{BufRead, IsTerminal, Write};

use super::failure::{Done, Failure};

/// The options of a destructive command.
#[derive(clap::Args, Clone, Copy, Default, PartialEq)]
pub struct Confirm {
    /// Change nothing; say what would change.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

impl Confirm {
    /// Asks for the name of what is about to be destroyed. Refuses if there is nobody to ask.
    pub fn ask(self, what: &str, name: &str) -> Done {
        if self.yes || self.dry_run {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage(
                format!("cannot {what} without a confirmation, and stdin is not a terminal"),
                "add --yes, or see what would happen with --dry-run",
            ));
        }
        // Nobody reads the question if stderr is closed; then the answer is missing, too.
        let _ = write!(std::io::stderr(), "This will {what}.\nType {name} to confirm: ");
        let mut line = String::new();
        let _ = std::io::stdin().lock().read_line(&mut line);
        match line.trim() == name {
            true => Ok(()),
            false => Err(Failure::error(
                "not confirmed; nothing was changed",
                format!("type {name}, or use --yes"),
            )),
        }
    }
}
