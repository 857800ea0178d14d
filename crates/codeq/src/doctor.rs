//! `codeq doctor`: finds out why commands do not reach or may not use a server.

use std::net::ToSocketAddrs;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::time::Duration;

use codeq_client::{Error, Search};
use serde::Serialize;

use crate::cli::{Connection, Done, Failure, Profiles, Session, Show, run as connected, talk};
use crate::http;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
#[command(after_help = "\
Checks the profiles, the server, the token and the worker stream, and says what to do about each problem.
Changes nothing.

Exit code: 0 no problems, 1 problems found.

Examples:
  codeq doctor
  codeq doctor --profile prod -o json")]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
}

#[derive(Serialize)]
struct Check {
    check: &'static str,
    ok: bool,
    detail: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    hint: String,
}

impl Show for Check {
    const COLUMNS: &'static [&'static str] = &["CHECK", "OK", "DETAIL"];

    fn cells(&self) -> Vec<String> {
        let ok = if self.ok { "yes" } else { "NO" };
        vec![self.check.to_owned(), ok.to_owned(), self.detail.clone()]
    }

    fn name(&self) -> String {
        self.check.to_owned()
    }
}

fn good(check: &'static str, detail: impl Into<String>) -> Check {
    Check { check, ok: true, detail: detail.into(), hint: String::new() }
}

fn bad(check: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Check {
    Check { check, ok: false, detail: detail.into(), hint: hint.into() }
}

pub fn run(args: Args, top: &Connection) -> ExitCode {
    connected(&args.connection.over(top), async |session| examine(&session).await)
}

async fn examine(session: &Session) -> Done {
    let mut checks = vec![profiles()];
    let server = server(session).await;
    let reachable = server.ok;
    checks.push(server);
    if reachable {
        checks.extend(token(session).await);
    }
    checks.push(worker_stream(&session.worker_url));
    session.out.items(&checks)?;
    let wrong: Vec<&Check> = checks.iter().filter(|check| !check.ok).collect();
    match wrong.as_slice() {
        [] => Ok(()),
        [.., last] => {
            let hints = wrong.iter().map(|check| format!("{}: {}", check.check, check.hint));
            hints.for_each(|hint| talk(&hint));
            Err(Failure::error(format!("{} problem(s) found", wrong.len()), last.hint.clone()))
        }
    }
}

fn profiles() -> Check {
    let Some(path) = Profiles::path() else {
        return bad("profiles", "no directory for them is known", "set HOME or XDG_CONFIG_HOME");
    };
    let shown = path.display();
    match (Profiles::load(), path.metadata()) {
        (Err(failure), _) => bad("profiles", failure.what(), failure.hint()),
        (_, Err(_)) => good("profiles", format!("none: {shown} does not exist")),
        (Ok(_), Ok(meta)) if meta.permissions().mode() & 0o077 != 0 => bad(
            "profiles",
            format!("others can read the tokens in {shown}"),
            format!("chmod 600 {shown}"),
        ),
        (Ok(profiles), _) => {
            let current = profiles.current.as_deref().unwrap_or("none");
            good("profiles", format!("{} in {shown}, selected: {current}", profiles.profiles.len()))
        }
    }
}

async fn server(session: &Session) -> Check {
    let url = &session.url;
    match http::get(session, "readyz?verbose").await {
        Ok((200, _)) => good("server", format!("{url} is ready")),
        Ok((status, text)) => {
            let reason = text.lines().find(|line| line.starts_with("[-]"));
            let detail = reason.map_or(format!("{url} answers {status}"), |line| {
                format!("{url} is not ready: {}", line.trim_start_matches("[-] "))
            });
            bad("server", detail, "see the server's log; check that the URL is a codeQ server")
        }
        Err(failure) => bad("server", failure.what(), failure.hint()),
    }
}

/// What the token may do, as far as it can be seen without changing anything.
async fn token(session: &Session) -> Vec<Check> {
    let search = Search { limit: Some(1), ..Search::default() };
    let read = session.http.tasks(&search).await;
    let mut checks = vec![match read {
        Ok(_) => good("token", "accepted"),
        Err(error) => {
            let failure = Failure::from(error);
            bad("token", failure.what(), failure.hint())
        }
    }];
    if checks.iter().all(|check| check.ok) {
        checks.push(match session.http.queues().await {
            Ok(queues) => good("admin", format!("allowed; {} queue(s)", queues.len())),
            Err(Error::Api { status: 403, .. }) => {
                good("admin", "not allowed: queue and dlq commands need the scope codeq:admin")
            }
            Err(error) => {
                let failure = Failure::from(error);
                bad("admin", failure.what(), failure.hint())
            }
        });
    }
    checks
}

fn worker_stream(url: &str) -> Check {
    let hint = "start the server, or name the stream's address with CODEQ_WORKER_URL or `codeq \
                profile add --worker-url`";
    let address = reqwest::Url::parse(&url.replacen("grpc", "http", 1)).ok().and_then(|url| {
        Some((url.host_str()?.trim_matches(['[', ']']).to_owned(), url.port_or_known_default()?))
    });
    let Some((host, port)) = address else {
        return bad("worker stream", "the address cannot be parsed", hint);
    };
    let connected = (host.as_str(), port).to_socket_addrs().and_then(|mut addresses| {
        let first = addresses.next().ok_or(std::io::ErrorKind::NotFound)?;
        std::net::TcpStream::connect_timeout(&first, CONNECT)
    });
    match connected {
        Ok(_) => good("worker stream", format!("{host}:{port} accepts connections")),
        Err(error) => bad("worker stream", format!("{host}:{port}: {error}"), hint),
    }
}
