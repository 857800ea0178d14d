//! The steps common to every request.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use codeq_auth::{AuthError, Principal, Refusal, bearer_token, display_identity};
use codeq_net::Peer;
use futures_util::FutureExt;
use tracing::Instrument;

use super::fields::unknown_parameter;
use super::json;
use super::problem::Problem;
use super::request_context::RequestContext;
use super::routes::{Access, BodyLimit, Route, Verb};
use super::{body, response};
use crate::app::App;
use crate::audit::{Action, Recording};
use crate::config::UnknownFields;
use crate::limits::budget::{HeldFor, Hold, Share};
use crate::limits::{Allowance, LimitScope};
use crate::observe::trace::{self, TraceContext};
use crate::request_id::{REQUEST_ID, request_id};
use crate::service::permission::{self, MayAdminister, MayOperate};
use crate::service::{Code, ServiceError};

/// Memory charged per request, without its body or a large response.
const REQUEST_BYTES: usize = 4 << 10;

const HINT: HeaderName = HeaderName::from_static("x-codeq-hint");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Facts about a request, for the response headers and the log line.
struct Seen {
    request_id: String,
    method: Method,
    path: &'static str,
    /// The path as received, if the configuration allows logging it.
    shown: Option<String>,
    operation: &'static str,
    start: Instant,
    tenant: Option<Arc<str>>,
    subject: Option<Arc<str>>,
    code: Option<Code>,
    peer: Option<SocketAddr>,
    /// Suppresses the log line of a request whose token was refused, if too many refusals were logged recently.
    quiet: bool,
    share: Option<Share>,
    allowance: Option<(LimitScope, Allowance)>,
    /// The entry in the audit log, for an action of an admin.
    recording: Option<Recording>,
}

impl Seen {
    fn new(app: &App, request: &Request, path: &'static str, operation: &'static str) -> Seen {
        Seen {
            request_id: request_id(request.headers()),
            method: request.method().clone(),
            path,
            shown: app.request_options.shows_paths.then(|| request.uri().path().to_owned()),
            operation,
            start: Instant::now(),
            tenant: None,
            subject: None,
            code: None,
            peer: request.extensions().get::<Peer>().map(|peer| peer.addr),
            quiet: false,
            share: None,
            allowance: None,
            recording: None,
        }
    }
}

/// Handles a request to a route.
pub async fn run(app: Arc<App>, route: &'static Route, request: Request) -> Response {
    let mut seen = Seen::new(&app, &request, route.path, route.operation);
    let parent = trace_context(request.headers());
    let span = trace::request_span(route.operation, seen.method.as_str(), parent.as_ref());
    let served = {
        // Pinned before it is wrapped: the future is large, and each wrapper would move it.
        let serving = pin!(serve(&app, route, request, parent, &mut seen));
        AssertUnwindSafe(serving.instrument(span.clone())).catch_unwind().await
    };
    let answer = served.unwrap_or_else(|_| {
        tracing::error!(target: "codeq::http", operation = route.operation, "handler panicked");
        Err(ServiceError::unexpected().into())
    });
    let answer = answer.and_then(|response| counted(route, &seen, response));
    let response = finish(&app, &mut seen, answer);
    if let Some(recording) = seen.recording.take() {
        recording.done(response.status().as_u16(), seen.code.map(Code::text)).await;
    }
    trace::answered(&span, seen.method.as_str(), seen.path, response.status().as_u16());
    response
}

/// Answers a request that matches no route.
pub async fn refuse(app: Arc<App>, request: Request, problem: Problem) -> Response {
    let mut seen = Seen::new(&app, &request, "", "none");
    finish(&app, &mut seen, Err(problem))
}

async fn serve(
    app: &Arc<App>,
    route: &'static Route,
    request: Request,
    trace: Option<TraceContext>,
    seen: &mut Seen,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let caller = admit(app, route, &parts.headers, seen).await?;
    if is_audited(route, &caller) {
        seen.recording = Some(recording(app, route, &caller, &parts, seen));
    }
    let unknown = app.request_options.unknown_fields;
    if unknown == UnknownFields::Refuse {
        check_query(route, parts.uri.query().unwrap_or_default())?;
    }
    let peer = parts.extensions.get::<Peer>();
    let (share, hold) = hold_request(app, route, &caller, peer)?;
    let peer = peer.map(|peer| peer.addr.ip());
    seen.share = Some(share.clone()).filter(|_| route.access != Access::Open);
    let params = path_params(route, &mut parts).await?;
    if let (Some(recording), Some(params)) = (&mut seen.recording, &params) {
        params.iter().for_each(|(name, value)| recording.parameter(name, value));
    }
    let max = match route.body {
        BodyLimit::Batch => app.request_options.batch_body_max,
        BodyLimit::Small | BodyLimit::None => app.request_options.body_max,
    };
    let (bytes, _hold) = match route.body {
        BodyLimit::None => {
            if unknown == UnknownFields::Refuse {
                body::none(&app.request_options, body).await?;
            }
            (Bytes::new(), Some(hold))
        }
        _ => body::read(&app.request_options, &parts, body, max, hold).await?,
    };
    if let Some(recording) = &mut seen.recording {
        recording.body(&bytes);
    }
    let context = RequestContext {
        app: Arc::clone(app),
        route,
        caller,
        params,
        query: parts.uri.query().unwrap_or_default().to_owned(),
        peer,
        headers: parts.headers,
        body: json::Body { bytes, unknown },
        trace,
        share,
    };
    let hint = queue_hint(&context).await;
    let mut answer = (route.handler)(context).await?;
    if let Some(hint) = hint {
        answer.headers_mut().insert(HINT, hint);
    }
    Ok(answer)
}

