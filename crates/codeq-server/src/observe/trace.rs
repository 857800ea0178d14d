//! Trace context of requests and tasks, as W3C Trace Context.
//!
//! Spans are `tracing` spans. They go to the collector if one is configured, and otherwise cost
//! next to nothing.

use std::str::FromStr;

use codeq_core::limits::{TRACE_PARENT_BYTES_MAX, TRACE_STATE_BYTES_MAX};
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::metrics::known_method;

/// The target of all spans here, which the subscriber filters on.
pub(super) const TARGET: &str = "codeq::trace";
/// Length of a version 00 `traceparent`.
const PARENT_BYTES: usize = 55;
/// The known flags: sampled, and random (level 2).
const KNOWN_FLAGS: u8 = 0b11;
/// Maximum members of a `tracestate`.
const STATE_MEMBERS_MAX: usize = 32;

/// A valid trace context from a client or a stored task.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceContext {
    parent: String,
    state: Option<String>,
    span: SpanContext,
}

impl TraceContext {
    /// The context as a version 00 `traceparent`.
    pub fn traceparent(&self) -> &str {
        &self.parent
    }

    /// The context's `tracestate`.
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    fn remote(&self) -> Context {
        Context::new().with_remote_span_context(self.span.clone())
    }
}

/// Parses the two headers. A bad `traceparent` means no context; a bad `tracestate` is dropped.
///
/// Parsed here because OpenTelemetry's propagator accepts headers that the specification forbids: ids of
/// any length, signs, a trailing dash, repeated keys. What is accepted is stored with the task and sent to
/// webhooks. The propagator also drops the random flag. A test compares the two.
pub fn parse(traceparent: Option<&str>, tracestate: Option<&str>) -> Option<TraceContext> {
    let text = traceparent?.trim_matches([' ', '\t']);
    let (trace, span, flags) = parse_parent(text)?;
    let state = tracestate.and_then(parse_state);
    let (trace_state, state) = state.unzip();
    let trace_state = trace_state.unwrap_or_default();
    let parent = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
    let span = SpanContext::new(
        TraceId::from(trace),
        SpanId::from(span),
        TraceFlags::new(flags),
        true,
        trace_state,
    );
    Some(TraceContext { parent, state, span })
}

/// Parses `version-traceid-parentid-flags`. Ignores anything that later versions append.
fn parse_parent(text: &str) -> Option<(u128, u64, u8)> {
    if text.len() > TRACE_PARENT_BYTES_MAX {
        return None;
    }
    let (known, more) = text.split_at_checked(PARENT_BYTES)?;
    let mut parts = known.split('-');
    let mut next = |digits| parts.next().and_then(|part| hex(part, digits));
    let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
    let extended = more.is_empty() || (version > 0 && more.starts_with('-'));
    if version == 0xff || !extended || trace == 0 || span == 0 {
        return None;
    }
    Some((trace, u64::try_from(span).ok()?, u8::try_from(flags).ok()? & KNOWN_FLAGS))
}

/// Parses exactly this many lowercase hex digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let good = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if good { u128::from_str_radix(text, 16).ok() } else { None }
}

/// Normalizes a list: without white space and empty members. `None` if a member is invalid or a key
/// repeats.
fn parse_state(text: &str) -> Option<(TraceState, String)> {
    if text.len() > TRACE_STATE_BYTES_MAX {
        return None;
    }
    let members = text.split(',').map(|member| member.trim_matches([' ', '\t']));
    let members: Vec<&str> = members.filter(|member| !member.is_empty()).collect();
    if members.is_empty() || members.len() > STATE_MEMBERS_MAX {
        return None;
    }
    let mut keys: Vec<&str> = Vec::with_capacity(members.len());
    for member in &members {
        let (key, value) = member.split_once('=')?;
        if !is_state_key(key) || !is_state_value(value) || keys.contains(&key) {
            return None;
        }
        keys.push(key);
    }
    let list = members.join(",");
    Some((TraceState::from_str(&list).ok()?, list))
}

