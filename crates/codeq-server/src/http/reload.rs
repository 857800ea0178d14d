//! `POST /admin/config/reload`.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::{answer, json};
use crate::service::permission::MayOperate;
use crate::service::{Code, ServiceError};

#[derive(Deserialize, Default)]
struct Request {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reloaded {
    changed: Vec<ChangeBody>,
    needs_restart: Vec<&'static str>,
}

#[derive(Serialize)]
struct ChangeBody {
    key: &'static str,
    from: String,
    to: String,
}

pub async fn reload(call: Call) -> Answer {
    let Request {} = json::parse_or_default(&call.body)?;
    let changes = call.app.reload_for(MayOperate::of(&call.caller)?).await.map_err(|error| {
        let text = "the configuration stays as it was";
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
    Ok(answer::json(StatusCode::OK, &body))
}