/// Whether the call is recorded in the audit log: it may change something, and the caller acts as an admin. On a route
/// for any token, admins may change what belongs to others.
fn is_audited(route: &Route, caller: &Principal) -> bool {
    let as_admin = match route.access {
        Access::Admin | Access::Operator => true,
        Access::Any => caller.admin,
        Access::Open | Access::Producer | Access::Worker(_) => false,
    };
    as_admin && route.verb != Verb::Get
}

/// Begins an entry in the audit log. Path parameters and body follow once they are read.
fn recording(
    app: &App,
    route: &Route,
    caller: &Principal,
    parts: &Parts,
    seen: &Seen,
) -> Recording {
    let action = Action {
        at: app.times.timestamp(app.service.now().wall),
        tenant_id: Arc::clone(&caller.tenant),
        subject: display_identity(&caller.subject).into_owned(),
        operation: route.operation,
        parameters: serde_json::Map::new(),
        body: None,
        remote_address: seen.peer.map(|peer| peer.ip()),
        request_id: seen.request_id.clone(),
        status: None,
        code: None,
    };
    let mut recording = Recording::new(&app.service.audit, action);
    let query = parts.uri.query().unwrap_or_default();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        if route.query.contains(&&*name) {
            recording.parameter(&name, &value);
        }
    }
    recording
}

/// A hint header for an unknown queue, whose name may be a typo. Not an error, because a queue can
/// be empty for a while.
async fn queue_hint(context: &RequestContext) -> Option<HeaderValue> {
    let command = if context.route.path.contains("{command}") {
        Cow::Borrowed(context.path("command"))
    } else if context.route.query.contains(&"command") {
        context.param("command")?
    } else {
        return None;
    };
    let hint = context.service().missing_queue(&context.caller, &command).await.ok()??;
    let plain = |letter: char| letter.is_ascii_graphic() || letter == ' ';
    let escape = |letter: char| match plain(letter) {
        true => letter.to_string(),
        false => letter.escape_unicode().to_string(),
    };
    HeaderValue::try_from(hint.chars().map(escape).collect::<String>()).ok()
}

/// Refuses unknown query parameters, and those that are given twice: it is not clear which one is meant.
fn check_query(route: &Route, query: &str) -> Result<(), ServiceError> {
    let mut given = Vec::new();
    for (name, _) in url::form_urlencoded::parse(query.as_bytes()) {
        let Some(known) = route.query.iter().find(|known| **known == name) else {
            return Err(unknown_parameter(&name, route.query));
        };
        if given.contains(known) {
            let text = format!("'{known}' is given more than once");
            return Err(ServiceError::new(Code::InvalidParameter, text).field(*known));
        }
        given.push(*known);
    }
    Ok(())
}

/// Charges memory for a request. Open routes never fail here, so probes work under memory pressure:
/// they have no body and small responses.
fn hold_request(
    app: &App,
    route: &Route,
    caller: &Principal,
    peer: Option<&Peer>,
) -> Result<(Share, Hold), Problem> {
    if route.access == Access::Open {
        let share = app.budget.strangers();
        let hold = share.hold_anyway(HeldFor::Requests, REQUEST_BYTES);
        return Ok((share, hold));
    }
    let share = app.budget.tenant(&caller.tenant).on(peer.map(|peer| &peer.held));
    let mut hold = share.nothing(HeldFor::Requests).of_producer(route.access == Access::Producer);
    if !hold.grow_to(REQUEST_BYTES) {
        return Err(ServiceError::overloaded().into());
    }
    Ok((share, hold))
}

/// Charges the response until the client has read it. Refuses a read that does not fit. A completed write is always
/// answered, even if its response exceeds the budget; a claim has already checked that its tasks fit.
fn counted(route: &Route, seen: &Seen, response: Response) -> Result<Response, Problem> {
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let (Some(share), true) = (&seen.share, bytes > REQUEST_BYTES) else {
        return Ok(response);
    };
    let hold = match route.verb {
        Verb::Get => share.hold(HeldFor::Answers, bytes).ok_or_else(ServiceError::overloaded)?,
        _ => share.hold_anyway(HeldFor::Answers, bytes),
    };
    Ok(response.map(|body| Body::new(response::Counted::new(body, hold))))
}

