//! Hello: the first event of a stream says who is there.

use std::sync::Arc;
use std::time::Duration;

use codeq_proto::Message;
use futures_util::future::BoxFuture;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::events::Events;
use crate::auth::{AuthError, Principal, Role, bearer_token};
use crate::http::App;

/// Time for the Hello.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same while very many streams wait for theirs: those who come to work send it at once.
const PATIENCE_CROWDED: Duration = Duration::from_secs(2);

/// Waits for the first event, which `hello` must find to be a Hello.
pub(super) async fn first<In: Message + Default, Hello>(
    app: &App,
    events: &mut Events<In>,
    hello: impl FnOnce(In) -> Option<Hello>,
) -> Result<Hello, Status> {
    let crowded = app.budget.strangers().is_crowded();
    let patience = if crowded { PATIENCE_CROWDED } else { PATIENCE };
    let first = tokio::time::timeout(patience, events.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("no Hello in time"))??;
    first.and_then(hello).ok_or_else(|| Status::failed_precondition("first event must be Hello"))
}

/// Comes to its end when the token of a stream is withdrawn.
pub(super) type Withdrawn = BoxFuture<'static, ()>;

/// Who the bearer of the token is, and until when: of the one in the Hello, or else of the one in the metadata.
pub(super) async fn authenticate(
    app: &Arc<App>,
    token: &str,
    metadata: MetadataMap,
    role: Role,
) -> Result<(Principal, Withdrawn), Status> {
    let headers = metadata.into_headers();
    let token = match token {
        "" => bearer_token(&headers).map_err(refusal)?,
        token => token,
    };
    let caller = app.auth.authenticate(token, role).await.map_err(refusal)?;
    let (app, token, known) = (Arc::clone(app), token.to_owned(), caller.clone());
    let withdrawn = async move { app.auth.withdrawn(&token, role, &known).await };
    Ok((caller, Box::pin(withdrawn)))
}

fn refusal(error: AuthError) -> Status {
    match error {
        AuthError::Missing => Status::unauthenticated("missing token"),
        AuthError::Unavailable => Status::unavailable(format!("auth failed: {error}")),
        AuthError::Invalid(_) | AuthError::Forbidden(_) => {
            Status::unauthenticated(format!("auth failed: {error}"))
        }
    }
}
