//! `POST /tasks/{id}/abandon`.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::nack::place;
use super::{answer, json};

#[derive(Deserialize, Default)]
struct Request {
    penalty: Option<bool>,
}

#[derive(Serialize)]
struct Abandoned {
    status: &'static str,
}

pub async fn abandon(call: Call) -> Answer {
    let request: Request = json::parse_or_default(&call.body)?;
    let penalty = request.penalty.unwrap_or(true);
    let done = call.service().abandon(&call.caller, &call.name, penalty).await?;
    Ok(answer::json(StatusCode::OK, &Abandoned { status: place(done) }))
}
