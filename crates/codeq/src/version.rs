//! `codeq version`.

use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;

use crate::cli::{Connection, Done, Show, cell, ended, run as connected};
use crate::http;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  codeq version
  codeq version --server --profile prod")]
pub struct Args {
    /// Also ask the server for its version.
    #[arg(long)]
    server: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    features: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
}

impl Show for Version {
    const COLUMNS: &'static [&'static str] = &["VERSION", "FEATURES", "SERVER"];

    fn cells(&self) -> Vec<String> {
        let server = cell(self.server.as_ref());
        vec![self.version.to_owned(), self.features.join(", "), server]
    }

    fn name(&self) -> String {
        self.version.to_owned()
    }
}

fn version(server: Option<String>) -> Version {
    let features = [("cloud", cfg!(feature = "cloud")), ("otlp", cfg!(feature = "otlp"))];
    let features = features.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect();
    Version { version: env!("CARGO_PKG_VERSION"), features, server }
}

pub fn run(args: Args, top: &Connection) -> ExitCode {
    let connection = args.connection.over(top);
    if !args.server {
        return ended(connection.output().item(&version(None)));
    }
    connected(&connection, async |session| -> Done {
        let (_, text) = http::get(&session, "openapi.json").await?;
        let api: Value = serde_json::from_str(&text).unwrap_or_default();
        let theirs = api.pointer("/info/version").and_then(Value::as_str).unwrap_or("unknown");
        session.out.item(&version(Some(theirs.to_owned())))
    })
}
