//! Formats log lines: JSON for machines, text for people.
//!
//! One event is always one line. Clients choose command names, subjects and request ids, so
//! characters that end a line, control a terminal or change text direction are escaped.

use std::fmt::{self, Write};

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::config::LogFormat;

/// Maximum bytes of a field's value. The rest is cut off.
const VALUE_BYTES_MAX: usize = 4_096;
/// Names that the line itself uses. A field with such a name gets a prefix.
const RESERVED: [&str; 6] = ["timestamp", "level", "target", "message", "trace_id", "span_id"];

/// The target of request log lines.
const REQUESTS: &str = "codeq::http";
/// Time of day, for lines that people read live.
const CLOCK: &str = "%H:%M:%S";

/// Formats events as lines.
#[derive(Debug, Clone, Copy)]
pub struct Line(pub LogFormat);

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (level, target) = (event.metadata().level(), event.metadata().target());
        if self.0 == LogFormat::Short && target == REQUESTS && *level == Level::INFO {
            let mut request = RequestLine::default();
            event.record(&mut request);
            return writeln!(writer, "{} {request}", jiff::Timestamp::now().strftime(CLOCK));
        }
        let mut fields = Fields::new(self.0);
        event.record(&mut fields);
        fields.trace();
        write_line(&mut writer, self.0, level, target, &fields.message, &fields.rest)
    }
}

/// The line that reports lost lines. Formatted without an event, because an event would itself be queued.
pub fn notice(format: LogFormat, lost: u64) -> String {
    const MESSAGE: &str = "log lines were lost: they came faster than they were read";
    let rest = match format {
        LogFormat::Json => format!(",\"lost\":{lost}"),
        LogFormat::Text | LogFormat::Short => format!(" lost={lost}"),
    };
    whole(format, "WARN", "codeq::logs", MESSAGE, &rest)
}

/// A line in the log's format, for messages before the log is set up or after it is gone.
pub fn line(format: LogFormat, level: &str, target: &str, message: &str) -> String {
    let mut escaped = String::new();
    escape(&mut escaped, message);
    whole(format, level, target, &escaped, "")
}

fn whole(format: LogFormat, level: &str, target: &str, message: &str, rest: &str) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_line(&mut text, format, level, target, message, rest);
    text
}

fn write_line(
    to: &mut impl Write,
    format: LogFormat,
    level: impl fmt::Display,
    target: &str,
    message: &str,
    rest: &str,
) -> fmt::Result {
    let at = jiff::Timestamp::now();
    match format {
        LogFormat::Json => writeln!(
            to,
            r#"{{"timestamp":"{at:.6}","level":"{level}","target":"{target}","message":"{message}"{rest}}}"#
        ),
        LogFormat::Text => writeln!(to, "{at:.6} {level:>5} {target}: {message}{rest}"),
        LogFormat::Short => {
            writeln!(to, "{} {level} {target}: {message}{rest}", at.strftime(CLOCK))
        }
    }
}

/// A request in short form: `POST /v1/codeq/tasks 202 0.4 ms`, plus the error code if it was
/// refused.
#[derive(Default)]
struct RequestLine {
    method: String,
    path: String,
    status: u64,
    took_ms: f64,
    code: String,
}

impl fmt::Display for RequestLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestLine { method, path, status, took_ms, code } = self;
        write!(f, "{method} {path} {status} {took_ms:.1} ms")?;
        if code.is_empty() { Ok(()) } else { write!(f, " {code}") }
    }
}

impl Visit for RequestLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        let to = match field.name() {
            "method" => &mut self.method,
            "path" => &mut self.path,
            "code" => &mut self.code,
            _ => return,
        };
        escape(to, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "status" {
            self.status = value;
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "took_ms" {
            self.took_ms = value;
        }
    }
}

/// The formatted fields of one event.
struct Fields {
    format: LogFormat,
    message: String,
    rest: String,
    scratch: String,
}

impl Fields {
    fn new(format: LogFormat) -> Fields {
        let (message, rest, scratch) = (String::new(), String::new(), String::new());
        Fields { format, message, rest, scratch }
    }

    /// Adds the ids of the current span, to link log lines and traces.
    fn trace(&mut self) {
        let ids = Context::map_current(|context| {
            let span = context.span();
            let ids = span.span_context();
            ids.is_valid().then(|| (ids.trace_id().to_string(), ids.span_id().to_string()))
        });
        if let Some((trace, span)) = ids {
            self.name("trace_id");
            self.text(&trace);
            self.name("span_id");
            self.text(&span);
        }
    }

    fn key(&mut self, field: &Field) {
        let name = field.name();
        let name = name.strip_prefix("r#").unwrap_or(name);
        if RESERVED.contains(&name) {
            self.name(&format!("field_{name}"));
        } else {
            self.name(name);
        }
    }

    fn name(&mut self, name: &str) {
        match self.format {
            LogFormat::Json => {
                self.rest.push_str(",\"");
                escape(&mut self.rest, name);
                self.rest.push_str("\":");
            }
            LogFormat::Text | LogFormat::Short => {
                self.rest.push(' ');
                self.rest.push_str(name);
                self.rest.push('=');
            }
        }
    }

    fn text(&mut self, value: &str) {
        let bare = self.format != LogFormat::Json
            && !value.is_empty()
            && value.chars().all(|c| c.is_alphanumeric() || "-_.:/+@*".contains(c));
        if bare {
            self.rest.push_str(codeq_core::names::cut(value, VALUE_BYTES_MAX));
        } else {
            self.rest.push('"');
            escape(&mut self.rest, value);
            self.rest.push('"');
        }
    }

    fn plain(&mut self, field: &Field, value: impl fmt::Display) {
        self.key(field);
        // Writing to a `String` cannot fail.
        let _ = write!(self.rest, "{value}");
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            escape(&mut self.message, value);
        } else {
            self.key(field);
            self.text(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        // If formatting a value fails, show the part written so far.
        let _ = write!(scratch, "{value:?}");
        self.record_str(field, &scratch);
        self.scratch = scratch;
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.plain(field, value);
        } else {
            self.key(field);
            self.text(&value.to_string());
        }
    }
}

/// Escapes text so that it is safe inside a JSON string and on a terminal.
fn escape(to: &mut String, text: &str) {
    let cut = codeq_core::names::cut(text, VALUE_BYTES_MAX);
    for c in cut.chars() {
        match c {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            c if is_unsafe(c) => {
                // Writing to a `String` cannot fail.
                let _ = write!(to, "\\u{:04x}", u32::from(c));
            }
            c => to.push(c),
        }
    }
    if cut.len() < text.len() {
        to.push('…');
    }
}

/// Control characters, line and paragraph separators, and marks that change text direction.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_characters_that_forge_lines() {
        let mut to = String::new();
        escape(&mut to, "a\n\"b\"\\\u{1b}[31m\u{9b}0m\u{2028}\u{202e}é");
        assert_eq!(to, r#"a\n\"b\"\\\u001b[31m\u009b0m\u2028\u202eé"#);
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let mut to = String::new();
        escape(&mut to, &"é".repeat(VALUE_BYTES_MAX));
        assert_eq!(to.chars().count(), VALUE_BYTES_MAX / 2 + 1);
        assert!(to.ends_with("é…"));
    }
}
