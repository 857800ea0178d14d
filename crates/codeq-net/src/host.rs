//! Checks which host a request names.

use std::sync::Arc;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, Version, header};

/// Status and text of a refused request.
type Refusal = (StatusCode, &'static str);

const AMBIGUOUS: Refusal = (StatusCode::BAD_REQUEST, "the request must name one host\n");
const FOREIGN: Refusal = (
    StatusCode::MISDIRECTED_REQUEST,
    "this server has a token that everybody knows, so it answers only to localhost, 127.0.0.1, [::1], its own address and \
     the host of its public URL: a web page must not reach it under another name\n",
);

/// The hosts that a request may name.
#[derive(Debug, Clone, Default)]
pub struct Hosts(Option<Arc<[String]>>);

impl Hosts {
    /// Allows the names of this machine plus `more`.
    pub fn local(more: impl IntoIterator<Item = String>) -> Hosts {
        let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let more = more.into_iter().map(|host| plain(&host));
        Hosts(Some(own.into_iter().chain(more).collect()))
    }

    /// Refuses a request that names several hosts, or in HTTP/1.1 none: proxies on the way could each
    /// pick a different one. HTTP/2 and the absolute form of HTTP/1.1 name the host in the target; a
    /// `Host` header next to it must match. If only some hosts are allowed, every request must name
    /// one of them; otherwise HTTP/1.0 and HTTP/2 need not name any.
    pub(crate) fn refuse(
        &self,
        version: Version,
        target: &Uri,
        headers: &HeaderMap,
    ) -> Option<Refusal> {
        let mut named = headers.get_all(header::HOST).iter();
        let (first, second) = (named.next(), named.next());
        if second.is_some() || (first.is_none() && version == Version::HTTP_11) {
            return Some(AMBIGUOUS);
        }
        let target = target.authority();
        // Fast path for the common case: any host is allowed and only one place names it.
        if self.0.is_none() && (target.is_none() || first.is_none()) {
            return None;
        }
        let first = first.map(HeaderValue::as_bytes).filter(|first| !first.is_empty());
        let Ok(first) = first.map(Authority::try_from).transpose() else { return Some(AMBIGUOUS) };
        if let (Some(target), Some(first)) = (target, &first)
            && target != first
        {
            return Some(AMBIGUOUS);
        }
        let accepted = self.0.as_ref()?;
        let host = target.or(first.as_ref()).map(|host| plain(host.host()));
        (!host.is_some_and(|host| accepted.contains(&host))).then_some(FOREIGN)
    }
}

/// Lowercase, without brackets and the dot of a fully qualified name.
fn plain(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    host.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(hosts: &Hosts, version: Version, target: &str, named: &[&str]) -> Option<u16> {
        let mut headers = HeaderMap::new();
        for host in named {
            headers.append(header::HOST, host.parse().unwrap());
        }
        let target: Uri = target.parse().unwrap();
        hosts.refuse(version, &target, &headers).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn exactly_one_host() {
        use Version as V;
        for (version, target, named, status) in [
            (V::HTTP_11, "/", &["a.test"] as &[&str], None),
            (V::HTTP_11, "/", &["a.test:80"], None),
            (V::HTTP_11, "/", &[""], None),
            (V::HTTP_11, "/", &[], Some(400)),
            (V::HTTP_11, "/", &["a.test", "a.test"], Some(400)),
            (V::HTTP_11, "/", &["a.test", "b.test"], Some(400)),
            (V::HTTP_11, "http://a.test/", &["a test"], Some(400)),
            (V::HTTP_11, "http://a.test/", &["a.test"], None),
            (V::HTTP_11, "http://a.test/", &["b.test"], Some(400)),
            (V::HTTP_10, "/", &[], None),
            (V::HTTP_10, "/", &["a.test", "a.test"], Some(400)),
            (V::HTTP_2, "http://a.test/", &[], None),
            (V::HTTP_2, "http://a.test/", &["A.test"], None),
            (V::HTTP_2, "http://a.test/", &["b.test"], Some(400)),
            (V::HTTP_2, "http://a.test/", &["a.test:81"], Some(400)),
            (V::HTTP_2, "http://a.test/", &["a.test", "a.test"], Some(400)),
        ] {
            let found = refused(&Hosts::default(), version, target, named);
            assert_eq!(found, status, "{version:?} {target} {named:?}");
        }
    }

    #[test]
    fn a_local_server_answers_to_its_own_names_only() {
        let hosts = Hosts::local(["CodeQ.test".to_owned(), "[fd00::1]".to_owned()]);
        for (host, status) in [
            ("localhost", None),
            ("LocalHost:8080", None),
            ("localhost.", None),
            ("127.0.0.1:1", None),
            ("[::1]:9", None),
            ("codeq.test", None),
            ("[FD00::1]:8080", None),
            ("rebound.example", Some(421)),
            ("127.0.0.1.rebound.example", Some(421)),
            ("localhost.rebound.example:8080", Some(421)),
            ("", Some(421)),
        ] {
            assert_eq!(refused(&hosts, Version::HTTP_11, "/", &[host]), status, "{host}");
        }
        assert_eq!(refused(&hosts, Version::HTTP_2, "http://rebound.example/", &[]), Some(421));
        assert_eq!(refused(&hosts, Version::HTTP_2, "http://localhost:1/", &[]), None);
        assert_eq!(refused(&hosts, Version::HTTP_2, "/", &[]), Some(421));
    }
}
