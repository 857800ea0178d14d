//! The HTTP/JSON API. Handlers parse, call the service and shape the response.
//!
//! [`routes::ROUTES`] lists every route with its access rule, body limit and handler.
//! [`endpoint::run`] does the steps common to all of them: request id, token, rate limit, body, log
//! line and metrics.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter, on};
use tower::ServiceExt;

use crate::app::App;

pub mod body;
pub mod endpoint;
pub mod fields;
pub mod json;
pub mod openapi;
pub mod problem;
pub mod request_context;
pub mod response;
pub mod routes;
pub mod wire;

mod abandon;
mod artifacts;
mod audit;
mod backup;
mod bulk;
mod cancel;
mod claim;
mod cleanup;
mod dead_letters;
mod docs;
mod enqueue;
mod events;
mod heartbeat;
mod nack;
mod parse_error;
mod probes;
mod queues;
mod reload;
mod reschedule;
mod schema;
mod submit;
mod subscriptions;
mod tasks;
mod topics;
mod unrouted;
mod webhooks;
mod why;
mod workers;

use routes::{ROUTES, Route, Verb};

/// The router for all routes.
pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    for path in paths {
        let mut methods = MethodRouter::new();
        for route in ROUTES.iter().filter(|route| route.path == path) {
            let app = Arc::clone(&app);
            let serve = move |request: Request| endpoint::run(Arc::clone(&app), route, request);
            methods = methods.merge(on(filter(route), serve));
        }
        let app = Arc::clone(&app);
        methods = methods.fallback(move |request: Request| {
            let (method, asked) = (request.method().as_str(), request.uri().path());
            let problem = unrouted::wrong_method(method, path, asked);
            endpoint::refuse(Arc::clone(&app), request, problem)
        });
        router = router.route(path, methods);
    }
    let not_found = move |request: Request| {
        let problem = unrouted::not_found(request.method().as_str(), request.uri().path());
        endpoint::refuse(Arc::clone(&app), request, problem)
    };
    let exact = router.clone().fallback(not_found.clone());
    // Serve a path with a trailing slash like the path without it.
    router.fallback(move |mut request: Request| {
        let (exact, not_found) = (exact.clone(), not_found.clone());
        async move {
            match unrouted::without_slash(request.uri()) {
                None => not_found(request).await,
                Some(uri) => {
                    *request.uri_mut() = uri;
                    exact.oneshot(request).await.into_response()
                }
            }
        }
    })
}

/// The router for the separate metrics port, which needs no token.
pub fn metrics_router(app: Arc<App>) -> Router {
    let route = &routes::METRICS_ALONE;
    let serve = move |request: Request| endpoint::run(Arc::clone(&app), route, request);
    Router::new().route(route.path, on(filter(route), serve))
}

fn filter(route: &Route) -> MethodFilter {
    match route.verb {
        Verb::Get => MethodFilter::GET,
        Verb::Post => MethodFilter::POST,
        Verb::Put => MethodFilter::PUT,
        Verb::Delete => MethodFilter::DELETE,
        Verb::Patch => MethodFilter::PATCH,
    }
}
