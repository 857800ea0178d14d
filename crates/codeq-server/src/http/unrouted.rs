//! Requests that match no route: suggests the route that was probably meant.

use axum::http::uri::{PathAndQuery, Uri};
use codeq_core::names::cut;

use super::problem::Problem;
use super::routes::{ROUTES, Route};
use crate::service::{Code, ServiceError};
use crate::suggest::distance;

/// The base path of the API.
const BASE: &str = "/v1/codeq";
/// Maximum bytes of a path that an error message repeats.
const PATH_BYTES_MAX: usize = 100;
/// Maximum path segments to compare. No route has as many.
const PARTS_MAX: usize = 12;

/// The URI without its trailing slash, if there is exactly one.
pub fn without_slash(uri: &Uri) -> Option<Uri> {
    let path =
        uri.path().strip_suffix('/').filter(|path| !path.is_empty() && !path.ends_with('/'))?;
    let path = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.ok()?);
    Uri::from_parts(parts).ok()
}

/// The error for an unknown path.
pub fn not_found(method: &str, path: &str) -> Problem {
    let shown = cut(path, PATH_BYTES_MAX);
    let more = if shown.len() < path.len() { "…" } else { "" };
    let instead = match nearest(method, path) {
        Some(route) => format!("did you mean {} {}?", route.verb.name(), route.path),
        None => "the routes are listed at /docs".to_owned(),
    };
    let detail = format!("there is no {} {shown}{more}: {instead}", cut(method, PATH_BYTES_MAX));
    ServiceError::new(Code::NoSuchRoute, "not found").detail(detail).into()
}

/// The error for a method that `route` does not support.
pub fn wrong_method(method: &str, route: &str, path: &str) -> Problem {
    let verbs = ROUTES.iter().filter(|other| other.path == route).map(|other| other.verb.name());
    let verbs = verbs.collect::<Vec<_>>().join(" or ");
    let shown = cut(method, PATH_BYTES_MAX);
    let mut detail = format!("{route} does not support {shown}: use {verbs}");
    // A segment meant as the name of another route may have matched a path parameter.
    if let Some(near) = with_method(method, path) {
        detail.push_str(&format!("; or did you mean {} {}?", near.verb.name(), near.path));
    }
    ServiceError::new(Code::MethodNotAllowed, "method not allowed").detail(detail).into()
}

/// The route that was most likely meant.
fn nearest(method: &str, path: &str) -> Option<&'static Route> {
    with_method(method, path).or_else(|| nearest_of(ROUTES.iter(), path))
}

/// The nearest route with this method.
fn with_method(method: &str, path: &str) -> Option<&'static Route> {
    nearest_of(ROUTES.iter().filter(|route| route.verb.name() == method), path)
}

fn nearest_of(routes: impl Iterator<Item = &'static Route>, path: &str) -> Option<&'static Route> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.len() > PARTS_MAX {
        return None;
    }
    let scored = routes.filter_map(|route| Some((score(route, &parts)?, route)));
    scored.min_by_key(|(score, _)| *score).map(|(_, route)| route)
}

/// The distance between a path and a route. Compares only the last segments, so a missing or
/// mistyped base does not count. Ignores path parameters.
fn score(route: &Route, parts: &[&str]) -> Option<(usize, usize)> {
    let own = route.path.strip_prefix(BASE).unwrap_or(route.path).trim_start_matches('/');
    let own_parts: Vec<&str> = own.split('/').collect();
    let parts = parts.get(parts.len().checked_sub(own_parts.len())?..)?;
    // Path parameters would count as matching letters.
    let fixed = |part: &str| !part.starts_with('{');
    let meant: Vec<&str> = own_parts.iter().copied().filter(|own| fixed(own)).collect();
    let said = own_parts.iter().zip(parts).filter(|(own, _)| fixed(own));
    let said: Vec<&str> = said.map(|(_, part)| *part).collect();
    if own.is_empty() { None } else { distance(&said.join("/"), &meant.join("/")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(method: &str, path: &str) -> Option<(&'static str, &'static str)> {
        nearest(method, path).map(|route| (route.verb.name(), route.path))
    }

    #[test]
    fn an_unknown_path_suggests_the_nearest_route() {
        for (method, path, verb, meant) in [
            ("POST", "/v1/codeq/task", "POST", "/v1/codeq/tasks"),
            ("GET", "/v1/codeq/task", "GET", "/v1/codeq/tasks"),
            ("POST", "/tasks", "POST", "/v1/codeq/tasks"),
            ("POST", "/v1/tasks", "POST", "/v1/codeq/tasks"),
            ("POST", "/v2/codeq/tasks/claim", "POST", "/v1/codeq/tasks/claim"),
            ("POST", "/v1/codeq/tasks/claims", "POST", "/v1/codeq/tasks/claim"),
            ("GET", "/v1/codeq/tasks/0190-x/results", "GET", "/v1/codeq/tasks/{id}/result"),
            ("POST", "/v1/codeq/tasks/0190-x/ack", "POST", "/v1/codeq/tasks/{id}/nack"),
            ("POST", "/v1/codeq/admin/dql/x/purge", "POST", "/v1/codeq/admin/dlq/{command}/purge"),
            ("GET", "/metric", "GET", "/metrics"),
            ("GET", "/health", "GET", "/healthz"),
        ] {
            assert_eq!(near(method, path), Some((verb, meant)), "{method} {path}");
        }
        let long = "/x".repeat(1_000);
        for path in ["/", "//", "/v1/codeq", "/v1/codeq/xyz", "/foo/bar/baz", &long] {
            assert_eq!(near("GET", path), None, "{path}");
        }
    }

    #[test]
    fn exactly_one_trailing_slash_is_ignored() {
        let without = |text: &'static str| without_slash(&Uri::from_static(text));
        assert_eq!(without("/v1/codeq/tasks/"), Some(Uri::from_static("/v1/codeq/tasks")));
        assert_eq!(
            without("/v1/codeq/tasks/?a=b%2F/"),
            Some(Uri::from_static("/v1/codeq/tasks?a=b%2F/"))
        );
        assert_eq!(without("http://h/x/"), Some(Uri::from_static("http://h/x")));
        for text in ["/", "//", "/x//", "/x", "*"] {
            assert_eq!(without(text), None, "{text}");
        }
    }
}
