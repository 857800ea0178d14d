//! Errors: what happened, what to try, and the exit code.

use std::fmt;
use std::process::ExitCode;

use codeq_client::Error;
use codeq_server::service::Code;

use super::escape::{printable, printable_lines};

/// The exit codes of the client commands. 0 is success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Error = 1,
    Usage = 2,
    NotFound = 3,
    Conflict = 4,
    Timeout = 5,
    /// Not authenticated, or not allowed.
    Denied = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a command ended without success.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    what: String,
    hint: String,
    /// The server could not be reached.
    unreachable: bool,
}

pub type Done<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn new(exit: Exit, what: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { exit, what: what.into(), hint: hint.into(), unreachable: false }
    }

    pub fn error(what: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Exit::Error, what, hint)
    }

    pub fn usage(what: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, what, hint)
    }

    /// Options of a connection before a command that does not take them there.
    pub fn misplaced() -> Failure {
        Failure::usage(
            "this command takes no --url, --token, --profile or --output before its name",
            "put them after the command's name, if its --help lists them",
        )
    }

    /// Names the server, if that is what could not be reached.
    #[must_use]
    pub fn at(self, url: &str) -> Failure {
        if self.unreachable { Failure { unreachable: false, ..self.about(url) } } else { self }
    }

    /// Names what the command was about.
    #[must_use]
    pub fn about(mut self, subject: &str) -> Failure {
        self.what = format!("{subject}: {}", self.what);
        self
    }

    /// The message without the hint.
    pub fn what(&self) -> &str {
        &self.what
    }

    pub fn hint(&self) -> &str {
        &self.hint
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both may quote the server, which must not be able to add a hint of its own: its lines are indented.
        let what = printable_lines(self.what.trim_end()).replace('\n', "\n       ");
        let hint = printable(&self.hint);
        write!(f, "codeq: {what}\nhint: {hint}")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Api { status, code, detail, retry_after, request_id, .. } => {
                let hint = match retry_after {
                    Some(after) => format!("try again in {} s", after.as_secs().max(1)),
                    // The code is that of a task that does not exist.
                    None if detail.starts_with("this is not a task id") => {
                        "`codeq task list` prints the ids of tasks".to_owned()
                    }
                    None => hint(&code).unwrap_or_else(|| unknown_hint(status)),
                };
                let reason = if code.is_empty() { format!("HTTP status {status}") } else { code };
                let request = request_id.map_or(String::new(), |id| format!(", request {id}"));
                let what = format!("{detail} ({reason}{request})");
                Failure::new(exit(status, &reason), what, hint)
            }
            Error::Refused { code, message } => {
                let hint = hint(&code).unwrap_or_else(|| "run `codeq doctor`".to_owned());
                let status = match code.as_str() {
                    "unauthenticated" => 401,
                    "forbidden" => 403,
                    _ => 400,
                };
                Failure::new(exit(status, &code), format!("{message} ({code})"), hint)
            }
            Error::Timeout => Failure::new(
                Exit::Timeout,
                "no response within the time limit",
                "try again; `codeq doctor` checks the connection",
            ),
            Error::Unavailable(_) | Error::Closed => Failure {
                unreachable: true,
                ..Failure::error(
                    error.to_string(),
                    "start a server with `codeq dev`, or choose another one with --url or \
                     --profile; `codeq doctor` checks the connection",
                )
            },
            Error::Config(_) => Failure::new(
                Exit::Usage,
                error.to_string(),
                "check the names, --url and the other options; `codeq profile list` shows the profiles",
            ),
            Error::Decode(_) => Failure::error(
                error.to_string(),
                "check that --url is a codeQ server of this version: `codeq version --server`",
            ),
            Error::TooLarge(_) => Failure::error(
                error.to_string(),
                "check that --url is a codeQ server; if it is, ask for less at once, for instance with --limit",
            ),
            other => Failure::error(other.to_string(), "run `codeq doctor`"),
        }
    }
}

/// Adds what a call was about to its error.
pub trait About<T> {
    fn about(self, subject: &str) -> Done<T>;
}

impl<T> About<T> for Result<T, Error> {
    fn about(self, subject: &str) -> Done<T> {
        self.map_err(|error| match error {
            // These concern the connection, whatever the call was about.
            Error::Unavailable(_) | Error::Closed | Error::Config(_) => error.into(),
            Error::Api { status: 401, .. } => error.into(),
            other => Failure::from(other).about(subject),
        })
    }
}

fn exit(status: u16, code: &str) -> Exit {
    match (status, code) {
        (401 | 403, _) => Exit::Denied,
        (404, _) => Exit::NotFound,
        (409, _) | (_, "idempotency_conflict") => Exit::Conflict,
        (408 | 504, _) => Exit::Timeout,
        _ => Exit::Error,
    }
}

