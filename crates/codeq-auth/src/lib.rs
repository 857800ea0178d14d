//! Authentication: from a bearer token to a [`Principal`].
//!
//! Producer and worker tokens have separate validators; each is a list of methods (JWT, fixed
//! tokens) tried in turn. Their settings are sections of the server's configuration, and errors name
//! those sections. Otherwise this crate knows nothing of how the server is configured, nor of routes,
//! the service or the engine, and does not decide which call needs which permission.

pub use authenticator::{Authenticator, ValidatorSet};
pub use bearer::{TOKEN_BYTES_MAX, bearer_token};
pub use claims::SKEW_SECONDS;
pub use grants::EVENT_TYPES_MAX;
pub use principal::{
    ADMIN, EventTypes, OPERATOR, Principal, Role, Scope, Scopes, display_identity, instance,
    is_subject,
};
pub use refusal::{AuthError, Reason, Refusal};
pub use settings::{AuthConfig, GROUP_BYTES_MAX, JwtConfig, Settings, StaticToken, is_group};

pub mod mask;

mod authenticator;
mod bearer;
mod claims;
mod fetch;
mod grants;
mod jwk;
mod jwt;
mod key_cache;
mod principal;
mod refusal;
mod settings;
mod static_tokens;

#[cfg(test)]
mod tests;
