//! `POST /admin/config/reload`.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use super::request_context::{Answer, RequestContext};
use super::response;
use crate::service::permission::MayOperate;
use crate::service::{Code, ServiceError};

/// The outcome of a reload.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reloaded {
    /// Settings that have changed and are now in effect.
    changed: Vec<ChangeBody>,
    /// Settings that have changed and take effect after a restart.
    needs_restart: Vec<&'static str>,
}

/// A setting that has changed.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ChangeBody {
    /// The setting's key.
    key: &'static str,
    /// The previous value. Secrets are masked; lists are shown as their length.
    from: String,
    /// The new value.
    to: String,
}

pub async fn reload(context: RequestContext) -> Answer {
    let changes =
        context.app.reload_for(MayOperate::of(&context.caller)?).await.map_err(|error| {
            let text = "the configuration was not changed";
            let refused = ServiceError::new(Code::InvalidConfiguration, text);
            refused.detail(error.to_string())
        })?;
    let changed = changes.changed.into_iter();
    let body = Reloaded {
        changed: changed
            .map(|change| ChangeBody { key: change.key, from: change.from, to: change.to })
            .collect(),
        needs_restart: changes.needs_restart,
    };
    Ok(response::json(StatusCode::OK, &body))
}
