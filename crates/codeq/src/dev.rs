//! `codeq dev`: a server to try things out, in one command.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use codeq_server::config::{DEV_TOKEN, Durability, LogFormat, random_token};
use codeq_server::{Config, Server};

use crate::config::address;
use crate::serve::run_server;

#[derive(clap::Args)]
#[command(after_help = "\
Beyond this machine, as in a container, the server has a random token instead of the known one, and prints
it. It is another one at every start.

Examples:
  codeq dev --ephemeral --http-addr 127.0.0.1:8090
  codeq dev --http-addr 0.0.0.0:8080")]
pub struct Args {
    /// Throw the data away at the end.
    #[arg(long, conflicts_with = "data_dir")]
    ephemeral: bool,
    /// Directory of the data.
    #[arg(long, value_name = "DIR", default_value = ".codeq-dev")]
    data_dir: PathBuf,
    /// Address and port of HTTP. Beyond loopback the token is a random one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = address)]
    http_addr: SocketAddr,
    /// Address and port of producers' gRPC streams. Without it: port 9092, or any free one if the port of HTTP
    /// is 0.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    producer_addr: Option<SocketAddr>,
    /// The same for workers' gRPC streams, with port 9091.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    worker_addr: Option<SocketAddr>,
    /// Shards of a new data directory.
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
    /// When a write is acknowledged: fsync or os.
    #[arg(long, value_name = "WHEN", default_value = "fsync")]
    durability: Durability,
    /// A level or a filter, such as info,codeq::net=debug.
    #[arg(long, value_name = "LEVEL", default_value = "warn,codeq::http=info,codeq::grpc=info")]
    log_level: String,
    /// json, text or short.
    #[arg(long, value_name = "FORMAT", default_value = "short")]
    log_format: LogFormat,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    // Removed when this function returns, however the server ended.
    let temporary = || tempfile::tempdir().context("cannot make a temporary directory");
    let ephemeral = args.ephemeral.then(temporary).transpose()?;
    let data_dir = match &ephemeral {
        Some(dir) => dir.path().join("data"),
        None => args.data_dir.clone(),
    };
    let addrs = [Some(args.http_addr), args.producer_addr, args.worker_addr];
    let exposed = addrs.into_iter().flatten().any(|addr| !addr.ip().is_loopback());
    let token = if exposed { random_token() } else { DEV_TOKEN.to_owned() };
    let mut config = Config::dev_with_token(data_dir, args.http_addr, &token);
    config.producer_addr = args.producer_addr;
    config.worker_addr = args.worker_addr;
    config.shards = args.shards;
    config.durability = args.durability;
    config.log_level.clone_from(&args.log_level);
    config.log_format = args.log_format;
    if let Some(problem) = config.check().first() {
        anyhow::bail!("{problem}");
    }
    let (kept, durability) = (ephemeral.is_none(), config.durability);
    let data = config.data_dir.display().to_string();
    let public = config.clone();
    run_server(config, None, |server| {
        let url = public.public_url(server.http_addr());
        let text = welcome(server, &url, &token, &data, kept, durability);
        // Whoever started the server may have stopped reading: no reason not to serve.
        let _ = writeln!(std::io::stdout(), "{text}");
    })?;
    let rest = if kept { format!("the data is in {data}") } else { "the data is gone".to_owned() };
    let _ = writeln!(std::io::stdout(), "\ncodeq has stopped; {rest}. Goodbye.");
    Ok(())
}

fn welcome(
    server: &Server,
    url: &str,
    token: &str,
    data: &str,
    kept: bool,
    durability: Durability,
) -> String {
    let who = match token {
        DEV_TOKEN => "this machine only",
        _ => "whoever has it can use this server; another one at every start",
    };
    let (producer, worker) = (server.producer_addr(), server.worker_addr());
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
  Streams  {producer} (producers), {worker} (workers)
  Docs     {url}/docs
  Metrics  {url}/metrics
  Token    {token}   (tenant dev-tenant, every role; {who})
  Data     {data}   ({kept}; {durable})

Try, in another terminal:

  curl -s {url}/v1/codeq/tasks -H 'Authorization: Bearer {token}' \\
    -d '{{\"command\":\"hello\",\"payload\":{{\"name\":\"world\"}}}}'

  curl -s {url}/v1/codeq/tasks/claim -H 'Authorization: Bearer {token}' -d '{{}}'

Ctrl-C stops the server."
    )
}
