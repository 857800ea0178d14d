//! What a caller may do.
//!
//! A service method that needs a permission takes a proof that the caller has it. Where the request
//! or the data decides which permission is needed, the method takes the caller and asks for the
//! proof itself. Only the checks here create proofs, so no protocol can skip them.

use std::ops::Deref;

use codeq_auth::{ADMIN, OPERATOR, Principal, Scope};

use super::ServiceError;

macro_rules! rights {
    ($($(#[$doc:meta])* $right:ident($check:expr);)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $right<'a>(&'a Principal);

        impl<'a> $right<'a> {
            /// Returns the proof, or an error that names the missing permission.
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
    /// May create, change and cancel tasks.
    MayProduce(producer);
    /// May claim tasks.
    MayClaim(|caller| scope(caller, Scope::Claim));
    /// May extend leases.
    MayHeartbeat(|caller| scope(caller, Scope::Heartbeat));
    /// May return tasks with abandon.
    MayAbandon(|caller| scope(caller, Scope::Abandon));
    /// May return tasks with nack.
    MayNack(|caller| scope(caller, Scope::Nack));
    /// May submit results.
    MaySubmit(|caller| scope(caller, Scope::Result));
    /// May subscribe to queues.
    MaySubscribe(|caller| scope(caller, Scope::Subscribe));
    /// May administer its tenant.
    MayAdminister(admin);
    /// May act across all tenants.
    MayOperate(operator);
}

fn producer(caller: &Principal) -> Result<(), ServiceError> {
    if caller.producer {
        return Ok(());
    }
    let detail =
        "this is a worker token: creating, changing and cancelling tasks requires a producer token";
    Err(ServiceError::forbidden("producer required").detail(detail))
}

/// Rejects a caller that is not a worker with this scope.
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
    let detail = "the token needs the scope codeq:operator, because this affects all tenants";
    Err(ServiceError::forbidden("operator required").detail(detail).scope(OPERATOR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use codeq_auth::{EventTypes, Scopes};

    type Check = fn(&Principal) -> Result<(), ServiceError>;

    /// Every right, in the order of [`roles`].
    const RIGHTS: [(&str, Check); 9] = [
        ("claim", |caller| MayClaim::of(caller).map(drop)),
        ("heartbeat", |caller| MayHeartbeat::of(caller).map(drop)),
        ("abandon", |caller| MayAbandon::of(caller).map(drop)),
        ("nack", |caller| MayNack::of(caller).map(drop)),
        ("submit", |caller| MaySubmit::of(caller).map(drop)),
        ("subscribe", |caller| MaySubscribe::of(caller).map(drop)),
        ("produce", |caller| MayProduce::of(caller).map(drop)),
        ("administer", |caller| MayAdminister::of(caller).map(drop)),
        ("operate", |caller| MayOperate::of(caller).map(drop)),
    ];

    /// Callers with one right each, and the names of the rights they hold.
    fn roles() -> Vec<(Principal, Vec<&'static str>)> {
        let worker = |scopes| Principal {
            worker: true,
            scopes,
            event_types: EventTypes::Any,
            ..Principal::default()
        };
        let mut roles: Vec<_> = Scope::ALL
            .into_iter()
            .zip(RIGHTS)
            .map(|(scope, (right, _))| (worker(Scopes::default().with(scope)), vec![right]))
            .collect();
        roles.push((Principal::default(), vec![]));
        roles.push((worker(Scopes::default()), vec![]));
        // Worker scopes on a non-worker token grant nothing.
        roles.push((Principal { scopes: Scopes::ALL, ..Principal::default() }, vec![]));
        roles.push((Principal { producer: true, ..Principal::default() }, vec!["produce"]));
        roles.push((Principal { admin: true, ..Principal::default() }, vec!["administer"]));
        let operator = Principal { admin: true, operator: true, ..Principal::default() };
        roles.push((operator, vec!["administer", "operate"]));
        roles
    }

    #[test]
    fn each_right_belongs_only_to_its_holders() {
        for (caller, has) in roles() {
            for (right, check) in RIGHTS {
                let checked = check(&caller);
                assert_eq!(checked.is_ok(), has.contains(&right), "{right}: {caller:?}");
                if let Err(error) = checked {
                    assert_eq!(error.code, super::super::Code::Forbidden);
                }
            }
        }
    }
}
