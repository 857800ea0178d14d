//! `codeq probe`: asks a running server whether it is ready, for supervisors that have no HTTP client.

use std::process::ExitCode;
use std::time::Duration;

use crate::cli::{Done, Failure, ended};

/// Supervisors give up after a few seconds; the process must have ended by then.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest response that is read.
const BODY_MAX: usize = 64 << 10;

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

pub fn run(args: &Args) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    ended(match runtime {
        Ok(runtime) => runtime.block_on(probe(&args.url)),
        Err(error) => Err(Failure::error(format!("cannot start: {error}"), "try again")),
    })
}

async fn probe(url: &str) -> Done {
    let base = url.trim_end_matches('/');
    let ask = async {
        // Certificates name the server as clients know it, not as this machine does. The probe sends no secret.
        let client = reqwest::Client::builder().timeout(ANSWER_TIMEOUT).no_proxy();
        let client = client.tls_danger_accept_invalid_certs(true).build()?;
        let mut answer = client.get(format!("{base}/readyz?verbose")).send().await?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() > BODY_MAX {
                break;
            }
        }
        Ok((answer.status(), body))
    };
    let (status, body) = ask.await.map_err(|error: reqwest::Error| {
        let error = crate::http::causes(&error.without_url());
        let what = format!("cannot reach the server at {base}: {error}");
        Failure::error(what, "start the server, or name its address with --url")
    })?;
    if status.is_success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&body);
    let failed: Vec<&str> = text.lines().filter(|line| line.starts_with("[-]")).collect();
    let reason = if failed.is_empty() { status.to_string() } else { failed.join("; ") };
    Err(Failure::error(format!("the server is not ready: {reason}"), "see the server's log"))
}
