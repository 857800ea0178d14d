//! What a caller may do.

use super::ServiceError;
use crate::auth::{ADMIN, OPERATOR, Principal, Scope};

impl Principal {
    /// Refuses a worker whose token lacks the scope.
    pub fn needs(&self, scope: Scope) -> Result<(), ServiceError> {
        if self.worker && self.scopes.has(scope) {
            return Ok(());
        }
        let text = format!("missing scope {}", scope.name());
        Err(ServiceError::forbidden(text).scope(scope.name()))
    }

    /// Refuses whoever may not administer.
    pub fn needs_admin(&self) -> Result<(), ServiceError> {
        if self.admin {
            return Ok(());
        }
        let detail = "the token needs the scope codeq:admin, or the role ADMIN";
        Err(ServiceError::forbidden("admin required").detail(detail).scope(ADMIN))
    }

    /// Refuses whoever may not act for all tenants.
    pub fn needs_operator(&self) -> Result<(), ServiceError> {
        if self.operator {
            return Ok(());
        }
        let detail = "the token needs the scope codeq:operator: this concerns all tenants";
        Err(ServiceError::forbidden("operator required").detail(detail).scope(OPERATOR))
    }
}
