//! Fixed tokens from the configuration.
//!
//! Only digests are kept. Each lookup compares all of them in constant time, so that response times
//! reveal neither how close a guess was nor which entry matched.

use codeq_core::names::check_tenant;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::bearer::check_token;
use crate::grants::{AcceptedBy, Grants, event_types, principal};
use crate::principal::{Principal, is_subject};
use crate::settings::{StaticToken, is_group};

/// SHA-256 of a token.
pub(crate) type TokenDigest = [u8; 32];

/// The digest of a presented token.
pub(crate) fn digest(token: &str) -> TokenDigest {
    Sha256::digest(token.as_bytes()).into()
}

/// The fixed tokens of one role.
pub(crate) struct StaticTokens {
    entries: Vec<(TokenDigest, Principal)>,
}

impl StaticTokens {
    /// Builds the table from the configuration. Errors name the subject, never the token.
    pub fn new(tokens: &[StaticToken], accepted_by: AcceptedBy) -> Result<StaticTokens, String> {
        let mut entries: Vec<(TokenDigest, Principal)> = Vec::with_capacity(tokens.len());
        for token in tokens {
            let named = |why: &str| format!("fixed token of subject {:?}: {why}", token.subject);
            let digest = configured_digest(token).map_err(named)?;
            if entries.iter().any(|(other, _)| *other == digest) {
                return Err(named("another entry has the same token"));
            }
            entries.push((
                digest,
                configured_principal(token, accepted_by).map_err(|why| named(&why))?,
            ));
        }
        Ok(StaticTokens { entries })
    }

    /// The caller a token stands for.
    pub fn find(&self, presented: &TokenDigest) -> Option<&Principal> {
        let mut at = u64::MAX;
        for (index, (digest, _)) in (0u64..).zip(&self.entries) {
            at.conditional_assign(&index, digest.ct_eq(presented));
        }
        let (_, principal) = self.entries.get(usize::try_from(at).ok()?)?;
        Some(principal)
    }
}

fn configured_digest(token: &StaticToken) -> Result<TokenDigest, &'static str> {
    match (&token.token, &token.token_sha256) {
        (Some(_), Some(_)) => Err("has both token and tokenSha256"),
        (None, None) => Err("has neither token nor tokenSha256"),
        (Some(token), None) => {
            check_token(token)?;
            Ok(digest(token))
        }
        (None, Some(hex)) => unhex(hex).ok_or("tokenSha256 is not 64 hex digits"),
    }
}

fn configured_principal(token: &StaticToken, accepted_by: AcceptedBy) -> Result<Principal, String> {
    if !is_subject(&token.subject) {
        return Err("the subject is empty, too long or not printable".to_owned());
    }
    check_tenant(&token.tenant).map_err(|_| "the tenant is empty, too long or not printable")?;
    let mut grants = Grants::default();
    for scope in &token.scopes {
        if !grants.add(scope) {
            return Err(format!("unknown scope {scope:?}"));
        }
    }
    let event_types = event_types(token.event_types.iter().map(String::as_str))?;
    let group = token.worker_group.as_deref();
    if group.is_some_and(|group| !is_group(group)) {
        return Err("the workerGroup is empty, too long or not printable".to_owned());
    }
    let principal = principal(accepted_by, &token.tenant, &token.subject, grants, event_types);
    Ok(Principal { worker_group: group.map(Into::into), ..principal })
}

fn unhex(text: &str) -> Option<TokenDigest> {
    // `from_str_radix` would take a sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect::<Option<_>>()?;
    bytes.try_into().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventTypes, Scope};

    // SHA-256 of "abc", from FIPS 180-4.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn entry(token: Option<&str>, hash: Option<&str>) -> StaticToken {
        StaticToken {
            token: token.map(str::to_owned),
            token_sha256: hash.map(str::to_owned),
            subject: "builder".to_owned(),
            tenant: "acme".to_owned(),
            scopes: vec!["codeq:claim".to_owned()],
            event_types: vec!["Build".to_owned()],
            worker_group: Some("builders".to_owned()),
        }
    }

    fn refusal(token: StaticToken) -> String {
        StaticTokens::new(&[token], AcceptedBy::Worker).err().expect("is refused")
    }

    #[test]
    fn a_token_is_found_whether_listed_in_plain_or_as_a_hash() {
        for hash in [ABC.to_owned(), ABC.to_uppercase()] {
            let entries = [entry(Some("first"), None), entry(None, Some(&hash))];
            let tokens = StaticTokens::new(&entries, AcceptedBy::Worker).unwrap();
            assert!(tokens.find(&digest("first")).is_some());
            let found = tokens.find(&digest("abc")).expect("is known");
            assert_eq!((&*found.tenant, &*found.subject), ("acme", "builder"));
            assert!(found.worker && !found.producer);
            assert!(found.scopes.has(Scope::Claim) && !found.scopes.has(Scope::Nack));
            assert_eq!(found.event_types, EventTypes::Only(vec!["Build".into()]));
            assert_eq!(found.worker_group.as_deref(), Some("builders"));
            for wrong in ["", "ab", "abcd", "ABC", ABC] {
                assert_eq!(tokens.find(&digest(wrong)), None, "{wrong}");
            }
        }
    }

    #[test]
    fn each_token_finds_its_own_entry() {
        let entries: Vec<StaticToken> = (0..10)
            .map(|n| StaticToken {
                subject: format!("s{n}"),
                ..entry(Some(&format!("t{n}")), None)
            })
            .collect();
        let tokens = StaticTokens::new(&entries, AcceptedBy::Producer).unwrap();
        for n in 0..10 {
            let found = tokens.find(&digest(&format!("t{n}"))).expect("is known");
            assert_eq!(*found.subject, format!("s{n}"));
        }
        // Enough that many share the first byte of their digest with an entry.
        for n in 10..10_000 {
            assert_eq!(tokens.find(&digest(&format!("t{n}"))), None);
        }
    }

    #[test]
    fn errors_name_the_subject() {
        let long = "x".repeat(300);
        let cases = [
            (entry(None, None), "has neither"),
            (entry(Some("secret"), Some(ABC)), "has both"),
            (entry(Some(""), None), "token is empty"),
            (entry(Some("secret with space"), None), "visible ascii"),
            (entry(None, Some("abcd")), "64 hex"),
            (entry(None, Some(&ABC.replace('b', "g"))), "64 hex"),
            (entry(None, Some(&format!("{ABC}0"))), "64 hex"),
            (StaticToken { tenant: String::new(), ..entry(Some("secret"), None) }, "tenant"),
            (StaticToken { tenant: long.clone(), ..entry(Some("secret"), None) }, "tenant"),
            (
                StaticToken { scopes: vec!["codeq:clam".into()], ..entry(Some("secret"), None) },
                "unknown scope \"codeq:clam\"",
            ),
            (
                StaticToken { worker_group: Some("x".repeat(129)), ..entry(Some("secret"), None) },
                "workerGroup",
            ),
            (StaticToken { event_types: vec![long], ..entry(Some("secret"), None) }, "event type"),
        ];
        for (token, want) in cases {
            let text = refusal(token);
            assert!(text.contains("\"builder\"") && text.contains(want), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
        let nobody = StaticToken { subject: String::new(), ..entry(Some("secret"), None) };
        assert!(refusal(nobody).contains("the subject is empty"));
    }

    #[test]
    fn the_same_token_twice_is_refused() {
        let entries = [entry(Some("abc"), None), entry(None, Some(ABC))];
        let refused = StaticTokens::new(&entries, AcceptedBy::Worker).err().expect("is refused");
        assert!(refused.contains("same token"), "{refused}");
    }
}
