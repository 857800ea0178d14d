//! What both kinds of webhooks need to send: signing, posting, counting.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use codeq_engine::{Engine, EngineError};
use futures_util::FutureExt;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use crate::client::{Answered, Client, SendError};
use crate::dispatcher::{Call, Outcome};
use crate::policy::{AddressPolicy, Destination};
use crate::report::{FormatTime, Report};
use crate::secrets::Secrets;
use crate::signing;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Everything that sending a webhook needs.
pub struct Outbound {
    /// Holds the tasks, callbacks and subscriptions.
    pub engine: Arc<Engine>,
    /// Sends the requests.
    pub client: Client,
    /// Which addresses may be called.
    pub policy: Arc<AddressPolicy>,
    /// What calls are signed with.
    pub secrets: Arc<Secrets>,
    /// Counts and traces the calls.
    pub report: Arc<dyn Report>,
    /// Formats the timestamps in bodies.
    pub format_time: FormatTime,
}

/// Why a post got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    #[error(transparent)]
    Secrets(#[from] EngineError),
    #[error(transparent)]
    Send(#[from] SendError),
}

impl PostError {
    /// Whether the call was not tried, through no fault of the receiver.
    pub(crate) fn is_untried(&self) -> bool {
        matches!(self, PostError::Secrets(_) | PostError::Send(SendError::Busy))
    }
}

impl Outbound {
    /// Signs a JSON body with the tenant's secrets and posts it. `more` are additional headers, sent unchanged.
    pub(crate) async fn post(
        &self,
        tenant: &Arc<str>,
        to: &Destination,
        id: &str,
        more: HeaderMap,
        body: Bytes,
    ) -> Result<Answered, PostError> {
        let secrets = self.secrets.live(tenant).await?;
        let mut headers = signing::headers(&secrets, id, self.engine.wall() / 1_000, &body);
        headers.insert(CONTENT_TYPE, JSON);
        headers.extend(more);
        Ok(self.client.post(tenant, to, headers, body).await?)
    }
}

/// Runs a call and returns it together with its outcome. A call that panics is made again, because nothing has recorded
/// how it ended.
pub(crate) async fn run<T>(
    call: Call<T>,
    sending: impl Future<Output = Outcome>,
) -> (Call<T>, Outcome) {
    let outcome = AssertUnwindSafe(sending).catch_unwind().await;
    (call, outcome.unwrap_or(Outcome::Busy))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::JoinSet;
    use tokio::time::Instant;

    use codeq_core::id::ShardId;
    use codeq_core::keys::Seq;

    use super::*;
    use crate::dispatcher::Receiver;
    use crate::results::{Backlog, Callback};

    #[test]
    fn a_call_whose_secrets_cannot_be_read_was_not_tried() {
        assert!(PostError::from(EngineError::NoLeader).is_untried());
        assert!(PostError::from(SendError::Busy).is_untried());
        assert!(!PostError::from(SendError::TimedOut).is_untried());
    }

    #[tokio::test]
    async fn a_call_that_panics_gives_its_slot_back_and_is_made_again() {
        let mut backlog = Backlog::new(1, 1);
        for seq in 0..100 {
            backlog.add(
                Receiver { tenant: seq, host: seq },
                Callback { shard: ShardId(0), seq: Seq(seq) },
                1,
            );
        }
        let mut calls = JoinSet::new();
        for _ in 0..100 {
            let call = backlog.next_call().expect("a slot is free");
            assert_eq!(backlog.next_call(), None);
            calls.spawn(run(call, async { panic!("on purpose") }));
            let (call, outcome) = calls.join_next().await.unwrap().expect("it returns its outcome");
            backlog.done(call, outcome, Instant::now());
        }
        assert_eq!(backlog.next_call(), None, "all were called once");
        backlog.wake(Instant::now() + Duration::from_secs(1));
        assert!(backlog.next_call().is_some());
    }
}
