//! What a caller may do.

use super::ServiceError;
use crate::auth::{Principal, Scope};

impl Principal {
    /// Refuses a worker whose token lacks the scope.
    pub fn needs(&self, scope: Scope) -> Result<(), ServiceError> {
        if self.worker && self.scopes.has(scope) {
            return Ok(());
        }
        Err(ServiceError::forbidden(match scope {
            Scope::Claim => "missing scope codeq:claim",
            Scope::Heartbeat => "missing scope codeq:heartbeat",
            Scope::Abandon => "missing scope codeq:abandon",
            Scope::Nack => "missing scope codeq:nack",
            Scope::Result => "missing scope codeq:result",
            Scope::Subscribe => "missing scope codeq:subscribe",
        }))
    }

    /// Refuses whoever may not administer.
    pub fn needs_admin(&self) -> Result<(), ServiceError> {
        if self.admin {
            return Ok(());
        }
        let detail = "the token needs the scope codeq:admin, or the role ADMIN";
        Err(ServiceError::forbidden("admin required").detail(detail))
    }

    /// Refuses whoever may not act for all tenants.
    pub fn needs_operator(&self) -> Result<(), ServiceError> {
        if self.operator {
            return Ok(());
        }
        let detail = "the token needs the scope codeq:operator: this concerns all tenants";
        Err(ServiceError::forbidden("operator required").detail(detail))
    }
}
