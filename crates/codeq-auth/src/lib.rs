//! Authentication: from a bearer token to a [`Principal`].
//!
//! Producer and worker tokens have separate validators; each is a list of methods (JWT, fixed
//! tokens) tried in turn. This crate knows nothing of routes, configuration files, the service or
//! the engine, and does not decide which call needs which permission.

pub use authenticator::{Authenticator, ValidatorSet};
pub use bearer::{TOKEN_BYTES_MAX, bearer_token};
pub use claims::SKEW_SECONDS;
pub use principal::{ADMIN, EventTypes, OPERATOR, Principal, Role, Scope, Scopes, instance, shown};
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
