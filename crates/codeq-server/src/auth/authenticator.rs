//! Trying the validators in turn.

use crate::auth::{AuthError, Principal, Role};
use crate::config::Config;

/// All validators of a server.
pub struct Authenticator {}

impl Authenticator {
    /// From the configuration. Nothing is fetched yet.
    pub fn new(_config: &Config) -> Result<Authenticator, String> {
        Ok(Authenticator {})
    }

    /// Who the bearer of this token is. The validators of `role` are tried first; a token that only the other
    /// role's validators accept is [`AuthError::Forbidden`].
    pub async fn authenticate(&self, _token: &str, _role: Role) -> Result<Principal, AuthError> {
        Err(AuthError::Invalid("stub"))
    }
}
