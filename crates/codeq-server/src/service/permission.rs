//! Whether a caller may do what it asks for.

use super::ServiceError;
use crate::auth::{ADMIN, OPERATOR, Principal, Scope};

/// What a caller may do.
pub trait Permissions {
    /// Refuses a worker whose token lacks the scope.
    fn needs(&self, scope: Scope) -> Result<(), ServiceError>;

    /// Refuses whoever may not administer.
    fn needs_admin(&self) -> Result<(), ServiceError>;

    /// Refuses whoever may not act for all tenants.
    fn needs_operator(&self) -> Result<(), ServiceError>;
}

impl Permissions for Principal {
    fn needs(&self, scope: Scope) -> Result<(), ServiceError> {
        if self.worker && self.scopes.has(scope) {
            return Ok(());
        }
        let text = format!("missing scope {}", scope.name());
        Err(ServiceError::forbidden(text).scope(scope.name()))
    }

    fn needs_admin(&self) -> Result<(), ServiceError> {
        if self.admin {
            return Ok(());
        }
        let detail = "the token needs the scope codeq:admin, or the role ADMIN";
        Err(ServiceError::forbidden("admin required").detail(detail).scope(ADMIN))
    }

    fn needs_operator(&self) -> Result<(), ServiceError> {
        if self.operator {
            return Ok(());
        }
        let detail = "the token needs the scope codeq:operator: this concerns all tenants";
        Err(ServiceError::forbidden("operator required").detail(detail).scope(OPERATOR))
    }
}
