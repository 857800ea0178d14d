//! What an operator can choose about tokens.
//!
//! Secrets are masked wherever these are shown: in `Debug`, and when they are serialised.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::mask::{self, MASK, mask_url};

/// Longest name of a group of workers, in bytes.
pub const GROUP_BYTES_MAX: usize = 128;

/// How the tokens of both roles are validated.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// Who may enqueue.
    pub producers: AuthConfig,
    /// Who may claim.
    pub workers: AuthConfig,
    /// A producer's token acts as a worker's with all scopes.
    pub producers_may_work: bool,
}

/// How tokens of one role are validated. Several ways are tried in turn; none at all means that nobody of
/// this role gets in.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthConfig {
    /// JSON Web Tokens.
    pub jwt: Vec<JwtConfig>,
    /// Fixed tokens.
    pub static_tokens: Vec<StaticToken>,
}

impl AuthConfig {
    /// Whether anybody of this role can get in.
    pub fn lets_in(&self) -> bool {
        !self.jwt.is_empty() || !self.static_tokens.is_empty()
    }
}

/// Tokens signed by one issuer.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JwtConfig {
    /// The `iss` that tokens must carry. Without `jwksUrl`, its OpenID discovery document is read.
    pub issuer: String,
    /// The `aud` that tokens must carry.
    pub audience: String,
    /// Where the keys are; overrides discovery.
    #[serde(serialize_with = "mask::url")]
    pub jwks_url: Option<String>,
}

impl fmt::Debug for JwtConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtConfig")
            .field("issuer", &self.issuer)
            .field("audience", &self.audience)
            .field("jwks_url", &self.jwks_url.as_deref().map(mask_url))
            .finish()
    }
}

/// A fixed token and what it stands for.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StaticToken {
    /// The token itself; or else its hash.
    #[serde(serialize_with = "mask::secret")]
    pub token: Option<String>,
    /// SHA-256 of the token in hex.
    pub token_sha256: Option<String>,
    /// The identity.
    pub subject: String,
    /// The tenant.
    pub tenant: String,
    /// Worker scopes, `codeq:admin`, `codeq:operator`.
    pub scopes: Vec<String>,
    /// Commands that a worker may claim; `*` is any.
    pub event_types: Vec<String>,
    /// The group of workers that it belongs to, for availability notifications.
    pub worker_group: Option<String>,
}

impl fmt::Debug for StaticToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticToken")
            .field("token", &self.token.as_ref().map(|_| MASK))
            .field("token_sha256", &self.token_sha256)
            .field("subject", &self.subject)
            .field("tenant", &self.tenant)
            .field("scopes", &self.scopes)
            .field("event_types", &self.event_types)
            .field("worker_group", &self.worker_group)
            .finish()
    }
}
