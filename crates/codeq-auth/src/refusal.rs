//! Why a token was refused. The log gets every detail; a client learns no more than its own
//! identity provider could tell it.

/// The kind of failure, ordered from the least specific to the most specific.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The request has no token.
    Missing,
    /// Neither a fixed token nor a JWT.
    Unknown,
    /// A JWT that does not parse or is of an unsupported kind.
    Malformed,
    /// The issuer is not configured for this role.
    Issuer,
    /// Signed with a key the issuer does not publish.
    UnknownKey,
    /// The signature does not match the key.
    Signature,
    /// Issued for another audience.
    Audience,
    /// A claim is missing or invalid.
    Claims,
    /// Not valid yet, or issued in the future.
    NotYetValid,
    /// Past its expiry.
    Expired,
}

impl Reason {
    /// Every reason, in declaration order.
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

    /// Name in logs and metrics.
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
    /// The kind of failure.
    pub reason: Reason,
    /// Exact cause, for the log.
    pub detail: &'static str,
    /// The signature is good: the bearer got the token from its issuer and may learn what is wrong with it.
    pub verified: bool,
}

impl Refusal {
    /// A refusal of a token whose signature is not verified.
    pub fn new(reason: Reason, detail: &'static str) -> Refusal {
        Refusal { reason, detail, verified: false }
    }

    /// Marks the token's signature as verified.
    pub fn verified(self) -> Refusal {
        Refusal { verified: true, ..self }
    }

    /// The message for the client. The same for every token without a verified signature, so
    /// guessing reveals nothing.
    pub fn client_message(&self) -> &'static str {
        match self.reason {
            _ if !self.verified => "the token is not valid",
            Reason::Audience => "the token is for another audience",
            Reason::Expired => "the token has expired",
            Reason::NotYetValid => "the token is not valid yet",
            _ => self.detail,
        }
    }

    /// Of two validators' refusals, prefers a verified one, then the more specific one.
    pub fn or(self, other: Refusal) -> Refusal {
        let rank = |refusal: &Refusal| (refusal.verified, refusal.reason);
        if rank(&other) >= rank(&self) { other } else { self }
    }
}

/// Why authentication failed. Clients see these texts, so they contain nothing that helps to forge a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No `Authorization: Bearer` header.
    #[error("missing bearer token")]
    Missing,
    /// No validator accepts the token: 401.
    #[error("invalid token")]
    Invalid(Refusal),
    /// The token is valid but of the other kind, such as a worker's where a producer's is needed: 403.
    #[error("{0}")]
    WrongKind(&'static str),
    /// The token is valid, but its tenant claims contradict each other: 403.
    #[error("tenant claims disagree")]
    TenantsDisagree,
    /// The issuer's keys cannot be fetched and none are cached: 503.
    #[error("identity provider unavailable")]
    Unavailable,
}

impl AuthError {
    /// The refusal behind this error, if a token was missing or refused.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            AuthError::Missing => Some(Refusal::new(Reason::Missing, "no bearer token")),
            AuthError::Invalid(refusal) => Some(*refusal),
            AuthError::WrongKind(_) | AuthError::TenantsDisagree | AuthError::Unavailable => None,
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
    fn unverified_tokens_all_get_the_same_message() {
        for reason in Reason::ALL {
            assert_eq!(Refusal::new(reason, "x").client_message(), "the token is not valid");
        }
        let message = |reason| Refusal::new(reason, "sub is missing").verified().client_message();
        assert_eq!(message(Reason::Expired), "the token has expired");
        assert_eq!(message(Reason::Claims), "sub is missing");
    }
}