/// What to try, by the code of the error. The server's own remedies are for programs: where they name a route, a header
/// or a field, this says the same in terms of the command line.
fn hint(code: &str) -> Option<String> {
    let ours = match code {
        "missing_token" | "invalid_token" => {
            "pass a token with --token-file, CODEQ_TOKEN or a profile (`codeq profile add`); \
             `codeq token inspect` shows what a JWT contains"
        }
        // Only the worker stream refuses a token like this.
        "unauthenticated" => {
            "pass a worker's token, one that the server's workerAuth accepts, with --token-file, CODEQ_TOKEN or a \
             profile (`codeq profile add`); `codeq token inspect` shows what a JWT contains"
        }
        "forbidden" => "use a token that has the scope, event type or role named above",
        "not_found" => {
            "check the name and the tenant of the token; finished tasks are removed when their \
             retention ends"
        }
        "no_such_route" | "method_not_allowed" | "unsupported_encoding" | "unknown_field" => {
            "check that --url is a codeQ server of this version: `codeq version --server`"
        }
        "invalid_path"
        | "invalid_body"
        | "invalid_parameter"
        | "invalid_count"
        | "error_required"
        | "invalid_event_id"
        | "invalid_filter"
        | "invalid_topic_policy"
        | "invalid_subscription" => "correct the value named above; --help lists the options",
        "rate_limited"
        | "overloaded"
        | "identity_unavailable"
        | "too_many_streams"
        | "too_many_waiting"
        | "artifact_unavailable"
        | "artifact_upload_failed" => {
            "try again later; if it persists, ask the operator of the server"
        }
        "not_owner" => "stop working on the task: another worker has claimed it",
        "finished" => "see how it ended: codeq task get ID",
        "not_finished" => {
            "see its status: codeq task get ID; to start over, cancel it first: codeq task cancel ID"
        }
        "no_callback" => "check that the task was enqueued with --webhook and is finished",
        "invalid_secret" => {
            "use a file with whsec_ and the base64 of 24 to 64 bytes, or 16 to 128 visible ASCII \
             characters; without --secret-file, the server creates a secret"
        }
        "invalid_overlap" => "use an --overlap of 0s to 30d",
        "invalid_max_run" => "use a --max-run of 1s to 30d",
        "invalid_idempotency_key" => "use an --idempotency-key of at most 256 bytes",
        "atomic_spans_shards" => "enqueue the tasks one by one",
        "invalid_webhook" | "invalid_callback_url" => {
            "use an http or https URL without user and password; its address must be public unless \
             the operator allows it"
        }
        "backup_not_configured" => {
            "set backup.target in the server's configuration and reload it; a `codeq dev` server has none: stop the \
             server and run `codeq backup DATA_DIR BACKUP_DIR`"
        }
        "too_many_commands" => "name fewer queues",
        "invalid_cursor" => "run the command again",
        "invalid_worker" => "use a token with a shorter subject",
        "failed" => {
            "check whether the change was made before you try again, or use the same --idempotency-key; the \
             operator must check the server's log"
        }
        "internal" => "this is a bug in the server: report the request named above",
        code => {
            let known = Code::ALL.iter().find(|known| known.text() == code)?;
            return Some(known.remedy().trim_end_matches('.').to_owned());
        }
    };
    Some(ours.to_owned())
}

fn unknown_hint(status: u16) -> String {
    match status {
        300..=399 => "use the URL that the server redirects to",
        _ => "check that --url is a codeQ server: `codeq doctor`",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(status: u16, code: &str) -> Failure {
        let (code, message) = (code.to_owned(), "no".to_owned());
        let detail = "no, because".to_owned();
        let request_id = Some("r-1".to_owned());
        Error::Api { status, code, message, detail, retry_after: None, request_id }.into()
    }

    #[test]
    fn every_error_has_an_exit_code_and_a_hint() {
        for (status, code, exit) in [
            (400, "invalid_body", Exit::Error),
            (401, "missing_token", Exit::Denied),
            (403, "forbidden", Exit::Denied),
            (404, "not_found", Exit::NotFound),
            (409, "finished", Exit::Conflict),
            (422, "idempotency_conflict", Exit::Conflict),
            (503, "overloaded", Exit::Error),
            (302, "", Exit::Error),
        ] {
            let failure = api(status, code);
            assert_eq!(failure.exit, exit, "{status} {code}");
            assert!(failure.hint.len() > 5 && !failure.hint.ends_with('.'), "{failure}");
        }
        assert_eq!(Failure::from(Error::Timeout).exit, Exit::Timeout);
        assert_eq!(
            api(404, "not_found").about("task x").to_string().lines().next(),
            Some("codeq: task x: no, because (not_found, request r-1)")
        );
    }
    /// Neither routes nor headers nor names in JSON.
    #[test]
    fn hints_speak_of_the_command_line() {
        for code in Code::ALL {
            let hint = hint(code.text()).unwrap();
            let is_json = |word: &str| {
                let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
                let is_camel = word.contains(|c: char| c.is_ascii_uppercase()) && word != "codeQ";
                is_camel && word.starts_with(|c: char| c.is_ascii_lowercase())
            };
            assert!(!hint.split_whitespace().any(is_json), "{code:?}: {hint}");
            let of_programs = "/v1/ GET POST header body field parameter Retry-After `detail` \
                               `error` `atomic` `commands` `count` `webhook`";
            let named = of_programs.split_whitespace().find(|name| hint.contains(name));
            assert_eq!(named, None, "{code:?}: {hint}");
        }
    }
}
