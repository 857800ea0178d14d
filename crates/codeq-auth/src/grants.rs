//! Permissions of a token, for every kind of validator.

use std::sync::Arc;

use codeq_core::names::check_command;

use crate::principal::{ADMIN, EventTypes, OPERATOR, Principal, Scope, Scopes};

/// Maximum number of event types per token.
const EVENT_TYPES_MAX: usize = 1_000;

/// The role an accepted token acts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Passed a producer validator.
    Producer,
    /// Passed a producer validator, and producers may act as workers.
    ProducerAsWorker,
    /// Passed a worker validator.
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
    kind: Kind,
    tenant: &str,
    subject: &str,
    grants: Grants,
    event_types: EventTypes,
) -> Principal {
    let (scopes, event_types) = match kind {
        Kind::Producer => (Scopes::default(), EventTypes::default()),
        Kind::ProducerAsWorker => (Scopes::ALL, EventTypes::Any),
        Kind::Worker => (grants.scopes, event_types),
    };
    Principal {
        tenant: Arc::from(tenant),
        subject: Arc::from(subject),
        producer: kind != Kind::Worker,
        worker: kind != Kind::Producer,
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
