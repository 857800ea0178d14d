//! Which server to talk to, with which token, and how to print.

use std::path::PathBuf;

use codeq_client::{HttpClient, Options};
use codeq_server::config::DEV_TOKEN;

use super::failure::{Done, Failure};
use super::output::{Format, Output};
use super::profiles::{Profile, Profiles};

/// Where `codeq dev` listens.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// Port of the worker stream, unless a profile, a flag or a variable says otherwise.
const WORKER_PORT: u16 = 9091;

/// The options of every command that talks to a server.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Connection and output")]
pub struct Connection {
    #[allow(rustdoc::bare_urls, reason = "this is the text of --help")]
    /// URL of the server. Default: that of --profile, CODEQ_HTTP_URL, the selected profile's, or http://127.0.0.1:8080.
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// The token. Prefer a file or a profile: every user of this machine can see the process list.
    #[arg(long, global = true, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// File with the token. Default: the token of --profile, CODEQ_TOKEN, or the selected profile's token.
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file with certificates to trust in addition to the system's. Default: CODEQ_CA_FILE, or the profile's.
    #[arg(long, global = true, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Profile to use. Default: CODEQ_PROFILE, or the one chosen with `codeq profile use`.
    #[arg(long, global = true, value_name = "PROFILE")]
    profile: Option<String>,
    /// Output format. Default: table on a terminal, json otherwise; name prints only ids or names.
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

/// A server to talk to.
pub struct Session {
    pub http: HttpClient,
    /// The same server, for streams.
    pub options: Options,
    pub out: Output,
    pub url: String,
    pub worker_url: String,
    /// Certificates to trust in addition to the system's.
    pub ca_pem: Option<Vec<u8>>,
}

/// What to connect to, before anything is checked.
struct Target {
    url: String,
    token: String,
    worker_url: Option<String>,
    ca_file: Option<PathBuf>,
}

impl Connection {
    /// These options; where one is not given, the one before the noun applies.
    #[must_use]
    pub fn over(self, top: &Connection) -> Connection {
        let or = |own: Option<String>, top: &Option<String>| own.or_else(|| top.clone());
        let file = |own: Option<PathBuf>, top: &Option<PathBuf>| own.or_else(|| top.clone());
        let own_token = self.token.is_some() || self.token_file.is_some();
        Connection {
            url: or(self.url, &top.url),
            token: if own_token { self.token } else { top.token.clone() },
            token_file: if own_token { self.token_file } else { top.token_file.clone() },
            ca_file: file(self.ca_file, &top.ca_file),
            profile: or(self.profile, &top.profile),
            output: self.output.or(top.output),
        }
    }

    /// Whether any option was given.
    pub fn is_given(&self) -> bool {
        let Connection { url, token, token_file, ca_file, profile, output } = self;
        let files = token_file.is_some() || ca_file.is_some();
        url.is_some() || token.is_some() || files || profile.is_some() || output.is_some()
    }

    /// Whether an option chooses the server or the token.
    pub fn names_server(&self) -> bool {
        Connection { output: None, ..self.clone() }.is_given()
    }

    /// How to print.
    pub fn output(&self) -> Output {
        Output::new(self.output)
    }

    /// Prepares the connection. Nothing is sent yet.
    pub fn session(&self) -> Done<Session> {
        let Target { url, token, worker_url, ca_file } = self.target()?;
        let default_worker_url = default_worker_url(&url)?;
        let worker_url = worker_url.unwrap_or(default_worker_url);
        let ca_pem = ca_file.map(|file| read(&file)).transpose()?;
        let mut options = Options::new(token).http_url(&url).worker_url(&worker_url);
        if let Some(pem) = &ca_pem {
            options = options.ca_pem(pem.clone());
        }
        let http = HttpClient::new(&options)?;
        Ok(Session { http, options, out: self.output(), url, worker_url, ca_pem })
    }

    /// The given URL and token as a profile.
    pub fn as_profile(&self) -> Done<Profile> {
        let url = self.url.clone().ok_or_else(|| {
            Failure::usage(
                "a profile needs a URL",
                "add --url, such as --url http://127.0.0.1:8080",
            )
        })?;
        default_worker_url(&url)?;
        let token = self.given_token()?.unwrap_or_default();
        let ca_file = self.ca_file.as_ref().map(std::path::absolute).transpose();
        let ca_file = ca_file.map_err(|error| {
            Failure::usage(format!("--ca-file: {error}"), "use an absolute path")
        })?;
        Ok(Profile { url, token, worker_url: None, ca_file })
    }

    /// Flags win over a profile named by a flag or variable, which wins over the other variables, which win over the
    /// current profile. Exception: CODEQ_CA_FILE wins over every profile. What a profile says, above all its token,
    /// applies only to the profile's server.
    fn target(&self) -> Done<Target> {
        let named = self.profile.clone().or_else(|| variable("CODEQ_PROFILE"));
        let profiles = Profiles::load()?;
        let named = named.map(|name| profiles.get(&name).cloned()).transpose()?;
        let is_named = named.is_some();
        let profile = named.or_else(|| profiles.current().cloned());
        let from_env = variable("CODEQ_HTTP_URL").filter(|_| !is_named);
        let (ca_env, worker_env) = (variable("CODEQ_CA_FILE"), variable("CODEQ_WORKER_URL"));
        let (token, token_env) = (self.given_token()?, variable("CODEQ_TOKEN"));
        let ca_file = self.ca_file.clone().or_else(|| ca_env.map(PathBuf::from));
        let worker_url = worker_env.filter(|_| !is_named);
        let explicit = self.url.clone().or(from_env);
        let Some(url) = explicit.or_else(|| profile.as_ref().map(|profile| profile.url.clone()))
        else {
            // The development server's token is no secret.
            let token = token.or(token_env).unwrap_or_else(|| DEV_TOKEN.to_owned());
            return Ok(Target { url: DEFAULT_URL.to_owned(), token, worker_url, ca_file });
        };
        let own = profile.filter(|profile| profile.url == url).unwrap_or_default();
        let of_profile = Some(own.token).filter(|token| !token.is_empty());
        let token = match is_named {
            true => token.or(of_profile).or(token_env),
            false => token.or(token_env).or(of_profile),
        };
        Ok(Target {
            url,
            token: token.unwrap_or_default(),
            worker_url: worker_url.or(own.worker_url),
            ca_file: ca_file.or(own.ca_file),
        })
    }

    fn given_token(&self) -> Done<Option<String>> {
        let text = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => String::from_utf8(read(file)?).map_err(|_| {
                let what = format!("{} is not text", file.display());
                Failure::usage(what, "use a file that contains only the token")
            })?,
            (None, None) => return Ok(None),
        };
        Ok(Some(text.trim().to_owned()))
    }
}

/// The worker stream that belongs to an HTTP address: the same host, on the default port. An error if the URL is invalid.
fn default_worker_url(url: &str) -> Done<String> {
    let wrong = || {
        Failure::usage(
            "the server's URL must start with http:// or https://",
            "use a URL such as http://127.0.0.1:8080",
        )
    };
    let mut parsed = reqwest::Url::parse(url).map_err(|_| wrong())?;
    if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
        return Err(wrong());
    }
    parsed.set_path("");
    parsed.set_port(Some(WORKER_PORT)).map_err(|()| wrong())?;
    Ok(parsed.to_string())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn read(file: &std::path::Path) -> Done<Vec<u8>> {
    std::fs::read(file).map_err(|error| {
        let what = format!("cannot read {}: {error}", file.display());
        Failure::usage(what, "check the path and who may read it")
    })
}
