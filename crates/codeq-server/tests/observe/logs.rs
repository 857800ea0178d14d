//! Log lines with hostile fields.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use codeq_server::Config;
use codeq_server::config::LogFormat;
use codeq_server::observe::{subscriber, trace};
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

/// The bytes that were written.
#[derive(Clone, Default)]
pub struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// With a single subscriber in the process, `tracing` decides about a new call site by asking the current thread's. The
/// thread of another test's server has none and would disable the call site for every thread. A second subscriber, which
/// lives as long as the process, makes `tracing` ask both.
pub static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

/// Runs `work`, which logs into `subscriber`.
pub fn observed<T>(subscriber: impl Into<Dispatch>, work: impl FnOnce() -> T) -> T {
    LazyLock::force(&SECOND);
    tracing::dispatcher::with_default(&subscriber.into(), work)
}

fn lines(format: LogFormat, level: &str, log: impl FnOnce()) -> String {
    let config = Config { log_format: format, log_level: level.to_owned(), ..Config::default() };
    let sink = Sink::default();
    let to = sink.clone();
    let (subscriber, _guard) = subscriber(&config, move || to.clone()).unwrap();
    observed(subscriber, log);
    sink.text()
}

const HOSTILE: &str = "a\n2026-01-01T00:00:00Z ERROR forged\r\u{1b}[2K\u{9b}1A\u{2028}\u{202e}\"\\";

fn hostile_request() {
    tracing::info!(
        target: "codeq::http",
        request_id = HOSTILE,
        path = "/v1/codeq/tasks/{id}",
        subject = ?HOSTILE,
        tenant = %HOSTILE,
        status = 200_u16,
        took_ms = 1.5,
        nothing = f64::NAN,
        level = "mine",
        ok = true,
        "answered {HOSTILE}"
    );
}

#[test]
fn json_lines_are_flat_and_one_each() {
    let text = lines(LogFormat::Json, "info", || {
        hostile_request();
        tracing::debug!("not shown");
        tracing::warn!(r#type = "x", "second");
    });
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(!text.contains(['\u{1b}', '\u{9b}', '\r', '\u{2028}', '\u{202e}']), "{text:?}");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = &lines[0];
    assert_eq!(first["level"], "INFO");
    assert_eq!(first["target"], "codeq::http");
    assert_eq!(first["message"], format!("answered {HOSTILE}"));
    assert_eq!(first["request_id"], HOSTILE);
    assert_eq!(first["tenant"], HOSTILE);
    assert_eq!(first["subject"], format!("{HOSTILE:?}"));
    assert_eq!(first["path"], "/v1/codeq/tasks/{id}");
    assert_eq!(first["status"], 200);
    assert_eq!(first["took_ms"], 1.5);
    assert_eq!(first["nothing"], "NaN");
    assert_eq!(first["field_level"], "mine");
    assert_eq!(first["ok"], true);
    assert_eq!(first.get("trace_id"), None);
    let at = first["timestamp"].as_str().unwrap();
    assert!(at.ends_with('Z') && at.parse::<jiff::Timestamp>().is_ok(), "{at}");
    assert_eq!(lines[1]["type"], "x");
}

#[test]
fn text_lines_cannot_be_forged() {
    let text = lines(LogFormat::Text, "info", hostile_request);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.trim_end().chars().any(char::is_control), "{text:?}");
    assert!(!text.contains(['\u{2028}', '\u{202e}']), "{text:?}");
    let (at, rest) = text.split_once(' ').unwrap();
    assert!(at.parse::<jiff::Timestamp>().is_ok(), "{at}");
    assert!(rest.starts_with(r" INFO codeq::http: answered a\n2026-01-01"), "{rest}");
    assert!(rest.contains(r#" request_id="a\n2026-"#), "{rest}");
    assert!(rest.contains(r#" path="/v1/codeq/tasks/{id}" "#), "{rest}");
    assert!(rest.contains(" status=200 took_ms=1.5 "), "{rest}");
}

#[test]
fn levels_are_filters() {
    let text = lines(LogFormat::Text, "warn,codeq::http=debug", || {
        tracing::info!("too low");
        tracing::debug!(target: "codeq::http", "asked for");
        tracing::error!("always");
    });
    let messages: Vec<&str> = text.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(messages, ["for", "always"]);
    let bad = Config { log_level: "codeq=loud".to_owned(), ..Config::default() };
    let error = subscriber(&bad, io::sink).err().unwrap();
    assert!(error.starts_with("invalid logLevel"), "{error}");
}

#[test]
fn without_a_collector_no_span_is_made_at_any_level() {
    let text = lines(LogFormat::Text, "trace", || {
        let request = trace::request_span("listTasks", "GET", None);
        assert!(request.is_disabled());
        request.in_scope(|| {
            assert!(trace::task_span("claim", "resize", "t", "acme", None).is_disabled());
            assert_eq!(trace::current(), None);
            tracing::info!("inside");
        });
    });
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.contains("trace_id"), "{text}");
}

/// A log whose reader is gone.
struct Closed;

impl io::Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_log_that_nobody_reads_disturbs_nothing() {
    let (subscriber, _guard) = subscriber(&Config::default(), || Closed).unwrap();
    let done = observed(subscriber, || {
        tracing::error!("into the void");
        true
    });
    assert!(done);
}
