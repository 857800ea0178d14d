//! `codeq serve`: a server for production.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use codeq_server::app::{ReloadInputs, Source};
use codeq_server::observe::line;
use codeq_server::{Config, Server};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Layers;
use crate::say_last;

#[derive(clap::Args)]
#[command(after_help = "\
Flags override CODEQ_* environment variables, and variables override the file. `codeq config default`
prints a commented file, `codeq config check` finds errors, and `codeq config show` prints where every
value comes from.

Example:
  codeq serve --config /etc/codeq/codeq.yaml")]
pub struct Args {
    #[command(flatten)]
    layers: Layers,
}

/// Everything on stderr has the log's format, from the first line to the last, so log collectors can parse it.
pub fn run(args: &Args) -> ExitCode {
    let config = match args.layers.load() {
        Ok(loaded) => loaded.config,
        Err(error) => {
            let format = args.layers.log_format();
            let text = error.to_string();
            let lines = text.lines().map(|text| line(format, "ERROR", "codeq::config", text));
            say_last(lines.collect());
            return ExitCode::FAILURE;
        }
    };
    let format = config.log_format;
    match serve(args, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_last(line(format, "ERROR", "codeq::server", &format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Args, config: Config) -> anyhow::Result<()> {
    let format = config.log_format;
    // At every log level. Nobody is reading if stderr is closed.
    let say = move |level: &str, target: &str, text: &str| {
        let _ = std::io::stderr().write_all(line(format, level, target, text).as_bytes());
    };
    let layers = args.layers.clone();
    let source: Source = Arc::new(move || layers.load().map(|loaded| loaded.config));
    for warning in config.warnings() {
        say("WARN", "codeq::config", &warning);
    }
    run_server(config, Some(source), |server| {
        let ready_ms = server.ready_after().as_millis();
        let (http, producer) = (server.http_addr(), server.producer_addr());
        let worker = server.worker_addr();
        let text = format!("ready after {ready_ms} ms on {http}; streams on {producer}, {worker}");
        say("INFO", "codeq::server", &text);
    })
}

/// Serves until a signal or an engine failure.
pub fn run_server(
    config: Config,
    source: Option<Source>,
    ready: impl FnOnce(&Server),
) -> anyhow::Result<()> {
    codeq_server::descriptors::raise(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let done = runtime.block_on(async {
        let logs = codeq_server::observe::init_logs(&config).map_err(anyhow::Error::msg)?;
        let inputs = ReloadInputs { source, log_level: Some(logs.level()) };
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let server = Server::start_reloading(config, inputs).await?;
        ready(&server);
        let why = loop {
            tokio::select! {
                _ = terminate.recv() => break "SIGTERM",
                _ = interrupt.recv() => break "SIGINT",
                _ = hangup.recv() => {
                    // The log has the details.
                    let _ = server.reload().await;
                }
                reason = server.failed() => {
                    // Nothing more can be written. A supervisor restarts the process, which recovers from the disk.
                    anyhow::bail!("stopped after a failure: {reason}");
                }
            }
        };
        tokio::select! {
            () = server.stop_because(why) => Ok(()),
            // A second signal means: do not wait. Nothing acknowledged is lost.
            _ = terminate.recv() => Err(anyhow::anyhow!("stopped without draining")),
            _ = interrupt.recv() => Err(anyhow::anyhow!("stopped without draining")),
        }
    });
    runtime.shutdown_background();
    done
}
