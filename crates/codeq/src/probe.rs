//! `codeq probe`: asks a running server whether it is ready, for supervisors that have no HTTP client.

use std::time::Duration;

use anyhow::{Context, bail};

/// Supervisors give up after a few seconds themselves. This ends the process then, too.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(clap::Args)]
#[command(after_help = "\
Exits with 0 if the server answers that it is ready, and with 1 otherwise, after saying why.

Examples:
  codeq probe
  codeq probe --url http://127.0.0.1:8090")]
pub struct Args {
    /// The server's URL. With https, its certificate is not verified.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(probe(&args.url))
}

async fn probe(url: &str) -> anyhow::Result<()> {
    let url = format!("{}/readyz?verbose", url.trim_end_matches('/'));
    // Certificates name the server as clients know it, not as this machine does. The probe sends no secret.
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy();
    let client = client.tls_danger_accept_invalid_certs(true).build()?;
    let sent = client.get(url).send().await.map_err(|error| error.without_url());
    let answer = sent.context("cannot reach the server")?;
    let ready = answer.status().is_success();
    let text = answer.text().await.map_err(|error| error.without_url())?;
    if !ready {
        bail!("the server is not ready:\n{}", text.trim_end());
    }
    Ok(())
}
