//! A request on its way to its handler.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::RawPathParams;
use axum::http::HeaderMap;
use axum::response::Response;
use codeq_auth::{AuthError, Principal, Reason, Refusal, bearer_token};
use futures_util::future::BoxFuture;

use super::json::Body;
use super::problem::Problem;
use super::routes::Route;
use super::wire::{ResultBody, TaskBody};
use crate::app::App;
use crate::limits::budget::{HeldFor, Hold, Share};
use crate::observe::trace::TraceContext;
use crate::service::{Code, Service, ServiceError};
use crate::times::{Times, Timestamp};
use codeq_core::command::Millis;
use codeq_core::view::{ResultRecord, Task};

/// The outcome of a handler.
pub type Answer = Result<Response, Problem>;
/// A request handler.
pub type Handler = fn(RequestContext) -> BoxFuture<'static, Answer>;

/// A request ready to be handled: its caller is authorized and its body has been read.
pub struct RequestContext {
    /// State shared by all requests.
    pub app: Arc<App>,
    /// The matched route.
    pub route: &'static Route,
    /// The authenticated caller; an empty principal on open routes.
    pub caller: Principal,
    /// The decoded path parameters.
    pub params: Option<RawPathParams>,
    /// The raw query string.
    pub query: String,
    /// The request headers.
    pub headers: HeaderMap,
    /// The body; empty if the route takes no fields.
    pub body: Body,
    /// The client's trace context, if it sent one.
    pub trace: Option<TraceContext>,
    /// The client's IP address.
    pub peer: Option<std::net::IpAddr>,
    /// The memory budget to charge for this caller.
    pub share: Share,
}

impl RequestContext {
    /// The operations behind this API.
    pub fn service(&self) -> &Service {
        &self.app.service
    }

    /// Formats timestamps.
    pub fn times(&self) -> &Times {
        &self.app.times
    }

    /// Formats an engine-time deadline as a date, by the current wall clock.
    pub fn date_of(&self, deadline: Millis) -> Timestamp {
        self.times().timestamp(self.service().now().date_of(deadline))
    }

    /// Charges memory for building a response. Waits briefly if there is no room.
    pub async fn hold(&self, bytes: usize) -> Result<Hold, ServiceError> {
        /// How long to wait for room before refusing the request.
        const ROOM_TIMEOUT: Duration = Duration::from_secs(1);
        let hold = self.share.hold_within(HeldFor::Answers, bytes, ROOM_TIMEOUT).await;
        hold.ok_or_else(ServiceError::overloaded)
    }

    /// Returns when a reload revokes the caller's token.
    pub fn revoked(&self) -> BoxFuture<'static, ()> {
        let (app, caller, role) =
            (Arc::clone(&self.app), self.caller.clone(), self.route.access.role());
        match (bearer_token(&self.headers).map(str::to_owned), role) {
            (Ok(token), Some(role)) => {
                Box::pin(async move { app.auth.revoked(&token, role, &caller).await })
            }
            // Nobody has identified themselves.
            _ => Box::pin(std::future::pending()),
        }
    }

    /// Waits on the caller's behalf, unless its token is revoked first.
    pub async fn wait<T>(
        &self,
        work: impl Future<Output = Result<T, ServiceError>>,
    ) -> Result<T, Problem> {
        tokio::select! {
            biased;
            () = self.revoked() => {
                let refusal = Refusal::new(Reason::Unknown, "the token was revoked during the call");
                Err(AuthError::from(refusal).into())
            }
            done = work => Ok(done?),
        }
    }

    /// A task as clients see it.
    pub fn task<'a>(&self, task: &'a Task) -> TaskBody<'a> {
        TaskBody::new(task, &self.app.times)
    }

    /// A result as clients see it.
    pub fn result<'a>(&self, record: &'a ResultRecord) -> ResultBody<'a> {
        ResultBody::new(record, &self.app.times)
    }

    /// The path parameter `{name}` of the route.
    pub fn path(&self, name: &str) -> &str {
        let mut params = self.params.iter().flat_map(RawPathParams::iter);
        let value = params.find(|(key, _)| *key == name).map(|(_, value)| value);
        debug_assert!(value.is_some(), "'{name}' is not in {}", self.route.path);
        value.unwrap_or_default()
    }

    /// A query parameter: the first with this name, decoded. Empty counts as absent.
    pub fn param(&self, name: &str) -> Option<Cow<'_, str>> {
        debug_assert!(self.route.query.contains(&name), "'{name}' is not in the list of routes");
        let mut pairs = url::form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value).filter(|value| !value.is_empty())
    }

    /// A query parameter that is a whole number.
    pub fn number(&self, name: &'static str) -> Result<Option<u64>, ServiceError> {
        let Some(text) = self.param(name) else {
            return Ok(None);
        };
        let number = text.parse().map(Some);
        number.map_err(|_| {
            ServiceError::new(Code::InvalidParameter, format!("invalid '{name}'")).field(name)
        })
    }

    /// A boolean query parameter; false if absent.
    pub fn flag(&self, name: &'static str) -> Result<bool, ServiceError> {
        match self.param(name).as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(_) => {
                let text = format!("invalid '{name}' (true or false)");
                Err(ServiceError::new(Code::InvalidParameter, text).field(name))
            }
        }
    }

    /// A header's value; `None` if absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}
