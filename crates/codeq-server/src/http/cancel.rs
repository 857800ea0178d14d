//! `POST /tasks/{id}/cancel`.

use axum::http::StatusCode;

use super::request_context::{Answer, RequestContext};
use super::response;
use crate::service::cancel::Cancelled;
use crate::service::permission::MayProduce;

pub async fn cancel(context: RequestContext) -> Answer {
    let caller = MayProduce::of(&context.caller)?;
    Ok(match context.service().cancel(caller, context.path("id")).await? {
        Cancelled::Done(task) => response::json(StatusCode::OK, &context.task(&task)),
        Cancelled::Requested(task) => response::json(StatusCode::ACCEPTED, &context.task(&task)),
    })
}
