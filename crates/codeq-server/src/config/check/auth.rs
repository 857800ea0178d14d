//! Checks that authentication settings are complete and safe.

use std::collections::BTreeMap;

use codeq_auth::mask::mask_url;
use codeq_auth::{
    ADMIN, AuthConfig, EVENT_TYPES_MAX, JwtConfig, OPERATOR, Scope, StaticToken, is_group,
    is_subject,
};
use codeq_core::names::{check_command, check_tenant};
use sha2::{Digest, Sha256};

use crate::config::problem::{Problem, shown};
use crate::hex::hex;
use crate::suggest::nearest;

/// Maximum number of issuers, and of fixed tokens, per role.
const METHODS_MAX: usize = 1_000;
/// Longest fixed token, in bytes. A JWT may be longer.
const FIXED_TOKEN_BYTES_MAX: usize = 4_096;

pub(super) fn check(auth: &AuthConfig, role: &str, problems: &mut Vec<Problem>) {
    for (name, count) in [("jwt", auth.jwt.len()), ("staticTokens", auth.static_tokens.len())] {
        if count > METHODS_MAX {
            let text = format!("found {count}, expected at most {METHODS_MAX}");
            problems.push(Problem::of(format!("{role}.{name}"), text));
            return;
        }
    }
    for (index, jwt) in auth.jwt.iter().enumerate() {
        check_jwt(jwt, &format!("{role}.jwt[{index}]"), problems);
    }
    let mut known = BTreeMap::new();
    for (index, token) in auth.static_tokens.iter().enumerate() {
        let path = format!("{role}.staticTokens[{index}]");
        check_static(token, &path, problems);
        if let Some(first) = hash(token).and_then(|hash| known.insert(hash, index)) {
            let text = format!("the same token as staticTokens[{first}]");
            problems.push(Problem::of(path, text));
        }
    }
}

/// Warnings about fixed worker tokens that authenticate but permit nothing.
pub(super) fn powerless_worker_tokens(workers: &AuthConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, token) in workers.static_tokens.iter().enumerate() {
        let path = format!("workerAuth.staticTokens[{index}]");
        if token.scopes.is_empty() {
            warnings.push(format!("{path} has no scopes: it may not claim or finish tasks"));
        }
        if token.event_types.is_empty() {
            let text = "has no eventTypes: it may claim no task ('*' allows all)";
            warnings.push(format!("{path} {text}"));
        }
    }
    warnings
}

/// Whether the entry matches this plain token.
pub(super) fn is_token(token: &StaticToken, plain: &str) -> bool {
    hash(token) == Some(digest(plain))
}

fn check_jwt(jwt: &JwtConfig, path: &str, problems: &mut Vec<Problem>) {
    if jwt.issuer.is_empty() {
        let text = "missing: the 'iss' that tokens carry";
        problems.push(Problem::of(format!("{path}.issuer"), text));
    }
    if jwt.audience.is_empty() {
        let text = "missing: the 'aud' that tokens carry; without it a token for another service \
                    would be accepted";
        problems.push(Problem::of(format!("{path}.audience"), text));
    }
    // The issuer's discovery document is fetched; with jwksUrl the issuer is only compared.
    let (name, url) = match &jwt.jwks_url {
        Some(url) => ("jwksUrl", url),
        None if jwt.issuer.is_empty() => return,
        None => ("issuer", &jwt.issuer),
    };
    if let Err(why) = jwt.check_key_url() {
        let found = shown(&mask_url(url));
        let expected = "expected an https address (http on this machine only)";
        let text = format!("found '{found}', which {why}; {expected}");
        problems.push(Problem::of(format!("{path}.{name}"), text));
    }
}

fn check_static(token: &StaticToken, path: &str, problems: &mut Vec<Problem>) {
    let mut problem = |name: &str, text: &str| {
        problems.push(Problem::of(format!("{path}{name}"), text));
    };
    match (&token.token, &token.token_sha256) {
        (None, None) => problem("", "needs token or tokenSha256"),
        (Some(_), Some(_)) => problem("", "has token and tokenSha256: one of them is enough"),
        (Some(token), None) if !is_bearer(token) => {
            problem(".token", "must be 1 to 4096 visible ASCII characters without spaces");
        }
        (None, Some(hash)) if !is_sha256(hash) => {
            problem(".tokenSha256", "must be 64 hex digits: printf %s TOKEN | sha256sum");
        }
        _ => {}
    }
    if !is_subject(&token.subject) {
        problem(".subject", "must be 1 to 256 bytes without control characters or U+FDD0");
    }
    if check_tenant(&token.tenant).is_err() {
        problem(".tenant", "must be 1 to 256 bytes without control characters");
    }
    let known = || Scope::ALL.map(Scope::name).into_iter().chain([ADMIN, OPERATOR]);
    for (index, scope) in token.scopes.iter().enumerate() {
        if !known().any(|known| known == scope) {
            let near = nearest(scope, known().map(|scope| (scope, scope)));
            let near = near.map(|near| format!(", did you mean '{near}'?")).unwrap_or_default();
            let text = format!("unknown scope '{}'{near}", shown(scope));
            problem(&format!(".scopes[{index}]"), &text);
        }
    }
    let count = token.event_types.len();
    if count > EVENT_TYPES_MAX {
        problem(".eventTypes", &format!("found {count}, expected at most {EVENT_TYPES_MAX}"));
    }
    for (index, name) in token.event_types.iter().enumerate() {
        if check_command(name).is_err() {
            let text = "must be '*' or a command of 1 to 128 bytes without control characters";
            problem(&format!(".eventTypes[{index}]"), text);
        }
    }
    if token.worker_group.as_deref().is_some_and(|group| !is_group(group)) {
        problem(".workerGroup", "must be 1 to 128 bytes without control characters");
    }
}

fn is_bearer(token: &str) -> bool {
    (1..=FIXED_TOKEN_BYTES_MAX).contains(&token.len())
        && token.bytes().all(|b| b.is_ascii_graphic())
}

fn is_sha256(hash: &str) -> bool {
    hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The token's hash in lower-case hex.
fn hash(token: &StaticToken) -> Option<String> {
    let given = token.token_sha256.as_ref().map(|hash| hash.to_ascii_lowercase());
    given.or_else(|| token.token.as_deref().map(digest))
}

fn digest(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}
