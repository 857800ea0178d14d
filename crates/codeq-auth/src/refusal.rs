//! Why a caller was not let in: all of it for the log, and for the client no more than its own identity provider could
//! tell it.

/// What was wrong, from what is found out first to what is found out last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// There was none.
    Missing,
    /// No fixed token, and not a JWT either.
    Unknown,
    /// A JWT that cannot be read, or of a kind that is not accepted.
    Malformed,
    /// Of an issuer that is not configured for this role.
    Issuer,
    /// Signed with a key that the issuer does not publish.
    UnknownKey,
    /// The signature is not the key's.
    Signature,
    /// For another audience.
    Audience,
    /// A claim is missing or is not what it should be.
    Claims,
    /// Not valid yet, or issued in the future.
    NotYetValid,
    /// Over.
    Expired,
}

impl Reason {
    /// Every reason, in the order of the variants.
    pub const ALL: [Reason; 10] = [
        Reason::Missing,
        Reason::Unknown,
        Reason::Malformed,
        Reason::Issuer,
        Reason::UnknownKey,
        Reason::Signature,
        Reason::Audience,
        Reason::Claims,
        Reason::NotYetValid,
        Reason::Expired,
    ];

    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Missing => "missing",
            Reason::Unknown => "unknown",
            Reason::Malformed => "malformed",
            Reason::Issuer => "issuer",
            Reason::UnknownKey => "unknown_key",
            Reason::Signature => "signature",
            Reason::Audience => "audience",
            Reason::Claims => "claims",
            Reason::NotYetValid => "not_yet_valid",
            Reason::Expired => "expired",
        }
    }
}

/// Why a token was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// What was wrong.
    pub reason: Reason,
    /// The same more exactly, for the log.
    pub detail: &'static str,
    /// The signature is good: the bearer has the token from its issuer, and may hear what is wrong with it.
    pub verified: bool,
}

impl Refusal {
    /// Of a token whose signature is not known to be good.
    pub fn new(reason: Reason, detail: &'static str) -> Refusal {
        Refusal { reason, detail, verified: false }
    }

    /// Of a token whose signature is good.
    pub fn verified(self) -> Refusal {
        Refusal { verified: true, ..self }
    }

    /// What the client is told. A guess hears the same whatever is wrong with it.
    pub fn told(&self) -> &'static str {
        match self.reason {
            _ if !self.verified => "the token is not valid",
            Reason::Audience => "the token is for another audience",
            Reason::Expired => "the token has expired",
            Reason::NotYetValid => "the token is not valid yet",
            _ => self.detail,
        }
    }

    /// The one that says more about the token when two validators refuse it.
    pub fn or(self, other: Refusal) -> Refusal {
        let rank = |refusal: &Refusal| (refusal.verified, refusal.reason);
        if rank(&other) >= rank(&self) { other } else { self }
    }
}

/// Why a caller was not let in. The texts go to clients and say nothing that helps to forge a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No `Authorization: Bearer` header.
    #[error("missing bearer token")]
    Missing,
    /// Not a token that any validator accepts: 401.
    #[error("invalid token")]
    Invalid(Refusal),
    /// A good token that may not do this: 403.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The keys cannot be had and none are known: 503.
    #[error("identity provider unavailable")]
    Unavailable,
}

impl AuthError {
    /// Why the token was refused, if it was.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            AuthError::Missing => Some(Refusal::new(Reason::Missing, "no bearer token")),
            AuthError::Invalid(refusal) => Some(*refusal),
            AuthError::Forbidden(_) | AuthError::Unavailable => None,
        }
    }
}

impl From<Refusal> for AuthError {
    fn from(refusal: Refusal) -> AuthError {
        AuthError::Invalid(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_the_order_of_the_variants() {
        for (at, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
    }

    #[test]
    fn a_guess_hears_the_same_whatever_is_wrong_with_it() {
        for reason in Reason::ALL {
            assert_eq!(Refusal::new(reason, "x").told(), "the token is not valid");
        }
        let told = |reason| Refusal::new(reason, "sub is missing").verified().told();
        assert_eq!(told(Reason::Expired), "the token has expired");
        assert_eq!(told(Reason::Claims), "sub is missing");
    }
}
