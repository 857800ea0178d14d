//! `POST /tasks/{id}/result` and `POST /tasks/batch/results`.

use std::sync::Arc;

use axum::http::StatusCode;
use bytes::Bytes;
use codeq_core::limits::{ARTIFACT_FIELD_BYTES_MAX, ARTIFACTS_MAX};
use codeq_core::view::ResultRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::fields::unknown_field;
use super::json::Body;
use super::problem::ItemProblem;
use super::request_context::{Answer, RequestContext};
use super::schema::{endings, without};
use super::wire::ResultBody;
use super::{json, response};
use crate::artifacts::content::Content;
use crate::artifacts::upload::{NewArtifact, Source};
use crate::config::{Config, UnknownFields};
use crate::service::artifacts::invalid;
use crate::service::lease::LeaseRef;
use crate::service::permission::MaySubmit;
use crate::service::submit::SubmitRequest;
use crate::service::{Code, ServiceError};

/// How a task ended.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(
    rename = "SubmissionItem",
    extend("if" = { "properties": { "status": { "const": "FAILED" } } }),
    extend("then" = { "required": ["error"], "properties": { "error": { "type": "string", "pattern": r"\S" } } }),
)]
pub struct Request<'a> {
    /// The task's id.
    #[schemars(required)]
    task_id: Option<String>,
    /// How the task ended. `FAILED` is final: to retry the task, nack it instead.
    #[schemars(required, extend("enum" = endings()))]
    status: Option<String>,
    /// A JSON object up to 1 MiB, unless the server is configured otherwise (up to 16 MiB). Stored byte for byte. With
    /// `COMPLETED`, absent means `{}`.
    #[serde(borrow)]
    #[schemars(with = "Option<Map<String, Value>>")]
    result: Option<&'a RawValue>,
    /// Required with `FAILED`, allowed with `COMPLETED`; cut at 4,096 bytes.
    error: Option<Arc<str>>,
    /// The task's outputs, with unique names.
    #[serde(borrow)]
    #[schemars(with = "Option<Vec<ArtifactRequest>>", length(max = ARTIFACTS_MAX))]
    artifacts: Option<Vec<&'a RawValue>>,
    /// The claim's `fence`. If the task has been claimed again since, the response is 409 `lease_lost`.
    fence: Option<u64>,
    /// The claim's `workerId`. Not checked if the claim had none.
    worker_id: Option<Box<str>>,
}

/// How the task in the path ended.
#[derive(JsonSchema)]
#[schemars(rename = "Submission", with = "Request", transform = without("taskId"))]
pub enum OneRequest {}

/// An output: a URL, or content for the server to store.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("oneOf" = [{ "required": ["url"] }, { "required": ["contentBase64"] }]))]
struct ArtifactRequest<'a> {
    /// The artifact's name. With `contentBase64`: at most 255 bytes, no control characters and no slashes.
    #[schemars(required, length(min = 1, max = ARTIFACT_FIELD_BYTES_MAX))]
    name: Option<Arc<str>>,
    /// Where the artifact is stored.
    #[schemars(extend("type" = "string"), length(min = 1, max = ARTIFACT_FIELD_BYTES_MAX))]
    url: Option<Arc<str>>,
    /// The content: by default up to 64 MiB, in a request of up to 16 MiB, which has room for about 12 MB of content.
    // Kept as raw JSON, because it may be large and need not be copied.
    #[serde(borrow)]
    #[schemars(with = "Option<String>", extend("type" = "string", "contentEncoding" = "base64"))]
    content_base64: Option<&'a RawValue>,
    /// The `Content-Type` of the download. Default `application/octet-stream`.
    #[schemars(length(max = 255))]
    content_type: Option<Box<str>>,
}

/// Several results. Each is independent of the others.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Submissions")]
pub struct BatchRequest<'a> {
    /// At most 100, unless the server is configured otherwise (up to 1,000).
    #[serde(borrow)]
    #[schemars(with = "Vec<Request>", length(min = 1, max = Config::default().max_batch_size))]
    results: Vec<&'a RawValue>,
}

/// The outcome for each result.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SubmitBatch")]
pub struct BatchAnswer<'a> {
    /// In the order of the request.
    results: Vec<Item<'a>>,
}

/// The stored result, or an error.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
struct Item<'a> {
    /// The task's id as sent; empty if the item has none.
    task_id: &'a str,
    #[serde(flatten)]
    outcome: Outcome<'a>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum Outcome<'a> {
    /// The result was stored.
    Stored { result: ResultBody<'a> },
    /// The result was refused.
    Refused(ItemProblem<'a>),
}

pub async fn one(context: RequestContext) -> Answer {
    let request: Request<'_> = json::parse(&context.body)?;
    if request.task_id.is_some() && context.body.unknown == UnknownFields::Refuse {
        let refused = unknown_field("taskId", &[]);
        return Err(refused
            .detail("unknown field 'taskId': the path already names the task")
            .into());
    }
    let caller = MaySubmit::of(&context.caller)?;
    let request = submit_request(&context, request);
    let record = context.service().submit_and_store(caller, context.path("id"), request).await?;
    Ok(response::json(StatusCode::OK, &context.result(&record)))
}

pub async fn batch(context: RequestContext) -> Answer {
    let request: BatchRequest<'_> = json::parse_batch(&context.body)?;
    context.service().check_batch(request.results.len())?;
    // An item that cannot be parsed gets its own error. The other items go on.
    let mut requests = Vec::with_capacity(request.results.len());
    let mut refused = Vec::with_capacity(request.results.len());
    for text in &request.results {
        match item(&context, text) {
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
        context.service().submit_batch(MaySubmit::of(&context.caller)?, requests).await?
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
            Ok(record) => Outcome::Stored { result: context.result(record) },
            Err(error) => Outcome::Refused(error.into()),
        };
        Item { task_id, outcome }
    });
    Ok(response::json(StatusCode::OK, &BatchAnswer { results: results.collect() }))
}

/// Parses one result of a batch.
fn item(
    context: &RequestContext,
    text: &RawValue,
) -> Result<(String, SubmitRequest), ServiceError> {
    let mut request: Request<'_> = json::parse_item(text.get(), context.body.unknown)?;
    let task_id = request.task_id.take().ok_or_else(|| {
        ServiceError::invalid_body().field("taskId").detail("taskId is missing or null")
    })?;
    Ok((task_id, submit_request(context, request)))
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

fn submit_request(context: &RequestContext, request: Request<'_>) -> SubmitRequest {
    let mut flaw = None;
    let result = request.result.map(RawValue::get).filter(|text| *text != "null");
    if result.is_some_and(|text| !text.starts_with('{')) {
        let text = "invalid result (must be an object)";
        flaw = Some(ServiceError::new(Code::InvalidResult, text));
    }
    let result = result.map(str::as_bytes);
    flaw = flaw.or_else(|| context.service().too_long(result?));
    let mut artifacts = Vec::new();
    for (index, artifact) in request.artifacts.unwrap_or_default().into_iter().enumerate() {
        match new_artifact(&context.body, index, artifact) {
            Ok(artifact) => artifacts.push(artifact),
            Err(error) => flaw = flaw.or(Some(error)),
        }
    }
    SubmitRequest {
        status: request.status.unwrap_or_default(),
        result: result.map(Bytes::copy_from_slice),
        error: request.error,
        artifacts,
        lease: LeaseRef::new(&context.caller, request.worker_id.as_deref(), request.fence),
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
