//! Callers, and what their tokens say of them.

use std::borrow::Cow;
use std::sync::Arc;

use codeq_core::names::{INSTANCE_SEPARATOR, check_worker};

/// Which validator a route asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Enqueues and cancels.
    Producer,
    /// Claims and finishes.
    Worker,
    /// Either will do.
    Any,
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq)]
pub struct Principal {
    /// Whose data the caller sees.
    pub tenant: Arc<str>,
    /// The token's `sub`; the identity of a worker. Of a producer's token without one, its client id or tenant.
    pub subject: Arc<str>,
    /// The token passed a producer's validator.
    pub producer: bool,
    /// The token passed a worker's validator, or may act as a worker.
    pub worker: bool,
    /// What a worker may call.
    pub scopes: Scopes,
    /// What a worker may claim.
    pub event_types: EventTypes,
    /// May administer its tenant.
    pub admin: bool,
    /// Sees all tenants.
    pub operator: bool,
    /// The token's `workerGroup`.
    pub worker_group: Option<Arc<str>>,
    /// When the token ends, in Unix seconds.
    pub expires_at: Option<u64>,
}

/// Worker scopes of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

/// One worker scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Scope {
    /// Take tasks.
    Claim = 1,
    /// Extend leases.
    Heartbeat = 2,
    /// Give tasks back.
    Abandon = 4,
    /// Report failed executions.
    Nack = 8,
    /// Finish tasks.
    Result = 16,
    /// Subscribe to queues.
    Subscribe = 32,
}

/// The scope of those who administer their tenant.
pub const ADMIN: &str = "codeq:admin";
/// The scope of those who act for all tenants.
pub const OPERATOR: &str = "codeq:operator";

impl Scope {
    /// Every worker scope.
    pub const ALL: [Scope; 6] = [
        Scope::Claim,
        Scope::Heartbeat,
        Scope::Abandon,
        Scope::Nack,
        Scope::Result,
        Scope::Subscribe,
    ];

    /// Its name in tokens.
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
    /// Every worker scope.
    pub const ALL: Scopes = Scopes(63);

    /// Whether the scope is there.
    pub fn has(self, scope: Scope) -> bool {
        self.0 & scope as u8 != 0
    }

    /// With one scope more.
    #[must_use]
    pub fn with(self, scope: Scope) -> Scopes {
        Scopes(self.0 | scope as u8)
    }
}

/// Commands that a worker may claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventTypes {
    /// `*`
    Any,
    /// These, compared without regard to ASCII case.
    Only(Vec<Arc<str>>),
}

impl EventTypes {
    /// Whether the command is among them.
    pub fn allows(&self, command: &str) -> bool {
        match self {
            EventTypes::Any => true,
            EventTypes::Only(names) => names.iter().any(|name| name.eq_ignore_ascii_case(command)),
        }
    }
}

/// Whether a text can be a token's subject.
pub(crate) fn is_subject(text: &str) -> bool {
    check_worker(text).is_ok() && !text.contains(INSTANCE_SEPARATOR)
}

/// The identity of an instance of a subject.
pub fn instance(subject: &str, name: &str) -> String {
    format!("{subject}{INSTANCE_SEPARATOR}{name}")
}

/// An identity as people see it: `subject`, or `subject/instance`.
pub fn shown(worker: &str) -> Cow<'_, str> {
    match worker.split_once(INSTANCE_SEPARATOR) {
        Some((subject, name)) => Cow::Owned(format!("{subject}/{name}")),
        None => Cow::Borrowed(worker),
    }
}
