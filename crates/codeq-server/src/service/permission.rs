//! What a caller may do.
//!
//! Every method of the service that needs a right takes the proof that its caller has it. Only the checks here make
//! one, so no protocol can forget them.

use std::ops::Deref;

use super::ServiceError;
use crate::auth::{ADMIN, OPERATOR, Principal, Scope};

macro_rules! rights {
    ($($(#[$doc:meta])* $right:ident($check:expr);)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $right<'a>(&'a Principal);

        impl<'a> $right<'a> {
            /// The proof, or what the caller lacks.
            pub fn of(caller: &'a Principal) -> Result<$right<'a>, ServiceError> {
                let check: fn(&Principal) -> Result<(), ServiceError> = $check;
                check(caller).map(|()| $right(caller))
            }
        }

        impl Deref for $right<'_> {
            type Target = Principal;

            fn deref(&self) -> &Principal {
                self.0
            }
        }
    )*};
}

rights! {
    /// Makes tasks and cancels them.
    MayProduce(producer);
    /// Claims tasks.
    MayClaim(|caller| scope(caller, Scope::Claim));
    /// Extends leases.
    MayHeartbeat(|caller| scope(caller, Scope::Heartbeat));
    /// Gives tasks back.
    MayAbandon(|caller| scope(caller, Scope::Abandon));
    /// Gives tasks back as failed.
    MayNack(|caller| scope(caller, Scope::Nack));
    /// Ends tasks.
    MaySubmit(|caller| scope(caller, Scope::Result));
    /// Subscribes to queues.
    MaySubscribe(|caller| scope(caller, Scope::Subscribe));
    /// Administers its tenant.
    MayAdminister(admin);
    /// Acts for all tenants.
    MayOperate(operator);
}

fn producer(caller: &Principal) -> Result<(), ServiceError> {
    if caller.producer {
        return Ok(());
    }
    let detail = "the token is a worker's: tasks are made and cancelled with a producer's token";
    Err(ServiceError::forbidden("producer required").detail(detail))
}

/// Refuses a worker whose token lacks the scope.
pub fn scope(caller: &Principal, scope: Scope) -> Result<(), ServiceError> {
    if caller.worker && caller.scopes.has(scope) {
        return Ok(());
    }
    let text = format!("missing scope {}", scope.name());
    Err(ServiceError::forbidden(text).scope(scope.name()))
}

fn admin(caller: &Principal) -> Result<(), ServiceError> {
    if caller.admin {
        return Ok(());
    }
    let detail = "the token needs the scope codeq:admin, or the role ADMIN";
    Err(ServiceError::forbidden("admin required").detail(detail).scope(ADMIN))
}

fn operator(caller: &Principal) -> Result<(), ServiceError> {
    if caller.operator {
        return Ok(());
    }
    let detail = "the token needs the scope codeq:operator: this concerns all tenants";
    Err(ServiceError::forbidden("operator required").detail(detail).scope(OPERATOR))
}
