//! `POST /tasks/{id}/cancel`.

use axum::http::StatusCode;

use super::call::{Answer, Call};
use super::response;
use crate::service::cancel::Cancelled;
use crate::service::permission::MayProduce;

pub async fn cancel(call: Call) -> Answer {
    let caller = MayProduce::of(&call.caller)?;
    Ok(match call.service().cancel(caller, call.path("id")).await? {
        Cancelled::Done(task) => response::json(StatusCode::OK, &call.task(&task)),
        Cancelled::Requested(task) => response::json(StatusCode::ACCEPTED, &call.task(&task)),
    })
}
