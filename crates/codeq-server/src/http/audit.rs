//! `GET /admin/audit`.

use axum::http::StatusCode;
use codeq_core::limits::LIST_BYTES_MAX;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::request_context::{Answer, RequestContext};
use super::response;
use super::tasks::page_limit;
use crate::audit::Line;
use crate::service::permission::MayAdminister;

/// Entries of the audit log.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "AuditPage")]
pub struct AuditBody {
    /// The entries, oldest first.
    #[schemars(with = "Vec<Line<'static>>")]
    items: Vec<Box<RawValue>>,
    /// Send as `after` to get newer entries.
    next_after: u64,
}

pub async fn list(context: RequestContext) -> Answer {
    let (all_tenants, after) = (context.flag("allTenants")?, context.number("after")?);
    let limit = page_limit(&context)?;
    let _page = context.hold(LIST_BYTES_MAX).await?;
    let caller = MayAdminister::of(&context.caller)?;
    let page = context.service().audit(caller, all_tenants, after, limit).await?;
    let body = AuditBody { items: page.items, next_after: page.next_after };
    Ok(response::json(StatusCode::OK, &body))
}
