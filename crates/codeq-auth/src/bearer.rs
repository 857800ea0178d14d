//! Extracts the bearer token of a request.

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::refusal::{AuthError, Reason, Refusal};

/// Longest token to consider. Real ones are below 4 KiB; longer ones only cost time.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;

/// The trimmed token of the only `Authorization: Bearer` header. Rejects two such headers, because
/// a proxy may have checked the other one.
pub fn bearer_token(headers: &HeaderMap) -> Result<&str, AuthError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(AuthError::Missing)?;
    if values.next().is_some() {
        return Err(malformed("more than one authorization header").into());
    }
    let value = value.to_str().map_err(|_| malformed("authorization is not ascii"))?;
    let (scheme, token) = value.trim().split_once(' ').unwrap_or((value, ""));
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(AuthError::Missing);
    }
    check_token(token).map_err(malformed)?;
    Ok(token)
}

fn malformed(detail: &'static str) -> Refusal {
    Refusal::new(Reason::Malformed, detail)
}

/// Whether the text can be a token: not too long, and only visible ASCII.
pub(crate) fn check_token(token: &str) -> Result<(), &'static str> {
    if token.is_empty() {
        return Err("token is empty");
    }
    if token.len() > TOKEN_BYTES_MAX {
        return Err("token is too long");
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("token has characters other than visible ascii");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(values: &[&[u8]]) -> Result<String, AuthError> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        bearer_token(&headers).map(str::to_owned)
    }

    #[test]
    fn the_scheme_ignores_case() {
        for value in ["Bearer abc.d-e_f~+/=", "bearer abc.d-e_f~+/=", "BEARER abc.d-e_f~+/="] {
            assert_eq!(of(&[value.as_bytes()]).as_deref(), Ok("abc.d-e_f~+/="), "{value}");
        }
    }

    #[test]
    fn spaces_around_a_token_are_ignored() {
        for value in ["Bearer  a", "Bearer a ", " Bearer a", "Bearer \ta\t"] {
            assert_eq!(of(&[value.as_bytes()]).as_deref(), Ok("a"), "{value:?}");
        }
    }

    #[test]
    fn other_authorization_headers_count_as_missing() {
        let cases: [&[&[u8]]; 7] = [
            &[],
            &[b"Basic abc"],
            &[b"Bearer"],
            &[b"Bearer "],
            &[b"Bearer  "],
            &[b"Bearerabc"],
            &[b"abc"],
        ];
        for case in cases {
            assert_eq!(of(case), Err(AuthError::Missing), "{case:?}");
        }
    }

    #[test]
    fn ambiguous_headers_are_invalid() {
        let cases: [&[&[u8]]; 6] = [
            &[b"Bearer a", b"Bearer a"],
            &[b"Bearer a", b"Basic b"],
            &[b"Bearer a b"],
            &[b"Bearer a\tb"],
            &[b"Bearer a, Bearer b"],
            &[b"Bearer \xc3\xa9"],
        ];
        for case in cases {
            assert!(matches!(of(case), Err(AuthError::Invalid(_))), "{case:?}");
        }
    }

    #[test]
    fn tokens_that_are_too_long_are_refused() {
        let longest = "a".repeat(TOKEN_BYTES_MAX);
        assert_eq!(of(&[format!("Bearer {longest}").as_bytes()]), Ok(longest.clone()));
        let over = of(&[format!("Bearer {longest}a").as_bytes()]);
        assert_eq!(over, Err(AuthError::Invalid(malformed("token is too long"))));
    }
}
