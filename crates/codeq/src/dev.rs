//! `codeq dev`: a development server in one command.

use std::io::{ErrorKind, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use codeq_server::config::{DEV_TOKEN, Durability, LogFormat, choice, random_token};
use codeq_server::{Config, Server, StartError};

use crate::cli::{Profile, Profiles, profile_name};
use crate::config::address;
use crate::serve::run_server;

#[derive(clap::Args)]
#[command(after_help = "\
When it listens beyond loopback, as in a container, the server uses a random token instead of dev-token and
prints it. The token changes at every start.

On a terminal, or with --profile, the server's URL and token are saved as a profile, which is selected: the
other commands then use this server.

Examples:
  codeq dev --ephemeral --http-addr 127.0.0.1:8090
  codeq dev --http-addr 0.0.0.0:8080")]
pub struct Args {
    /// Delete the data on exit.
    #[arg(long, conflicts_with = "data_dir")]
    ephemeral: bool,
    /// Data directory.
    #[arg(long, value_name = "DIR", default_value = ".codeq-dev")]
    data_dir: PathBuf,
    /// HTTP address and port. Beyond loopback, the token is random.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = address)]
    http_addr: SocketAddr,
    /// Address and port for producer streams (gRPC). Default: port 9092, or any free port if the HTTP port is 0.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    producer_addr: Option<SocketAddr>,
    /// Address and port for worker streams (gRPC). Default: port 9091, or any free port if the HTTP port is 0.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    worker_addr: Option<SocketAddr>,
    /// Number of shards in a new data directory.
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
    /// When a write is acknowledged: fsync (on disk) or os (handed to the operating system).
    #[arg(long, value_name = "WHEN", default_value = "fsync", value_parser = choice::<Durability>)]
    durability: Durability,
    /// A level or a filter, such as info,codeq::net=debug.
    #[arg(long, value_name = "LEVEL", default_value = "warn,codeq::http=info,codeq::grpc=info")]
    log_level: String,
    /// Log format: json, text or short.
    #[arg(long, value_name = "FORMAT", default_value = "short", value_parser = choice::<LogFormat>)]
    log_format: LogFormat,
    /// Name of the profile to save and select. Default: dev, if stdout is a terminal.
    #[arg(long, value_name = "NAME", value_parser = profile_name)]
    profile: Option<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    // Removed when this function returns, however the server ended.
    let temporary = || tempfile::tempdir().context("cannot create a temporary directory");
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
        let mut text = welcome(server, &url, &token, &data, kept, durability);
        if let Some(profile) = args.profile_name() {
            match save(profile, &url, &token, server.worker_addr()) {
                Ok(()) => text = text.replacen(
                    "\n  Data ",
                    &format!("\n  Profile  {profile}   (selected: `codeq task list` asks this server)\n  Data "),
                    1,
                ),
                // Not worth stopping for.
                Err(failure) => eprintln!("{failure}"),
            }
        }
        // Keep serving if nobody reads the output any more.
        let _ = writeln!(std::io::stdout(), "{text}");
    })?;
    let rest =
        if kept { format!("the data is in {data}") } else { "the data is deleted".to_owned() };
    let _ = writeln!(std::io::stdout(), "\ncodeq has stopped; {rest}. Goodbye.");
    Ok(())
}

impl Args {
    /// Programs and tests that start a server do not change what a person has selected.
    fn profile_name(&self) -> Option<&str> {
        let watched = std::io::stdout().is_terminal();
        self.profile.as_deref().or(if watched { Some("dev") } else { None })
    }
}

/// What to try if the server did not start.
pub fn hint(error: &anyhow::Error) -> Option<&'static str> {
    match error.downcast_ref::<StartError>()? {
        StartError::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse => Some(
            "another server uses the port: stop it (`systemctl stop codeq` if it is the installed one), or use free ports: \
             `codeq dev --http-addr 127.0.0.1:0`",
        ),
        _ => None,
    }
}

/// Saves and selects a profile for this server.
fn save(name: &str, url: &str, token: &str, worker: SocketAddr) -> crate::cli::Done {
    let ip = if worker.ip().is_unspecified() { "localhost".to_owned() } else { host(worker) };
    let worker_url = Some(format!("http://{ip}:{}", worker.port()));
    let profile =
        Profile { url: url.to_owned(), token: token.to_owned(), worker_url, ca_file: None };
    Profiles::edit(|profiles| {
        profiles.profiles.insert(name.to_owned(), profile);
        profiles.current = Some(name.to_owned());
        Ok(())
    })
}

/// The address as a URL has it.
fn host(addr: SocketAddr) -> String {
    match addr {
        SocketAddr::V4(addr) => addr.ip().to_string(),
        SocketAddr::V6(addr) => format!("[{}]", addr.ip()),
    }
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
        _ => "anyone who has it can use this server; it changes at every start",
    };
    let (producer, worker) = (server.producer_addr(), server.worker_addr());
    let ready = server.ready_after().as_millis();
    let kept = if kept { "kept" } else { "deleted on exit" };
    let durable = match durability {
        Durability::Fsync => "writes are on disk before they are acknowledged",
        Durability::Os => "durability os: a power cut can lose acknowledged writes",
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
