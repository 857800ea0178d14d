//! Bulk operations: many tasks in one call, in bounded parts with other tenants' commands in between.

use codeq_core::command::{BulkFrom, BulkPart, BulkWork};
use codeq_core::limits::{BULK_LOOK_MAX, BULK_MAX, BULK_TAKE_MAX};
use tokio::time::Instant;

use super::scan::CALL_TIME;
use super::{Service, ServiceError, cursor};
use crate::auth::Principal;

/// What a call did.
pub struct BulkOutcome {
    /// Tasks touched.
    pub done: u64,
    /// Where to go on, if the call ended before everything was looked at.
    pub next: Option<String>,
    /// It ended because its time was over: whoever begins anew may not get any further.
    pub out_of_time: bool,
}

impl BulkOutcome {
    /// Where to go on, if beginning anew would not do: what a call has removed is not looked at again.
    pub fn next_if_needed(self) -> Option<String> {
        self.next.filter(|_| self.out_of_time)
    }
}

impl Service {
    /// Works until `limit` tasks are touched, everything was looked at, or the time of a call is over.
    pub(super) async fn bulk(
        &self,
        caller: &Principal,
        work: BulkWork,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<BulkOutcome, ServiceError> {
        let about = about(caller, &work);
        let start =
            cursor.map_or(Ok((0, BulkFrom::default())), |text| cursor::decode_from(text, &about));
        let (mut shard, mut from) = start?;
        let began = Instant::now();
        let mut done = 0;
        while shard < self.engine.shards() {
            let left = u64::from(limit).saturating_sub(done);
            if left == 0 || began.elapsed() >= CALL_TIME {
                let next = cursor::encode_from(shard, &from, &about);
                return Ok(BulkOutcome { done, next: Some(next), out_of_time: left > 0 });
            }
            let part = BulkPart {
                tenant: caller.tenant.clone(),
                work: work.clone(),
                from,
                take: left.min(BULK_TAKE_MAX.into()) as u32,
                look: BULK_LOOK_MAX,
                by: caller.subject.clone(),
            };
            // One part of a tenant at a time: a hundred calls at once must not fill the shard's inbox.
            let turn = self.scans.turn(&caller.tenant).await?;
            let did = self.engine.bulk_part(shard, part).await?;
            drop(turn);
            done += did.done;
            match did.next {
                Some(next) => from = next,
                None => (shard, from) = (shard + 1, BulkFrom::default()),
            }
        }
        Ok(BulkOutcome { done, next: None, out_of_time: false })
    }
}

/// How much work one call does: none means as much as is allowed.
pub(super) fn bulk_limit(limit: Option<u32>) -> Result<u32, ServiceError> {
    match limit {
        None | Some(0) => Ok(BULK_MAX),
        Some(limit) if limit <= BULK_MAX => Ok(limit),
        Some(_) => {
            let text = format!("invalid 'limit' (1 to {BULK_MAX})");
            Err(ServiceError::invalid("invalid_limit", text).field("limit"))
        }
    }
}

/// What a cursor is bound to. The moment of a cleanup is not part of it: without one it is the moment of the
/// call.
fn about(caller: &Principal, work: &BulkWork) -> Vec<Option<String>> {
    let (what, command, part) = match work {
        BulkWork::Cleanup { .. } => ("cleanup", None, None),
        BulkWork::PurgeDead { command } => ("purge dead", Some(command), None),
        BulkWork::PurgeWaiting { command } => ("purge waiting", Some(command), None),
        BulkWork::Replay { command, error_contains } => {
            ("replay", Some(command), error_contains.as_ref())
        }
    };
    vec![
        Some(caller.tenant.to_string()),
        Some(what.to_owned()),
        command.map(|name| name.to_ascii_lowercase()),
        part.map(|text| text.to_string()),
    ]
}
