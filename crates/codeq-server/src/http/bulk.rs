//! The common part of purge, cancel, replay and cleanup: filter, dry run and limit per call.

use codeq_core::command::{BulkFilter, Millis};
use codeq_core::limits::{BULK_MAX, ERROR_BYTES_MAX, WORKER_BYTES_MAX};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::service::bulk::{BulkOptions, BulkOutcome};
use crate::service::filter::moment;
use crate::service::{Code, ServiceError};

/// The body of a purge or a cleanup. A cancel and a replay have one field more.
// Limits of strings are in bytes, and a character has at most four.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BulkRequest {
    /// At most this many tasks per call. Absent or larger: 1,000.
    #[schemars(range(min = 1))]
    pub limit: Option<u64>,
    /// `nextCursor` of the previous response, to continue there.
    #[schemars(length(min = 1))]
    pub cursor: Option<String>,
    /// Only tasks whose last error contains this text.
    #[schemars(length(min = 1, max = ERROR_BYTES_MAX / 4))]
    pub error_contains: Option<String>,
    /// Only tasks that ended before this time. For waiting and running tasks, the time of their creation counts.
    #[schemars(extend("format" = "date-time"))]
    pub before: Option<String>,
    /// Only tasks that ended at this time or later. For waiting and running tasks, the time of their creation counts.
    /// Must be earlier than `before`.
    #[schemars(extend("format" = "date-time"))]
    pub after: Option<String>,
    /// Only tasks whose latest claim was by this worker.
    #[schemars(length(min = 1, max = WORKER_BYTES_MAX / 4))]
    pub worker: Option<String>,
    /// Change nothing and return the number of matching tasks in `matched`: up to `limit` if it is set, otherwise as
    /// many as one call can count.
    pub dry_run: Option<bool>,
}

/// Response fields of a dry run.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// Present and true in a dry run: nothing was changed.
    dry_run: bool,
    /// Present in a dry run: the number of matching tasks.
    matched: u64,
}

impl DryRun {
    /// The extra fields for this outcome; `None` unless it was a dry run.
    pub fn of(outcome: &BulkOutcome) -> Option<DryRun> {
        outcome.matched.map(|matched| DryRun { dry_run: true, matched })
    }
}

const A_DATE: &str = "use a format such as 2026-01-31T08:00:00Z";

impl BulkRequest {
    /// Checks the fields and converts them. Refuses an empty string instead of ignoring it: an
    /// unset variable is a likelier cause than the intent to match everything.
    pub fn options(self) -> Result<BulkOptions, ServiceError> {
        let filter = BulkFilter {
            error_contains: part(self.error_contains, "errorContains", ERROR_BYTES_MAX)?,
            before: date(self.before.as_deref()).map_err(|()| {
                let text = "invalid 'before' (use RFC3339)";
                ServiceError::new(Code::InvalidBefore, text).field("before").detail(A_DATE)
            })?,
            after: date(self.after.as_deref()).map_err(|()| {
                let text = "invalid 'after' (use RFC3339)";
                ServiceError::new(Code::InvalidFilter, text).field("after").detail(A_DATE)
            })?,
            worker: part(self.worker, "worker", WORKER_BYTES_MAX)?,
        };
        check_dates(filter.after, filter.before)?;
        if self.limit == Some(0) {
            let error = ServiceError::new(Code::InvalidLimit, "invalid 'limit'").field("limit");
            return Err(
                error.detail("a limit of 0 matches nothing: omit it for the default of 1000")
            );
        }
        let limit = self.limit.map(|limit| limit.min(BULK_MAX.into()) as u32);
        let dry_run = self.dry_run.unwrap_or(false);
        Ok(BulkOptions { filter, limit, cursor: self.cursor, dry_run })
    }
}

fn date(text: Option<&str>) -> Result<Option<Millis>, ()> {
    text.map(|text| moment(text).ok_or(())).transpose()
}

fn part(
    text: Option<String>,
    field: &'static str,
    max: usize,
) -> Result<Option<std::sync::Arc<str>>, ServiceError> {
    match text {
        None => Ok(None),
        Some(text) if (1..=max).contains(&text.len()) => Ok(Some(text.into())),
        Some(_) => {
            let text = format!("invalid '{field}' (1 to {max} bytes; omit it to match any)");
            Err(ServiceError::new(Code::InvalidFilter, text).field(field))
        }
    }
}

fn check_dates(after: Option<Millis>, before: Option<Millis>) -> Result<(), ServiceError> {
    match (after, before) {
        (Some(after), Some(before)) if after >= before => {
            let text = "invalid filter: 'after' must be earlier than 'before'";
            Err(ServiceError::new(Code::InvalidFilter, text).field("after"))
        }
        _ => Ok(()),
    }
}
