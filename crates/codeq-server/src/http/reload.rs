//! `POST /admin/config/reload`.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::{json, response};
use crate::service::permission::MayOperate;
use crate::service::{Code, ServiceError};

#[derive(Deserialize, Default)]
struct Request {}

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

pub async fn reload(call: Call) -> Answer {
    let Request {} = json::parse_or_default(&call.body)?;
    let changes = call.app.reload_for(MayOperate::of(&call.caller)?).await.map_err(|error| {
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
