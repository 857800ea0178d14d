//! `codeq config`: print the defaults, check, show and reload.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use codeq_client::Reloaded;
use codeq_server::config::{
    DEFAULT_YAML, Durability, FILE_VARIABLE, Flags, Loaded, LogFormat, choice, load, log_format,
};

use crate::cli::{About, Connection, Failure, ended, run as connected, talk};

#[derive(Subcommand)]
#[command(after_help = "\
Flags override CODEQ_* variables, variables override the file, and the file overrides the defaults.

Examples:
  codeq config default > codeq.yaml
  codeq config check --config codeq.yaml
  CODEQ_SHARDS=4 codeq config show --config codeq.yaml -o json
  codeq config reload --url http://127.0.0.1:8080 --token-file operator.token")]
pub enum Config {
    /// Print a commented file with every key and its default.
    #[command(after_help = "Example:\n  codeq config default > codeq.yaml")]
    Default,
    /// Check the configuration; exit code 1 if anything is wrong.
    #[command(after_help = "Example:\n  codeq config check --config codeq.yaml")]
    Check(Layers),
    /// Print every setting in force and where it comes from. Secrets are masked.
    #[command(after_help = "Example:\n  codeq config show --config codeq.yaml -o json")]
    Show(Show),
    /// Make a running server reread its configuration; print what changed and what needs a restart.
    Reload(Reload),
}

#[derive(Args)]
#[command(after_help = "\
The server rereads its configuration file and its TLS certificate, as it does on SIGHUP. Flags and variables
keep their values from startup. Changes to tokens, issuers, allowProducerAsWorker, secrets, rate limits, tenant
limits, batch sizes, default lease, webhook networks, backup target and log level apply at once. If the
configuration is invalid, no setting changes.

The token needs the scope codeq:operator.

Examples:
  codeq config reload --profile prod
  codeq config reload --url https://codeq.example.com --token-file operator.token
  kill -HUP $(pidof codeq)")]
pub struct Reload {
    #[command(flatten)]
    connection: Connection,
}

#[derive(Args)]
pub struct Show {
    #[command(flatten)]
    layers: Layers,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Yaml)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Yaml,
    Json,
}

/// The flags of every command that reads a configuration.
#[derive(Args, Clone)]
pub struct Layers {
    /// YAML configuration file. Default: the file that CODEQ_CONFIG names, if any.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// HTTP address and port.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    http_addr: Option<SocketAddr>,
    /// Address and port for producer streams (gRPC).
    #[arg(long, value_name = "ADDR", value_parser = address)]
    producer_addr: Option<SocketAddr>,
    /// Address and port for worker streams (gRPC).
    #[arg(long, value_name = "ADDR", value_parser = address)]
    worker_addr: Option<SocketAddr>,
    /// Number of shards in a new data directory.
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
    /// When a write is acknowledged: fsync (on disk) or os (handed to the operating system).
    #[arg(long, value_name = "WHEN", value_parser = choice::<Durability>)]
    durability: Option<Durability>,
    /// A level or a filter, such as info,codeq::net=debug.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Log format: json, text or short.
    #[arg(long, value_name = "FORMAT", value_parser = choice::<LogFormat>)]
    log_format: Option<LogFormat>,
    /// Address and port for metrics.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    metrics_addr: Option<SocketAddr>,
    /// TLS certificate chain (PEM).
    #[arg(long, value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// TLS private key (PEM).
    #[arg(long, value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
}

pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        // A port alone, with or without its colon, most likely means this machine.
        let port = text.trim_start_matches(':').parse().unwrap_or(8080_u16);
        format!("expected an address and a port, such as 127.0.0.1:{port}")
    })
}

impl Layers {
    /// Reads and checks all layers.
    pub fn load(&self) -> Result<Loaded, codeq_server::config::ConfigError> {
        load(self.file().as_deref(), environment(), &self.flags())
    }

    /// The configured log format, as far as the configuration can be read.
    pub fn log_format(&self) -> LogFormat {
        log_format(self.file().as_deref(), environment(), &self.flags())
    }

    fn file(&self) -> Option<PathBuf> {
        let named = || std::env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty());
        self.config.clone().or_else(|| named().map(PathBuf::from))
    }

    fn flags(&self) -> Flags {
        Flags {
            data_dir: self.data_dir.clone(),
            http_addr: self.http_addr,
            producer_addr: self.producer_addr,
            worker_addr: self.worker_addr,
            shards: self.shards,
            durability: self.durability,
            log_level: self.log_level.clone(),
            log_format: self.log_format,
            metrics_addr: self.metrics_addr,
            tls_cert_file: self.tls_cert_file.clone(),
            tls_key_file: self.tls_key_file.clone(),
        }
    }
}

/// The process's environment. Invalid UTF-8 is replaced, so it is reported like any other invalid value.
fn environment() -> impl Iterator<Item = (String, String)> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value)))
}

