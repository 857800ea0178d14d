//! `codeq doctor`: finds out why commands do not reach or may not use a server.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
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

Exit code: 0 no problems, 1 problems found. Before any check: 2 wrong usage, such as an invalid --url, 3 no such
profile.

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
    let mut checks = vec![profiles()?];
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
        [others @ .., last] => {
            let hint = |check: &Check| format!("{}: {}", check.check, check.hint);
            others.iter().for_each(|check| talk(&hint(check)));
            Err(Failure::error(format!("{} problem(s) found", wrong.len()), hint(last)))
        }
    }
}

fn profiles() -> Done<Check> {
    let Some(path) = Profiles::path() else {
        let hint = "set HOME or XDG_CONFIG_HOME";
        return Ok(bad("profiles", "no directory for them is known", hint));
    };
    let shown = path.display();
    let profiles = Profiles::load()?;
    Ok(match path.metadata() {
        Err(_) => good("profiles", format!("none: {shown} does not exist")),
        Ok(meta) if meta.permissions().mode() & 0o077 != 0 => bad(
            "profiles",
            format!("others can read the tokens in {shown}"),
            format!("chmod 600 {shown}"),
        ),
        Ok(_) => {
            let current = profiles.current.as_deref().unwrap_or("none");
            good("profiles", format!("{} in {shown}, selected: {current}", profiles.profiles.len()))
        }
    })
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
    let Some((host, port)) = host_and_port(url) else {
        return bad("worker stream", "the address cannot be parsed", hint);
    };
    match (host.as_str(), port).to_socket_addrs().and_then(connect) {
        Ok(_) => good("worker stream", format!("{host}:{port} accepts connections")),
        Err(error) => bad("worker stream", format!("{host}:{port}: {error}"), hint),
    }
}

/// Reads an address as the SDK does: `grpc` and `grpcs` are aliases of `http` and `https`; the default is `http`.
fn host_and_port(address: &str) -> Option<(String, u16)> {
    let text = match address.split_once("://") {
        Some(("grpc", rest)) => format!("http://{rest}"),
        Some(("grpcs", rest)) => format!("https://{rest}"),
        Some(_) => address.to_owned(),
        None => format!("http://{address}"),
    };
    let url = reqwest::Url::parse(&text).ok()?;
    Some((url.host_str()?.trim_matches(['[', ']']).to_owned(), url.port_or_known_default()?))
}

/// Connects to the first address that accepts: `localhost` may have one at which nobody listens.
fn connect(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut failed = io::ErrorKind::NotFound.into();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_are_read_as_the_sdk_reads_them() {
        for (address, host, port) in [
            ("https://grpc.example.com", "grpc.example.com", 443),
            ("grpcs://grpc.example.com", "grpc.example.com", 443),
            ("grpc://[::1]:9091", "::1", 9091),
            ("queue:9091", "queue", 9091),
        ] {
            assert_eq!(host_and_port(address), Some((host.to_owned(), port)), "{address}");
        }
        assert_eq!(host_and_port("http://"), None);
    }

    #[test]
    fn every_address_of_a_name_is_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        // Nobody listens on a port that was just given back.
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let connected = connect([closed, open].into_iter()).unwrap();
        assert_eq!(connected.peer_addr().unwrap(), open);
        assert_eq!(
            connect([closed].into_iter()).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert_eq!(connect([].into_iter()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
