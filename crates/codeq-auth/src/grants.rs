//! Permissions of a token, for every kind of validator.

use std::sync::Arc;

use codeq_core::names::check_command;

use crate::principal::{ADMIN, EventTypes, OPERATOR, Principal, Scope, Scopes};

/// Maximum number of event types per token.
pub const EVENT_TYPES_MAX: usize = 1_000;

/// The validators that accepted a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptedBy {
    /// Those of producers.
    Producer,
    /// Those of producers, who may act as workers.
    ProducerAsWorker,
    /// Those of workers.
    Worker,
}

/// Permissions granted by scopes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    /// Operations a worker may call.
    pub scopes: Scopes,
    /// May administer its tenant.
    pub admin: bool,
    /// Sees all tenants.
    pub operator: bool,
}

impl Grants {
    /// Adds a scope's permission; returns false if the scope is unknown. Names must match exactly.
    pub fn add(&mut self, scope: &str) -> bool {
        match scope {
            ADMIN => self.admin = true,
            OPERATOR => (self.admin, self.operator) = (true, true),
            name => match Scope::ALL.into_iter().find(|scope| scope.name() == name) {
                Some(scope) => self.scopes = self.scopes.with(scope),
                None => return false,
            },
        }
        true
    }
}

/// The commands these names allow; `*` means any.
pub(crate) fn event_types<'a>(
    names: impl Iterator<Item = &'a str>,
) -> Result<EventTypes, &'static str> {
    let mut only: Vec<Arc<str>> = Vec::new();
    let mut any = false;
    for name in names {
        if only.len() >= EVENT_TYPES_MAX {
            return Err("too many event types");
        }
        check_command(name).map_err(|_| "event type is not a command's name")?;
        any |= name == "*";
        only.push(Arc::from(name));
    }
    Ok(if any { EventTypes::Any } else { EventTypes::Only(only) })
}

/// Builds the caller of an accepted token.
pub(crate) fn principal(
    accepted_by: AcceptedBy,
    tenant: &str,
    subject: &str,
    grants: Grants,
    event_types: EventTypes,
) -> Principal {
    let (scopes, event_types) = match accepted_by {
        AcceptedBy::Producer => (Scopes::default(), EventTypes::default()),
        AcceptedBy::ProducerAsWorker => (Scopes::ALL, EventTypes::Any),
        AcceptedBy::Worker => (grants.scopes, event_types),
    };
    Principal {
        tenant: Arc::from(tenant),
        subject: Arc::from(subject),
        producer: accepted_by != AcceptedBy::Worker,
        worker: accepted_by != AcceptedBy::Producer,
        scopes,
        event_types,
        admin: grants.admin,
        operator: grants.operator,
        ..Principal::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_scopes_count() {
        for name in [
            "",
            "codeq:claim ",
            "CODEQ:CLAIM",
            "codeq:claimx",
            "codeq:*",
            "*",
            "codeq:Admin",
            "admin",
        ] {
            let mut grants = Grants::default();
            assert!(!grants.add(name), "{name}");
            assert_eq!(grants, Grants::default(), "{name}");
        }
    }

    #[test]
    fn the_six_worker_scopes_make_up_all_scopes() {
        let mut grants = Grants::default();
        for name in ["claim", "heartbeat", "abandon", "nack", "result", "subscribe"] {
            assert_ne!(grants.scopes, Scopes::ALL);
            assert!(grants.add(&format!("codeq:{name}")));
        }
        assert_eq!(grants, Grants { scopes: Scopes::ALL, admin: false, operator: false });
    }

    #[test]
    fn an_operator_is_an_admin() {
        let mut grants = Grants::default();
        assert!(grants.add("codeq:operator"));
        assert!(grants.admin && grants.operator && grants.scopes == Scopes::default());
        let mut grants = Grants::default();
        assert!(grants.add("codeq:admin"));
        assert!(grants.admin && !grants.operator);
    }

    #[test]
    fn event_types_are_bounded() {
        let names = vec!["a"; EVENT_TYPES_MAX];
        assert!(event_types(names.iter().copied()).is_ok());
        assert!(event_types(names.iter().copied().chain(["b"])).is_err());
        assert!(event_types(["x".repeat(129).as_str()].into_iter()).is_err());
        assert!(event_types([""].into_iter()).is_err());
        assert_eq!(event_types(["a", "*"].into_iter()), Ok(EventTypes::Any));
        assert_eq!(event_types(["a*"].into_iter()), Ok(EventTypes::Only(vec!["a*".into()])));
        assert_eq!(event_types(std::iter::empty()), Ok(EventTypes::default()));
    }
}
