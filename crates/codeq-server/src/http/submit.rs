//! `POST /tasks/{id}/result` and `POST /tasks/batch/results`.

use std::sync::Arc;

use axum::http::StatusCode;
use bytes::Bytes;
use codeq_core::view::ResultRecord;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::call::{Answer, Call};
use super::fields::unknown_field;
use super::json::Body;
use super::problem::ItemProblem;
use super::wire::ResultBody;
use super::{answer, json};
use crate::artifacts::content::Content;
use crate::artifacts::upload::{NewArtifact, Source};
use crate::config::UnknownFields;
use crate::service::artifacts::invalid;
use crate::service::lease::LeaseRef;
use crate::service::permission::MaySubmit;
use crate::service::submit::SubmitRequest;
use crate::service::{Code, ServiceError};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    /// In a batch only: otherwise the path has it.
    task_id: Option<String>,
    status: Option<String>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<Arc<str>>,
    #[serde(borrow)]
    artifacts: Option<Vec<&'a RawValue>>,
    fence: Option<u64>,
    worker_id: Option<Box<str>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ArtifactRequest<'a> {
    name: Option<Arc<str>>,
    url: Option<Arc<str>>,
    /// Kept as raw JSON, because it may be large and need not be copied.
    #[serde(borrow)]
    content_base64: Option<&'a RawValue>,
    content_type: Option<Box<str>>,
}

#[derive(Deserialize)]
struct BatchRequest<'a> {
    #[serde(borrow)]
    results: Vec<&'a RawValue>,
}

#[derive(Serialize)]
struct BatchAnswer<'a> {
    results: Vec<Item<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    task_id: &'a str,
    #[serde(flatten)]
    outcome: Outcome<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome<'a> {
    Stored { result: ResultBody<'a> },
    Refused(ItemProblem<'a>),
}

pub async fn one(call: Call) -> Answer {
    let request: Request<'_> = json::parse(&call.body)?;
    if request.task_id.is_some() && call.body.unknown == UnknownFields::Refuse {
        let refused = unknown_field("taskId", &[]);
        return Err(refused
            .detail("unknown field 'taskId': the task is the one in the path")
            .into());
    }
    let caller = MaySubmit::of(&call.caller)?;
    let request = submit_request(&call, request);
    let record = call.service().submit_and_store(caller, call.path("id"), request).await?;
    Ok(answer::json(StatusCode::OK, &call.result(&record)))
}

pub async fn batch(call: Call) -> Answer {
    let request: BatchRequest<'_> = json::parse_batch(&call.body)?;
    call.service().check_batch(request.results.len())?;
    // An item that cannot be parsed gets its own error. The other items go on.
    let mut requests = Vec::with_capacity(request.results.len());
    let mut refused = Vec::with_capacity(request.results.len());
    for text in &request.results {
        match item(&call, text) {
            Ok(request) => {
                requests.push(request);
                refused.push(None);
            }
            Err(error) => refused.push(Some((named_task(text), error))),
        }
    }
    let done = if requests.is_empty() {
        Vec::new()
    } else {
        call.service().submit_batch(MaySubmit::of(&call.caller)?, requests).await?
    };
    let mut done = done.into_iter();
    let outcomes: Vec<(String, Result<ResultRecord, ServiceError>)> = refused
        .into_iter()
        .filter_map(|flaw| match flaw {
            Some((task_id, error)) => Some((task_id, Err(error))),
            None => done.next(),
        })
        .collect();
    let results = outcomes.iter().map(|(task_id, outcome)| {
        let outcome = match outcome {
            Ok(record) => Outcome::Stored { result: call.result(record) },
            Err(error) => Outcome::Refused(error.into()),
        };
        Item { task_id, outcome }
    });
    Ok(answer::json(StatusCode::OK, &BatchAnswer { results: results.collect() }))
}

/// Parses one result of a batch.
fn item(call: &Call, text: &RawValue) -> Result<(String, SubmitRequest), ServiceError> {
    let mut request: Request<'_> = json::parse_item(text.get(), call.body.unknown)?;
    let task_id = request.task_id.take().ok_or_else(|| {
        ServiceError::invalid_body().field("taskId").detail("taskId is missing or null")
    })?;
    Ok((task_id, submit_request(call, request)))
}

/// The task id of an item that is otherwise invalid; empty if it has none.
fn named_task(text: &RawValue) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Named {
        task_id: String,
    }
    let named = json::parse_item::<Named>(text.get(), UnknownFields::Ignore);
    named.map_or_else(|_| String::new(), |named| named.task_id)
}

fn submit_request(call: &Call, request: Request<'_>) -> SubmitRequest {
    let mut flaw = None;
    let result = request.result.map(RawValue::get).filter(|text| *text != "null");
    if result.is_some_and(|text| !text.starts_with('{')) {
        let text = "invalid result (must be an object)";
        flaw = Some(ServiceError::new(Code::InvalidResult, text));
    }
    let result = result.map(str::as_bytes);
    flaw = flaw.or_else(|| call.service().too_long(result?));
    let mut artifacts = Vec::new();
    for (index, artifact) in request.artifacts.unwrap_or_default().into_iter().enumerate() {
        match new_artifact(&call.body, index, artifact) {
            Ok(artifact) => artifacts.push(artifact),
            Err(error) => flaw = flaw.or(Some(error)),
        }
    }
    SubmitRequest {
        status: request.status.unwrap_or_default(),
        result: result.map(Bytes::copy_from_slice),
        error: request.error,
        artifacts,
        lease: LeaseRef::new(&call.caller, request.worker_id.as_deref(), request.fence),
        flaw,
    }
}

fn new_artifact(body: &Body, index: usize, text: &RawValue) -> Result<NewArtifact, ServiceError> {
    let in_artifact = |error: ServiceError| {
        let detail = format!("artifact {index}: {}", error.detail.as_deref().unwrap_or_default());
        match error.code {
            Code::UnknownField => error.detail(detail),
            _ => invalid(&detail),
        }
    };
    let request: ArtifactRequest<'_> =
        json::parse_object(text.get(), body.unknown).map_err(in_artifact)?;
    let source = match (request.url, request.content_base64) {
        (Some(url), None) => Some(Source::Url(url)),
        (None, Some(content)) => {
            let letters = content.get().strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            letters.map(|letters| Source::Content {
                content: Content::new(body.bytes.slice_ref(letters.as_bytes())),
                // HTML forms send an empty string.
                content_type: request.content_type.filter(|text| !text.is_empty()),
            })
        }
        _ => None,
    };
    let Some((name, source)) = request.name.zip(source) else {
        let why = "needs a name, and exactly one of url and contentBase64";
        return Err(invalid(&format!("artifact {index} {why}")));
    };
    Ok(NewArtifact { name, source })
}
