//! A request on its way to its handler.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::RawPathParams;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::future::BoxFuture;

use super::json::Body;
use super::problem::Problem;
use super::routes::Route;
use super::wire::{ResultBody, TaskBody};
use crate::app::App;
use crate::auth::{EventTypes, Principal, Scopes};
use crate::limits::budget::{HeldFor, Hold, Share};
use crate::observe::trace::TraceContext;
use crate::service::{Code, Service, ServiceError};
use crate::times::Times;
use codeq_core::command::Millis;
use codeq_core::view::{ResultRecord, Task};

/// What a handler answers.
pub type Answer = Result<Response, Problem>;
/// A handler.
pub type Handler = fn(Call) -> BoxFuture<'static, Answer>;

/// A request that may be answered: its caller is known and allowed, its body is here.
pub struct Call {
    /// What every request needs.
    pub app: Arc<App>,
    /// The route.
    pub route: &'static Route,
    /// Who is calling; nobody on open routes.
    pub caller: Principal,
    /// The variable parts of the path, decoded.
    pub params: Option<RawPathParams>,
    /// The query as it came.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; empty if the route has no fields.
    pub body: Body,
    /// The client's trace, if it sent one.
    pub trace: Option<TraceContext>,
    /// Where the request comes from.
    pub peer: Option<std::net::IpAddr>,
    /// The bytes that may be held for the caller.
    pub share: Share,
}

impl Call {
    /// The service layer.
    pub fn service(&self) -> &Service {
        &self.app.service
    }

    /// How moments are written.
    pub fn times(&self) -> &Times {
        &self.app.times
    }

    /// The date of a deadline that counts by engine time, as the wall clock goes now.
    pub fn date_of(&self, deadline: Millis) -> String {
        self.times().text(self.service().now().date_of(deadline))
    }

    /// Bytes for what an answer is made of, if there is room for them soon.
    pub async fn hold(&self, bytes: usize) -> Result<Hold, ServiceError> {
        /// How long to wait for room before the request is refused.
        const PATIENCE: Duration = Duration::from_secs(1);
        let hold = self.share.hold_within(HeldFor::Answers, bytes, PATIENCE).await;
        hold.ok_or_else(ServiceError::overloaded)
    }

    /// A task for the client.
    pub fn task<'a>(&self, task: &'a Task) -> TaskBody<'a> {
        TaskBody::new(task, &self.app.times)
    }

    /// A result for the client.
    pub fn result<'a>(&self, record: &'a ResultRecord) -> ResultBody<'a> {
        ResultBody::new(record, &self.app.times)
    }

    /// The part of the path that the route has as `{name}`.
    pub fn path(&self, name: &str) -> &str {
        let params = self.params.iter().flat_map(RawPathParams::iter);
        let value = params.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        debug_assert!(value.is_some(), "'{name}' is not in {}", self.route.path);
        value.unwrap_or_default()
    }

    /// A parameter of the query: the first of that name, decoded. Empty counts as absent.
    pub fn param(&self, name: &str) -> Option<Cow<'_, str>> {
        debug_assert!(self.route.query.contains(&name), "'{name}' is not in the list of routes");
        let mut pairs = url::form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value).filter(|value| !value.is_empty())
    }

    /// A whole number in the query.
    pub fn number(&self, name: &'static str) -> Result<Option<u64>, ServiceError> {
        let Some(text) = self.param(name) else {
            return Ok(None);
        };
        let number = text.parse().map(Some);
        number.map_err(|_| {
            ServiceError::new(Code::InvalidParameter, format!("invalid '{name}'")).field(name)
        })
    }

    /// A yes or no in the query; absent is no.
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

    /// A header as text, if it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// The caller of an open route.
pub fn nobody() -> Principal {
    Principal {
        tenant: "".into(),
        subject: "".into(),
        producer: false,
        worker: false,
        scopes: Scopes::default(),
        event_types: EventTypes::Only(Vec::new()),
        admin: false,
        operator: false,
        worker_group: None,
        expires_at: None,
    }
}
