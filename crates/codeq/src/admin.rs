//! Operator calls to a running server.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;

/// The SDK uses the same variable.
const TOKEN_VARIABLE: &str = "CODEQ_TOKEN";
const CA_VARIABLE: &str = "CODEQ_CA_FILE";

/// Token and certificates for a call.
#[derive(clap::Args)]
pub struct Access {
    /// File with the token, which needs the scope codeq:operator. Default: the token in CODEQ_TOKEN.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// The token itself. Prefer a file: every user of this machine can see the process list.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// PEM file with certificates to trust in addition to the system's. Default: CODEQ_CA_FILE.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

/// Why a server refused (RFC 9457).
#[derive(Deserialize)]
struct Problem {
    detail: String,
    code: String,
}

impl Access {
    /// POSTs without a body, and waits for the response without a timeout.
    pub fn post(&self, url: &str, path: &str) -> anyhow::Result<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.send(url, path))
    }

    async fn send(&self, url: &str, path: &str) -> anyhow::Result<String> {
        let full = format!("{}/v1/codeq/{path}", url.trim_end_matches('/'));
        let shown = reqwest::Url::parse(&full).ok().filter(|url| url.has_host());
        let Some(shown) = shown.as_ref().map(|url| url.origin().ascii_serialization()) else {
            anyhow::bail!("the server's URL must start with http:// or https://");
        };
        let mut builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        if let Some(file) = self.ca_file.clone().or_else(|| variable(CA_VARIABLE)) {
            let pem = read(&file)?;
            let certificates = reqwest::Certificate::from_pem_bundle(&pem)
                .with_context(|| format!("{} is not PEM", file.display()))?;
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder.build().context("cannot create an HTTP client")?;
        let sent = client.post(full).bearer_auth(self.token()?).send().await;
        // Not the whole URL: it may contain credentials.
        let answer = sent
            .map_err(|error| error.without_url())
            .with_context(|| format!("cannot reach the server at {shown}"))?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| error.without_url())?;
        if status.is_success() {
            return Ok(text);
        }
        match serde_json::from_str(&text) {
            Ok(Problem { detail, code }) => {
                bail!("the server refused ({status}, {code}): {detail}")
            }
            Err(_) => bail!("the server refused: {status}"),
        }
    }

    fn token(&self) -> anyhow::Result<String> {
        let text = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => String::from_utf8(read(file)?)
                .map_err(|_| anyhow::anyhow!("{} is not text", file.display()))?,
            (None, None) => std::env::var(TOKEN_VARIABLE).unwrap_or_default(),
        };
        let token = text.trim();
        if token.is_empty() {
            bail!("no token: use --token-file or set {TOKEN_VARIABLE}");
        }
        Ok(token.to_owned())
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