impl Config {
    pub fn run(self, top: &Connection) -> ExitCode {
        match self {
            Config::Reload(reload) => reload.run(top),
            _ if top.is_given() => ended(Err(Failure::misplaced())),
            Config::Default => print(DEFAULT_YAML),
            Config::Check(layers) => match loaded(&layers) {
                Ok(loaded) => print(&summary(&loaded)),
                Err(code) => code,
            },
            Config::Show(show) => match loaded(&show.layers) {
                Ok(loaded) => print_shown(&loaded, show.output),
                Err(code) => code,
            },
        }
    }
}

impl Reload {
    fn run(self, top: &Connection) -> ExitCode {
        connected(&self.connection.over(top), async |session| {
            let reloaded = session.http.reload_config().await.about("configuration")?;
            if reloaded.changed.is_empty() && reloaded.needs_restart.is_empty() {
                talk("nothing changed");
            }
            session.out.item(&reloaded)
        })
    }
}

impl crate::cli::Show for Reloaded {
    const COLUMNS: &'static [&'static str] = &["CHANGED", "NEEDS RESTART"];

    fn cells(&self) -> Vec<String> {
        vec![self.name(), self.needs_restart.join(", ")]
    }

    fn name(&self) -> String {
        let keys: Vec<&str> = self.changed.iter().map(|changed| changed.key.as_str()).collect();
        keys.join(", ")
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let changed = self.changed.iter();
        let changed =
            changed.map(|it| ("Changed", format!("{}: {} -> {}", it.key, it.from, it.to)));
        let restart = self.needs_restart.iter().map(|key| ("Needs a restart", key.clone()));
        changed.chain(restart).collect()
    }
}

/// Loads the configuration, or prints what is wrong with it.
fn loaded(layers: &Layers) -> Result<Loaded, ExitCode> {
    layers.load().map_err(|error| {
        talk(&error.to_string());
        let what = match error.problems().len() {
            0 => "the configuration cannot be read".to_owned(),
            count => format!("{count} problem(s) in the configuration"),
        };
        let hint = "`codeq config default` prints every setting with its meaning and default";
        ended(Err(Failure::error(what, hint)))
    })
}

fn summary(loaded: &Loaded) -> String {
    let config = &loaded.config;
    let file =
        loaded.file.as_deref().map_or("no file".to_owned(), |it: &Path| it.display().to_string());
    let scheme = if config.tls.cert_file.is_some() { "https" } else { "http" };
    let mut text = format!("ok: {file}\n");
    let methods = |auth: &codeq_server::config::AuthConfig| {
        format!("{} issuer(s), {} fixed token(s)", auth.jwt.len(), auth.static_tokens.len())
    };
    let lines = [
        ("listens on", format!("{scheme}://{}", config.http_addr)),
        ("data in", config.data_dir.display().to_string()),
        ("producers", methods(&config.producer_auth)),
        ("workers", methods(&config.worker_auth)),
    ];
    for (name, value) in lines {
        text.push_str(&format!("{name:>11}: {value}\n"));
    }
    let descriptors = codeq_server::descriptors::Descriptors::possible(config).warning(config);
    for warning in config.warnings().into_iter().chain(descriptors) {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

fn print_shown(loaded: &Loaded, output: Output) -> ExitCode {
    let text = match output {
        Output::Yaml => loaded.to_yaml(),
        Output::Json => loaded.to_json().map(|json| format!("{json:#}\n")),
    };
    match text {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("codeq: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints to stdout. A closed pipe is not an error.
fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("codeq: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        layers: Layers,
    }

    #[test]
    fn flags_reach_the_configuration() {
        let line = "codeq --config f --data-dir d --http-addr 127.0.0.1:1 --shards 2 --durability os \
                    --log-level warn --log-format text --metrics-addr [::1]:2 --tls-cert-file c \
                    --tls-key-file k";
        let layers = Cli::try_parse_from(line.split_whitespace()).unwrap().layers;
        assert_eq!(layers.file(), Some("f".into()));
        let expected = Flags {
            data_dir: Some("d".into()),
            http_addr: Some(([127, 0, 0, 1], 1).into()),
            producer_addr: None,
            worker_addr: None,
            shards: Some(2),
            durability: Some(Durability::Os),
            log_level: Some("warn".to_owned()),
            log_format: Some(LogFormat::Text),
            metrics_addr: Some("[::1]:2".parse().unwrap()),
            tls_cert_file: Some("c".into()),
            tls_key_file: Some("k".into()),
        };
        assert_eq!(layers.flags(), expected);
        assert!(Cli::try_parse_from(["codeq", "--durability", "none"]).is_err());
    }

    #[test]
    fn the_summary_shows_addresses_tokens_and_warnings() {
        let flags = Flags { durability: Some(Durability::Os), ..Flags::default() };
        let text = summary(&load(None, std::iter::empty(), &flags).unwrap());
        assert_eq!(
            text,
            "ok: no file\n listens on: http://127.0.0.1:8080\n    data in: codeq-data\n  producers: 0 \
             issuer(s), 0 fixed token(s)\n    workers: 0 issuer(s), 0 fixed token(s)\nwarning: \
             durability is 'os': a power cut loses writes that were acknowledged\nwarning: producerAuth has no jwt and no \
             staticTokens: nobody can enqueue\nwarning: workerAuth has no jwt and no staticTokens: nobody \
             can claim\n"
        );
    }
}
