//! Claim: a worker asks for work.

use std::sync::Arc;

use codeq_auth::{EventTypes, Principal};
use codeq_core::command::{Claim, Selector};
use codeq_core::limits::COMMAND_BYTES_MAX;
use codeq_core::names::cut;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::view::Task;
use codeq_engine::{Answer, Call};

use super::lease::identity;
use super::permission::MayClaim;
use super::prepared_call::PreparedCall;
use super::trace::span_of;
use super::{Code, Service, ServiceError, seconds, trimmed};

/// Longest a claim request may wait for a task, in seconds.
pub const CLAIM_WAIT_MAX: u64 = 30;
/// How long a stream's `Ready` waits, in seconds. It waits until a task arrives, but the engine needs a deadline.
pub const READY_WAIT: u64 = 366 * 86_400;

/// A claim as a worker sends it.
#[derive(Debug, Clone, Default)]
pub struct ClaimRequest {
    /// Commands to claim; empty means all the token allows. Names are trimmed and blank ones
    /// ignored, but a list of only blank names is an error rather than "all".
    pub commands: Vec<Arc<str>>,
    /// Lease length in seconds; absent or zero means the default.
    pub lease_seconds: Option<i64>,
    /// Seconds to wait for a task.
    pub wait_seconds: u64,
    /// Maximum number of tasks to return.
    pub count: u32,
    /// Names the claiming instance under the token's subject.
    pub worker_id: Option<Box<str>>,
}

impl Service {
    /// Leases tasks to the caller, waiting for the first if none is ready. `record` shows the claim to admins, with the
    /// number of stream slots that wait for it; a stream that repeats a claim records it only now and then.
    pub fn claim(
        &self,
        caller: MayClaim<'_>,
        request: &ClaimRequest,
        record: Option<u32>,
    ) -> Result<PreparedCall<Vec<Task>>, ServiceError> {
        let worker = match &request.worker_id {
            Some(name) => identity(&caller, name)?,
            None => caller.subject.clone(),
        };
        let from = selector(&caller, &request.commands)
            .inspect_err(|refused| self.worker_failed(&caller, Some(&worker), &refused.error))?;
        let claim = Claim {
            tenant: caller.tenant.clone(),
            worker,
            lease: self.lease(request.lease_seconds, "leaseSeconds")?,
            count: request.count,
            from,
        };
        if let Some(slots) = record {
            self.activity.claimed(&claim, slots, self.now().now);
        }
        Ok(PreparedCall::new(Call::Claim { claim, wait: seconds(request.wait_seconds) }, claimed))
    }

    /// Lets admins see a failure that a worker reported, or the refusal of its claim.
    pub(super) fn worker_failed(
        &self,
        caller: &Principal,
        instance: Option<&Arc<str>>,
        error: &str,
    ) {
        let worker = instance.unwrap_or(&caller.subject);
        self.activity.failed(&caller.tenant, worker, error, self.now().now);
    }

    /// Checks the number of tasks a claim asks for.
    pub fn check_claim_count(&self, count: i64) -> Result<u32, ServiceError> {
        let max = self.defaults.load().claim_max;
        match u32::try_from(count) {
            Ok(0) | Err(_) if count <= 0 => {
                let detail = format!("count is missing or not 1 to {max}");
                Err(ServiceError::invalid_body().field("count").detail(detail))
            }
            Ok(count) if count as usize <= max => Ok(count),
            _ => {
                let text = format!("count exceeds maximum of {max}");
                Err(ServiceError::new(Code::InvalidCount, text))
            }
        }
    }
}

/// Reads the claimed tasks from the answer.
fn claimed(answer: Answer) -> Result<Vec<Task>, ServiceError> {
    match answer? {
        Reply::Claimed(tasks) => {
            // Record each claim as an instant in its producer's trace.
            tasks.iter().for_each(|task| drop(span_of("claim", task)));
            Ok(tasks)
        }
        Reply::Rejected(Rejection::InvalidCommand) => {
            Err(ServiceError::from(Rejection::InvalidCommand).field("commands"))
        }
        Reply::Rejected(rejection) => Err(rejection.into()),
        _ => Err(ServiceError::unexpected()),
    }
}

fn selector(caller: &Principal, named: &[Arc<str>]) -> Result<Selector, ServiceError> {
    let refused = |detail: String| {
        ServiceError::forbidden("event type not allowed").field("commands").detail(detail)
    };
    let wanted: Vec<Arc<str>> = named.iter().filter_map(trimmed).collect();
    if wanted.is_empty() && !named.is_empty() {
        let detail =
            "commands contains only blank names; omit it to claim all that the token allows";
        return Err(ServiceError::from(Rejection::InvalidCommand).field("commands").detail(detail));
    }
    if let Some(command) = wanted.iter().find(|command| !caller.event_types.allows(command)) {
        let command = cut(command, COMMAND_BYTES_MAX);
        return Err(refused(format!("the token's eventTypes do not include '{command}'")));
    }
    match (&caller.event_types, wanted.is_empty()) {
        (_, false) => Ok(Selector::Commands(wanted)),
        (EventTypes::Any, true) => Ok(Selector::Any),
        (EventTypes::Only(allowed), true) if allowed.is_empty() => {
            Err(refused("the token has no eventTypes, so it cannot claim anything".to_owned()))
        }
        (EventTypes::Only(allowed), true) => Ok(Selector::Commands(allowed.clone())),
    }
}
