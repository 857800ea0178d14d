//! Authenticated callers and their permissions.

use std::borrow::Cow;
use std::sync::Arc;

use codeq_core::names::{INSTANCE_SEPARATOR, check_worker};

/// The kind of token a route accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// May enqueue and cancel.
    Producer,
    /// May claim and finish.
    Worker,
    /// Either kind.
    Any,
}

/// An authenticated caller. The default one, on routes open to everybody, has no rights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Principal {
    /// The tenant whose data the caller sees.
    pub tenant: Arc<str>,
    /// The token's `sub`, which is a worker's identity. For a producer token without one, its
    /// client id or tenant.
    pub subject: Arc<str>,
    /// Passed a producer validator.
    pub producer: bool,
    /// Passed a worker validator, or may act as a worker.
    pub worker: bool,
    /// Operations a worker may call.
    pub scopes: Scopes,
    /// Commands a worker may claim.
    pub event_types: EventTypes,
    /// May administer its tenant.
    pub admin: bool,
    /// May act across all tenants.
    pub operator: bool,
    /// The token's `workerGroup`.
    pub worker_group: Option<Arc<str>>,
    /// When the token expires, in Unix seconds.
    pub expires_at: Option<u64>,
}

/// A set of worker scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

/// One worker scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Scope {
    /// Claim tasks.
    Claim = 1,
    /// Extend leases.
    Heartbeat = 2,
    /// Return tasks with abandon.
    Abandon = 4,
    /// Report failed attempts with nack.
    Nack = 8,
    /// Submit results.
    Result = 16,
    /// Subscribe to queue notifications.
    Subscribe = 32,
}

/// Scope that lets a token administer its tenant.
pub const ADMIN: &str = "codeq:admin";
/// Scope that lets a token act across all tenants.
pub const OPERATOR: &str = "codeq:operator";

impl Scope {
    /// Every worker scope, in bit order.
    pub const ALL: [Scope; 6] = [
        Scope::Claim,
        Scope::Heartbeat,
        Scope::Abandon,
        Scope::Nack,
        Scope::Result,
        Scope::Subscribe,
    ];

    /// The scope's name in tokens.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Claim => "codeq:claim",
            Scope::Heartbeat => "codeq:heartbeat",
            Scope::Abandon => "codeq:abandon",
            Scope::Nack => "codeq:nack",
            Scope::Result => "codeq:result",
            Scope::Subscribe => "codeq:subscribe",
        }
    }
}

impl Scopes {
    /// The set of every worker scope.
    pub const ALL: Scopes = Scopes(63);

    /// Whether the set contains the scope.
    pub fn has(self, scope: Scope) -> bool {
        self.0 & scope as u8 != 0
    }

    /// Adds a scope to the set.
    #[must_use]
    pub fn with(self, scope: Scope) -> Scopes {
        Scopes(self.0 | scope as u8)
    }
}

/// Commands a worker may claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventTypes {
    /// Any command: `*`.
    Any,
    /// Only these commands, ignoring ASCII case.
    Only(Vec<Arc<str>>),
}

impl Default for EventTypes {
    fn default() -> EventTypes {
        EventTypes::Only(Vec::new())
    }
}

impl EventTypes {
    /// Whether the worker may claim this command.
    pub fn allows(&self, command: &str) -> bool {
        match self {
            EventTypes::Any => true,
            EventTypes::Only(names) => names.iter().any(|name| name.eq_ignore_ascii_case(command)),
        }
    }
}

/// Whether the text can be a subject. The separator of instances is reserved.
pub fn is_subject(text: &str) -> bool {
    check_worker(text).is_ok() && !text.contains(INSTANCE_SEPARATOR)
}

/// The identity of a named instance under a subject.
pub fn instance(subject: &str, name: &str) -> String {
    format!("{subject}{INSTANCE_SEPARATOR}{name}")
}

/// Formats an identity for display: `subject` or `subject/instance`.
pub fn display_identity(worker: &str) -> Cow<'_, str> {
    match worker.split_once(INSTANCE_SEPARATOR) {
        Some((subject, name)) => Cow::Owned(format!("{subject}/{name}")),
        None => Cow::Borrowed(worker),
    }
}