/// Authenticates and authorizes the caller, and applies the rate limit.
async fn admit(
    app: &App,
    route: &Route,
    headers: &HeaderMap,
    seen: &mut Seen,
) -> Result<Principal, Problem> {
    let Some(role) = route.access.role() else {
        return Ok(Principal::default());
    };
    let caller = match bearer_token(headers) {
        Ok(token) => app.auth.authenticate(token, role).await,
        Err(error) => Err(error),
    };
    let caller = caller.map_err(|error| auth_problem(route, error))?;
    seen.tenant = Some(Arc::clone(&caller.tenant));
    seen.subject = Some(Arc::clone(&caller.subject));
    match route.access {
        Access::Worker(scope) => permission::scope(&caller, scope)?,
        Access::Admin => {
            MayAdminister::of(&caller)?;
        }
        Access::Operator => {
            MayOperate::of(&caller)?;
        }
        _ => {}
    }
    let scope = match route.access {
        Access::Admin | Access::Operator => LimitScope::Admin,
        Access::Worker(_) => LimitScope::Worker,
        _ if caller.producer => LimitScope::Producer,
        _ => LimitScope::Worker,
    };
    if let Some(allowance) = app.limiter.take(&caller.tenant, scope) {
        seen.allowance = Some((scope, allowance));
        if !allowance.allowed {
            app.metrics.rate_limited(scope.name(), route.operation);
            return Err(ServiceError::rate_limited(scope.name(), allowance.reset_seconds).into());
        }
    }
    Ok(caller)
}

/// Counts a refused token, and logs why it was refused unless too many were refused recently.
fn token_refused(app: &App, seen: &mut Seen, refusal: &Refusal) {
    let Some(unlogged) = app.metrics.token_refused(refusal.reason) else {
        seen.quiet = true;
        return;
    };
    tracing::warn!(
        target: "codeq::auth",
        request_id = %seen.request_id,
        method = %seen.method,
        path = seen.shown.as_deref().unwrap_or(seen.path),
        peer = seen.peer.map(tracing::field::display),
        reason = refusal.reason.name(),
        detail = refusal.detail,
        unlogged,
        "a token was refused"
    );
}

/// Converts an authentication error to a response that names the scope of the route.
fn auth_problem(route: &Route, error: AuthError) -> Problem {
    match (error, route.access) {
        (AuthError::WrongKind(why), Access::Worker(scope)) => {
            ServiceError::forbidden(why).scope(scope.name()).into()
        }
        (error, _) => error.into(),
    }
}

/// The decoded path parameters; `None` if the route has none.
async fn path_params(
    route: &Route,
    parts: &mut Parts,
) -> Result<Option<RawPathParams>, ServiceError> {
    if !route.path.contains('{') {
        return Ok(None);
    }
    let params = RawPathParams::from_request_parts(parts, &()).await;
    params.map(Some).map_err(|_| ServiceError::new(Code::InvalidPath, "invalid path"))
}

fn finish(app: &App, seen: &mut Seen, answer: Result<Response, Problem>) -> Response {
    let mut response = answer.unwrap_or_else(|problem| {
        let code = problem.error.code;
        seen.code = Some(code);
        if let Some(refusal) = &problem.refusal {
            token_refused(app, seen, refusal);
        }
        let refused = seen.tenant.as_ref().zip(code.refused());
        if let Some((tenant, what)) = refused {
            app.metrics.refused(tenant, what);
        }
        problem.into_response(&seen.request_id, seen.operation)
    });
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some((scope, allowance)) = seen.allowance {
        rate_headers(headers, scope, allowance);
    }
    let took = seen.start.elapsed();
    let status = response.status();
    app.metrics.answered(seen.operation, seen.method.as_str(), status.as_u16(), took);
    if !seen.quiet {
        log(seen, status, took);
    }
    if let Ok(id) = HeaderValue::try_from(std::mem::take(&mut seen.request_id)) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn rate_headers(headers: &mut HeaderMap, scope: LimitScope, allowance: Allowance) {
    let name = scope.name();
    let policy = format!("\"{name}\";q={};w=60", allowance.limit.requests_per_minute);
    let state = format!("\"{name}\";r={};t={}", allowance.remaining, allowance.reset_seconds);
    for (header, text) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, state)] {
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(header, value);
        }
    }
}

fn log(seen: &Seen, status: StatusCode, took: Duration) {
    let took_ms = took.as_micros() as f64 / 1_000.0;
    let (tenant, subject) = (seen.tenant.as_deref(), seen.subject.as_deref());
    tracing::info!(
        target: "codeq::http",
        request_id = %seen.request_id,
        method = %seen.method,
        path = seen.shown.as_deref().unwrap_or(seen.path),
        operation = seen.operation,
        status = status.as_u16(),
        took_ms,
        tenant,
        subject,
        code = seen.code.map_or("", Code::text),
        "request"
    );
}

/// The client's trace context, if it sent one.
fn trace_context(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    trace::parse(text("traceparent"), text("tracestate"))
}

/// A 204 response.
pub fn no_content() -> Response {
    response::status_only(StatusCode::NO_CONTENT)
}
