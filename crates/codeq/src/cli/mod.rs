//! What the client commands share: where the server is, how results are printed, and how errors end.
//!
//! Data goes to stdout, everything else to stderr.

mod confirm;
mod connection;
mod each;
mod escape;
mod failure;
mod output;
mod profiles;
mod progress;
mod text;
mod yaml;

use std::process::ExitCode;

use clap::Subcommand;

pub use confirm::Confirm;
pub use connection::{Connection, Session};
pub use each::each;
pub use escape::{printable, printable_lines};
pub use failure::{About, Done, Exit, Failure};
pub use output::{Output, Show, cell, cut};
pub use profiles::{Profile, Profiles, profile_name};
pub use progress::{Progress, bytes_below, waiting, watched};
pub use text::{age, duration, input, moment, seconds, span, time};

/// A noun of the command line: its verbs, and the options that all of them take.
#[derive(clap::Args)]
pub struct Noun<V: Subcommand> {
    #[command(subcommand)]
    pub verb: V,
    #[command(flatten)]
    pub connection: Connection,
}

impl<V: Subcommand> Noun<V> {
    /// Connects and runs the verb.
    pub fn run(self, top: &Connection, verb: impl AsyncFnOnce(V, Session) -> Done) -> ExitCode {
        let Noun { verb: which, connection } = self;
        run(&connection.over(top), async |session| verb(which, session).await)
    }
}

/// Runs a command that talks to a server.
pub fn run(connection: &Connection, command: impl AsyncFnOnce(Session) -> Done) -> ExitCode {
    ended(connect(connection, command))
}

fn connect(connection: &Connection, command: impl AsyncFnOnce(Session) -> Done) -> Done {
    let session = connection.session()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::error(format!("cannot start: {error}"), "check the limits of this process")
    })?;
    let url = session.url.clone();
    runtime.block_on(command(session)).map_err(|failure| failure.at(&url))
}

/// The exit code, after printing what went wrong.
pub fn ended(done: Done) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            talk(&failure.to_string());
            failure.exit.into()
        }
    }
}

/// Prints text to stderr, escaping what would control the terminal. Nobody is reading if stderr is closed.
pub fn talk(text: &str) {
    let text = printable_lines(text) + "\n";
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}
