//! `codeq man`: the manual pages that packages contain.

use std::path::PathBuf;

use anyhow::Context;

#[derive(clap::Args)]
pub struct Args {
    /// Directory for the pages, which must exist.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub fn run(args: &Args, command: clap::Command) -> anyhow::Result<()> {
    let written = clap_mangen::generate_to(command, &args.dir);
    written.with_context(|| format!("cannot write manual pages to {}", args.dir.display()))
}
