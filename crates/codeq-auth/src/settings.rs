//! Token settings, as sections of the server's configuration.
//!
//! Secrets are masked wherever these are shown: in `Debug` and when serialised.

use std::fmt;

use codeq_core::names::check_worker;
use serde::{Deserialize, Serialize};

use crate::fetch::Source;
use crate::mask;

/// Longest name of a worker group, in bytes.
pub const GROUP_BYTES_MAX: usize = 128;

/// Whether the text can name a worker group.
pub fn is_group(text: &str) -> bool {
    check_worker(text).is_ok() && text.len() <= GROUP_BYTES_MAX
}

/// Token validation for both roles.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// Tokens that may enqueue.
    pub producers: AuthConfig,
    /// Tokens that may claim.
    pub workers: AuthConfig,
    /// Lets a producer token act as a worker with all scopes.
    pub producers_may_work: bool,
}

/// Token validation for one role. Methods are tried in turn; with none configured, the role is closed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthConfig {
    /// JSON Web Tokens.
    pub jwt: Vec<JwtConfig>,
    /// Fixed tokens.
    pub static_tokens: Vec<StaticToken>,
}

impl AuthConfig {
    /// Whether any token can be accepted.
    pub fn accepts_tokens(&self) -> bool {
        !self.jwt.is_empty() || !self.static_tokens.is_empty()
    }
}

/// Tokens signed by one issuer.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JwtConfig {
    /// Required `iss`. Without `jwksUrl`, the keys come from its OpenID discovery document.
    pub issuer: String,
    /// Required `aud`.
    pub audience: String,
    /// URL of the keys; overrides discovery.
    #[serde(serialize_with = "mask::url")]
    pub jwks_url: Option<String>,
}

impl JwtConfig {
    /// Whether the issuer's keys may be fetched from `jwksUrl` or, without it, from the issuer. The error says what is
    /// wrong with that URL.
    pub fn check_key_url(&self) -> Result<(), &'static str> {
        Source::new(&self.issuer, self.jwks_url.as_deref()).map(drop)
    }
}

impl fmt::Debug for JwtConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        mask::debug(self, f)
    }
}

/// A fixed token and the caller it stands for.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StaticToken {
    /// The token in plain text; alternatively set its hash.
    #[serde(serialize_with = "mask::secret")]
    pub token: Option<String>,
    /// Hex SHA-256 of the token.
    pub token_sha256: Option<String>,
    /// The caller's identity.
    pub subject: String,
    /// The caller's tenant.
    pub tenant: String,
    /// Worker scopes, `codeq:admin`, `codeq:operator`.
    pub scopes: Vec<String>,
    /// Commands a worker may claim; `*` means any.
    pub event_types: Vec<String>,
    /// Worker group for availability notifications.
    pub worker_group: Option<String>,
}

impl fmt::Debug for StaticToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        mask::debug(self, f)
    }
}
