//! `POST /tasks/{id}/result` and `POST /tasks/batch/results`.

use std::sync::Arc;

use axum::http::StatusCode;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::call::{Answer, Call};
use super::wire::ResultBody;
use super::{answer, json};
use crate::artifacts::content::Content;
use crate::artifacts::upload::{NewArtifact, Source};
use crate::service::ServiceError;
use crate::service::artifacts::invalid;
use crate::service::lease::LeaseNamed;
use crate::service::submit::SubmitRequest;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
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
    /// As it stands in the body: it may be large, and is not copied.
    #[serde(borrow)]
    content_base64: Option<&'a RawValue>,
    content_type: Option<Box<str>>,
}

#[derive(Deserialize)]
struct BatchRequest<'a> {
    #[serde(borrow)]
    results: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemId {
    task_id: String,
}

#[derive(Serialize)]
struct BatchAnswer<'a> {
    results: Vec<Item<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    task_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ResultBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub async fn one(call: Call) -> Answer {
    let request = submit_request(&call, json::parse(&call.body)?);
    let record = call.service().submit(&call.caller, &call.name, request).await?;
    Ok(answer::json(StatusCode::OK, &call.result(&record)))
}

pub async fn batch(call: Call) -> Answer {
    let request: BatchRequest<'_> = json::parse(&call.body)?;
    let mut requests = Vec::with_capacity(request.results.len());
    for (index, text) in request.results.iter().enumerate() {
        // An item without a task cannot even be answered for: that is a bad batch.
        let item: ItemId = json::parse_item(index, text.get())?;
        let request = json::parse_item(index, text.get())?;
        requests.push((item.task_id, submit_request(&call, request)));
    }
    let done = call.service().submit_batch(&call.caller, requests).await?;
    let results = done.iter().map(|(task_id, outcome)| match outcome {
        Ok(record) => Item { task_id, result: Some(call.result(record)), error: None },
        Err(error) => Item { task_id, result: None, error: Some(error.to_string()) },
    });
    Ok(answer::json(StatusCode::OK, &BatchAnswer { results: results.collect() }))
}

fn submit_request(call: &Call, request: Request<'_>) -> SubmitRequest {
    let mut flaw = None;
    let result = request.result.map(RawValue::get).filter(|text| *text != "null");
    if result.is_some_and(|text| !text.starts_with('{')) {
        let text = "invalid result (must be an object)";
        flaw = Some(ServiceError::invalid("invalid_result", text));
    }
    let result = result.map(str::as_bytes);
    flaw = flaw.or_else(|| call.service().too_long(result?));
    let mut artifacts = Vec::new();
    for (index, artifact) in request.artifacts.unwrap_or_default().into_iter().enumerate() {
        match new_artifact(&call.body, artifact) {
            Some(artifact) => artifacts.push(artifact),
            None => {
                let why = "needs a name, and exactly one of url and contentBase64";
                flaw = flaw.or_else(|| Some(invalid(&format!("artifact {index} {why}"))));
            }
        }
    }
    SubmitRequest {
        status: request.status.unwrap_or_default(),
        result: result.map(Bytes::copy_from_slice),
        error: request.error,
        artifacts,
        lease: LeaseNamed::new(&call.caller, request.worker_id.as_deref(), request.fence),
        flaw,
    }
}

fn new_artifact(body: &Bytes, text: &RawValue) -> Option<NewArtifact> {
    let request: ArtifactRequest<'_> = json::parse_object(text.get()).ok()?;
    let source = match (request.url, request.content_base64) {
        (Some(url), None) => Source::Url(url),
        (None, Some(content)) => {
            let letters = content.get().strip_prefix('"')?.strip_suffix('"')?;
            let content = Content::new(body.slice_ref(letters.as_bytes()));
            // Forms leave it empty.
            let content_type = request.content_type.filter(|text| !text.is_empty());
            Source::Content { content, content_type }
        }
        _ => return None,
    };
    Some(NewArtifact { name: request.name?, source })
}