/// Either `name` or `tenant@vendor`.
fn is_state_key(key: &str) -> bool {
    let part = |text: &str, max: usize, digit_first: bool| {
        let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/".contains(&b);
        let first = |b: &u8| b.is_ascii_lowercase() || (digit_first && b.is_ascii_digit());
        text.len() <= max && text.as_bytes().first().is_some_and(first) && text.bytes().all(good)
    };
    match key.split_once('@') {
        Some((tenant, vendor)) => part(tenant, 241, true) && part(vendor, 14, false),
        None => part(key, 256, false),
    }
}

fn is_state_value(value: &str) -> bool {
    let good = |b: u8| matches!(b, b' '..=b'~') && b != b',' && b != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(good) && !value.ends_with(' ')
}

/// The span of a request: a child of the client's span, or the root of a new trace.
pub fn request_span(operation: &'static str, method: &str, parent: Option<&TraceContext>) -> Span {
    let span = tracing::info_span!(
        target: TARGET,
        parent: None,
        "request",
        otel.name = operation,
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = known_method(method),
        http.route = Empty,
        http.response.status_code = Empty,
        codeq.operation = operation,
    );
    if let Some(parent) = parent {
        // Fails only if no subscriber is installed.
        let _ = span.set_parent(parent.remote());
    }
    span
}

/// Records the response in a request's span. `route` is the template, not the path.
pub fn answered(span: &Span, method: &str, route: &str, status: u16) {
    if span.is_disabled() {
        return;
    }
    // A span that was entered has started, and a field can no longer change its name.
    span.context().span().update_name(format!("{} {route}", known_method(method)));
    span.record("http.route", route);
    span.record("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.record("otel.status_code", "ERROR");
    }
}

/// The span of an operation on a task: `enqueue`, `claim`, `heartbeat`, `submit`, `nack`, `abandon`
/// or `callback`. With the context stored on the task (`traceparent`, and `tracestate` or an empty
/// string) it continues the producer's trace and links to the current span, which is the request's.
/// Without one, it is a child of the request's span.
pub fn task_span(
    operation: &'static str,
    command: &str,
    task_id: &str,
    tenant: &str,
    stored: Option<(&str, &str)>,
) -> Span {
    let (kind, class) = kind_of(operation);
    let span = tracing::info_span!(
        target: TARGET,
        "task",
        otel.name = format!("{operation} {command}"),
        otel.kind = kind,
        otel.status_code = Empty,
        messaging.system = "codeq",
        messaging.operation.name = operation,
        messaging.operation.r#type = class,
        messaging.destination.name = command,
        messaging.message.id = task_id,
        codeq.tenant = tenant,
    );
    if span.is_disabled() {
        return span;
    }
    if let Some(stored) = stored.and_then(|(parent, state)| parse(Some(parent), Some(state))) {
        let request = Context::map_current(|context| context.span().span_context().clone());
        // Fails only if no subscriber is installed.
        let _ = span.set_parent(stored.remote());
        span.add_link(request);
    }
    span
}

/// The span kind, and the operation type of the messaging conventions, if there is one.
fn kind_of(operation: &str) -> (&'static str, Option<&'static str>) {
    match operation {
        "enqueue" => ("producer", Some("send")),
        "claim" => ("consumer", Some("receive")),
        "submit" | "nack" | "abandon" => ("internal", Some("settle")),
        "callback" => ("client", Some("send")),
        _ => ("internal", None),
    }
}

/// Whether traces are collected.
pub fn is_on() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::INFO)
}

