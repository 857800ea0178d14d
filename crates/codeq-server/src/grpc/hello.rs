//! The Hello, which opens every stream and identifies the client.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::HeaderMap;
use codeq_auth::{AuthError, Principal, Refusal, Role, bearer_token};
use codeq_proto::Message;
use futures_util::future::BoxFuture;
use tonic::Status;

use super::StreamOrigin;
use super::messages::Messages;
use crate::app::App;

/// Time limit for the Hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit when many streams are waiting for a Hello: real clients send it at once.
const HELLO_TIMEOUT_CROWDED: Duration = Duration::from_secs(2);

/// Waits for the first event, which must be a Hello. `hello` extracts it.
pub(super) async fn first<In: Message + Default, Hello>(
    app: &App,
    messages: &mut Messages<In>,
    hello: impl FnOnce(In) -> Option<Hello>,
) -> Result<Hello, Status> {
    let crowded = app.budget.strangers().is_crowded();
    let limit = if crowded { HELLO_TIMEOUT_CROWDED } else { HELLO_TIMEOUT };
    let first = tokio::time::timeout(limit, messages.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("no Hello in time"))??;
    first.and_then(hello).ok_or_else(|| Status::failed_precondition("first event must be Hello"))
}

/// Completes when the stream's token is revoked.
pub(super) type Revoked = BoxFuture<'static, ()>;

/// The token of a stream: from its Hello, or else from its metadata.
pub(super) struct Token<'a> {
    pub(super) hello: &'a str,
    pub(super) metadata: &'a HeaderMap,
}

impl Token<'_> {
    /// Authenticates the token. Returns the caller, and a future that completes when the token is
    /// revoked.
    pub(super) async fn authenticate(
        &self,
        app: &Arc<App>,
        origin: &StreamOrigin,
        service: &'static str,
        role: Role,
    ) -> Result<(Principal, Revoked), Status> {
        // A token read from a file often ends with a newline.
        let token = match self.hello.trim() {
            "" => bearer_token(self.metadata),
            token => Ok(token),
        };
        let refused = |error: AuthError| {
            if let Some(refusal) = error.refusal() {
                log(app, origin, service, &refusal);
            }
            status(&error)
        };
        let token = token.map_err(refused)?;
        let caller = app.auth.authenticate(token, role).await.map_err(refused)?;
        let (app, token, known) = (Arc::clone(app), token.to_owned(), caller.clone());
        let revoked = async move { app.auth.revoked(&token, role, &known).await };
        Ok((caller, Box::pin(revoked)))
    }
}

/// Logs why a token was refused, unless too many were refused recently.
fn log(app: &App, origin: &StreamOrigin, service: &'static str, refusal: &Refusal) {
    let Some(unlogged) = app.metrics.token_refused(refusal.reason) else {
        origin.quiet.store(true, Ordering::Relaxed);
        return;
    };
    tracing::warn!(
        target: "codeq::auth",
        request_id = %origin.request_id,
        service,
        peer = origin.peer.map(tracing::field::display),
        reason = refusal.reason.name(),
        detail = refusal.detail,
        unlogged,
        "a token was refused"
    );
}

fn status(error: &AuthError) -> Status {
    match error {
        AuthError::Missing => Status::unauthenticated("missing token"),
        AuthError::Unavailable => Status::unavailable(format!("auth failed: {error}")),
        AuthError::Invalid(refusal) => {
            Status::unauthenticated(format!("auth failed: {}", refusal.client_message()))
        }
        AuthError::WrongKind(_) | AuthError::TenantsDisagree => {
            Status::unauthenticated(format!("auth failed: {error}"))
        }
    }
}
