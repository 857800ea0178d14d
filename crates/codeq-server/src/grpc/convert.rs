//! Conversions between engine types and wire types.

use codeq_auth::display_identity;
use codeq_core::command::Millis;
use codeq_core::view::Task;
use codeq_proto::{Timestamp, worker};

use crate::service::{Code, Kind, ServiceError};
use crate::times::Times;

/// A task as its worker sees it.
pub(super) fn task(task: Task, times: &Times) -> worker::Task {
    let text = |text: Option<std::sync::Arc<str>>| {
        text.map_or_else(String::new, |t| t.as_ref().to_owned())
    };
    worker::Task {
        id: task.id.to_string(),
        command: task.command.as_ref().to_owned(),
        payload: task.payload,
        priority: i32::from(task.priority),
        webhook: text(task.webhook),
        max_attempts: number(task.max_attempts),
        status: task.place.status().as_str().to_owned(),
        worker_id: task
            .worker
            .as_deref()
            .map_or_else(String::new, |worker| display_identity(worker).into_owned()),
        lease_until: task.lease_until.map_or_else(String::new, |at| times.text(at)),
        attempts: number(task.attempts),
        tenant_id: task.tenant.as_ref().to_owned(),
        created_at: Some(timestamp(task.created_at)),
        updated_at: Some(timestamp(task.updated_at)),
        fence: task.fence.0,
        trace_parent: text(task.trace_parent),
        trace_state: text(task.trace_state),
        cancel_requested: task.cancel_requested,
        run_until: task.run_until.map(timestamp),
    }
}

/// Converts to the signed integer that the wire uses.
pub(super) fn number(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn timestamp(at: Millis) -> Timestamp {
    let seconds = i64::try_from(at / 1_000).unwrap_or(i64::MAX);
    // Always below a billion.
    let nanos = i32::try_from(at % 1_000 * 1_000_000).unwrap_or(0);
    Timestamp { seconds, nanos }
}

/// Reads a wire timestamp. Times before 1970 become 0: they are in the past either way.
pub(super) fn moment(at: Timestamp) -> Result<Millis, ServiceError> {
    let nanos = u32::try_from(at.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
    let Some(nanos) = nanos else {
        let text = "invalid run_at: nanos must be 0 to 999999999";
        return Err(ServiceError::new(Code::InvalidRunAt, text));
    };
    let seconds = u64::try_from(at.seconds).unwrap_or(0);
    Ok(seconds.saturating_mul(1_000).saturating_add(u64::from(nanos / 1_000_000)))
}

/// The name of the gRPC code for an error kind.
pub(super) fn code_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid
        | Kind::MethodNotAllowed
        | Kind::TimedOut
        | Kind::TooLarge
        | Kind::Unsupported
        | Kind::Unprocessable => "InvalidArgument",
        Kind::Unauthenticated => "Unauthenticated",
        Kind::Forbidden => "PermissionDenied",
        Kind::NotFound => "NotFound",
        Kind::Conflict => "FailedPrecondition",
        Kind::TooMany => "ResourceExhausted",
        Kind::Unavailable => "Unavailable",
        Kind::Internal => "Internal",
    }
}