/// The current span's context as `traceparent` and `tracestate`; `None` if tracing is off. An
/// enqueue without its own context stores this one.
pub fn current() -> Option<(String, Option<String>)> {
    Context::map_current(|context| {
        let span = context.span();
        let ids = span.span_context();
        if !ids.is_valid() {
            return None;
        }
        let (trace, parent) = (ids.trace_id(), ids.span_id());
        let flags = ids.trace_flags().to_u8() & KNOWN_FLAGS;
        let state = Some(ids.trace_state().header()).filter(|state| !state.is_empty());
        Some((format!("00-{trace}-{parent}-{flags:02x}"), state))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parent(text: &str) -> Option<String> {
        parse(Some(text), None).map(|context| context.traceparent().to_owned())
    }

    #[test]
    fn reads_parents() {
        assert_eq!(parent(GOOD).as_deref(), Some(GOOD));
        assert_eq!(parent(&format!(" {GOOD}\t")).as_deref(), Some(GOOD));
        let later = GOOD.replacen("00", "cc", 1);
        assert_eq!(parent(&later).as_deref(), Some(GOOD));
        assert_eq!(parent(&format!("{later}-what-comes")).as_deref(), Some(GOOD));
        let flags = GOOD.replace("-01", "-fd");
        assert_eq!(parent(&flags).as_deref(), Some(GOOD), "unknown flags are not passed on");
        let unsampled = GOOD.replace("-01", "-00");
        assert_eq!(parent(&unsampled).as_deref(), Some(&*unsampled));
        assert!(!parse(Some(&unsampled), None).unwrap().span.is_sampled());
    }

    #[test]
    fn refuses_bad_parents() {
        let long = format!("cc{}-{}", &GOOD[2..], "x".repeat(TRACE_PARENT_BYTES_MAX));
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-"),
            &format!("{GOOD}0"),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replacen("00", "0G", 1),
            &GOOD.to_uppercase(),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &GOOD.replace('-', "_"),
            &GOOD.replace("4bf9", "é9f"),
            &GOOD.replace("4bf9", "+bf9"),
            &format!("{}x", GOOD.replacen("00", "cc", 1)),
            &long,
        ] {
            assert_eq!(parent(bad), None, "{bad:?}");
        }
        assert_eq!(parse(None, Some("a=b")), None);
    }

    #[test]
    fn the_propagator_of_opentelemetry_accepts_more() {
        use opentelemetry::propagation::TextMapPropagator;
        let extract = |parent: &str, state: &str| {
            let header = |name: &str, text: &str| (name.to_owned(), text.to_owned());
            let headers = [header("traceparent", parent), header("tracestate", state)];
            let headers = std::collections::HashMap::from(headers);
            let propagator = opentelemetry_sdk::propagation::TraceContextPropagator::new();
            let context = propagator.extract_with_context(&Context::new(), &headers);
            context.span().span_context().clone()
        };
        for bad in [
            "00-1-1-1",
            &format!("{GOOD}-"),
            &GOOD.replacen("00", "0", 1),
            &GOOD.replacen("00", "+0", 1),
            &GOOD.replace("4bf9", "+bf9"),
            &GOOD.replace("-01", "-+1"),
            &GOOD.replacen("00", "CC", 1),
        ] {
            assert!(extract(bad, "").is_valid() && parent(bad).is_none(), "{bad:?}");
        }
        for bad in ["a=1,a=2", "a==b", &format!("a=b,{}", " ".repeat(600))] {
            assert!(!extract(GOOD, bad).trace_state().header().is_empty(), "{bad:?}");
            assert_eq!(parse(Some(GOOD), Some(bad)).unwrap().tracestate(), None, "{bad:?}");
        }
        let random = GOOD.replace("-01", "-03");
        assert_eq!(extract(&random, "").trace_flags(), TraceFlags::SAMPLED);
        assert_eq!(parent(&random).as_deref(), Some(&*random));
    }

    #[test]
    fn reads_states_or_drops_them() {
        let state =
            |text: &str| parse(Some(GOOD), Some(text)).unwrap().tracestate().map(str::to_owned);
        assert_eq!(state("a=1, b@v=2 ,,c=x y").as_deref(), Some("a=1,b@v=2,c=x y"));
        assert_eq!(state("1t@v=2").as_deref(), Some("1t@v=2"));
        let many = (0..33).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        let long = format!("a={}", "x".repeat(257));
        for bad in [
            "",
            ",",
            "a",
            "a=",
            "=b",
            "A=b",
            "1a=b",
            "a=b=c",
            "a=1,a=2",
            "a=\u{7f}",
            "a=é",
            "a@1v=x",
            "a\n=b",
            &many,
            &long,
            &format!("a=b,{}", " ".repeat(600)),
        ] {
            assert_eq!(state(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn spans_are_disabled_without_a_collector() {
        let context = parse(Some(GOOD), None);
        assert!(request_span("listTasks", "GET", context.as_ref()).is_disabled());
        let span = task_span("claim", "resize", "id", "acme", Some((GOOD, "")));
        assert!(span.is_disabled());
        answered(&span, "GET", "/v1/tasks", 200);
        assert_eq!(span.in_scope(current), None);
    }
}
