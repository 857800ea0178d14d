//! `codeq dev`: a server to try things out, in one command.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use codeq_server::config::{DEV_TOKEN, Durability};
use codeq_server::{Config, Server};

use crate::serve::run_server;
use crate::server_flags::ServerFlags;

const DATA_DIR: &str = ".codeq-dev";
const HTTP_ADDR: ([u8; 4], u16) = ([127, 0, 0, 1], 8080);

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Throw the data away at the end
    #[arg(long, conflicts_with = "data_dir")]
    ephemeral: bool,
    #[command(flatten)]
    flags: ServerFlags,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let flags = args.flags.flags();
    // Removed when this function returns, however the server ended.
    let ephemeral = match args.ephemeral {
        true => Some(tempfile::tempdir().context("cannot make a temporary directory")?),
        false => None,
    };
    let data_dir = match (&ephemeral, flags.data_dir) {
        (Some(dir), _) => dir.path().join("data"),
        (None, Some(dir)) => dir,
        (None, None) => PathBuf::from(DATA_DIR),
    };
    let http_addr = flags.http_addr.unwrap_or(SocketAddr::from(HTTP_ADDR));
    let mut config =
        Config::dev(data_dir, http_addr).map_err(|problem| anyhow::anyhow!("{problem}"))?;
    config.shards = flags.shards;
    config.durability = flags.durability.unwrap_or(config.durability);
    config.log_level = flags.log_level.unwrap_or(config.log_level);
    config.log_format = flags.log_format.unwrap_or(config.log_format);
    if let Some(problem) = config.check().first() {
        anyhow::bail!("{problem}");
    }
    let (kept, durability) = (ephemeral.is_none(), config.durability);
    let data = config.data_dir.display().to_string();
    run_server(config, |server| println!("{}", welcome(server, &data, kept, durability)))
}

fn welcome(server: &Server, data: &str, kept: bool, durability: Durability) -> String {
    let url = format!("http://{}", server.http_addr());
    let ready = server.ready_after().as_millis();
    let kept = if kept { "kept" } else { "thrown away at the end" };
    let durable = match durability {
        Durability::Fsync => "every answer is on the disk before it leaves",
        Durability::Os => "durability os: a power cut can lose answered writes",
    };
    format!(
        "\
codeq is ready after {ready} ms

  API      {url}/v1/codeq
  Docs     {url}/docs
  Metrics  {url}/metrics
  Token    {DEV_TOKEN}   (tenant dev-tenant, every role; this machine only)
  Data     {data}   ({kept}; {durable})

Try, in another terminal:

  curl -s {url}/v1/codeq/tasks -H 'Authorization: Bearer {DEV_TOKEN}' \\
    -d '{{\"command\":\"hello\",\"payload\":{{\"name\":\"world\"}}}}'

  curl -s {url}/v1/codeq/tasks/claim -H 'Authorization: Bearer {DEV_TOKEN}' -d '{{}}'

Ctrl-C stops the server."
    )
}
