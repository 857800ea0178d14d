//! `POST /tasks` and `POST /tasks/batch`.

use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use codeq_core::command::Millis;
use codeq_core::limits::{
    COMMAND_BYTES_MAX, DELAY_MS_MAX, IDEMPOTENCY_KEY_BYTES_MAX, MAX_RUN_MS_MAX, WEBHOOK_BYTES_MAX,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::problem::ItemProblem;
use super::request_context::{Answer, RequestContext};
use super::schema::{NO_CONTROLS, URL, or_blank};
use super::wire::TaskBody;
use super::{json, response};
use crate::config::Config;
use crate::observe::trace;
use crate::service::enqueue::{Ahead, Draft, EnqueuedTask};
use crate::service::filter::moment;
use crate::service::permission::MayProduce;
use crate::service::{Code, ServiceError};

/// A task to create.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "NewTask")]
pub struct TaskRequest<'a> {
    /// 1 to 128 bytes of UTF-8 without control characters.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = COMMAND_BYTES_MAX), regex(pattern = NO_CONTROLS))]
    command: String,
    /// Any JSON except null, up to 1 MiB unless the server is configured otherwise (up to 16 MiB). Stored byte for
    /// byte; responses contain it as a string.
    #[serde(borrow)]
    #[schemars(required, with = "Value", extend("not" = { "type": "null" }))]
    payload: Option<&'a RawValue>,
    /// 0–9, higher first; values outside are clamped. Default 0.
    priority: Option<i64>,
    /// Failed attempts before the task becomes a dead letter. 0 or less: the default; more than 1,000 counts as 1,000.
    max_attempts: Option<i64>,
    /// Where codeQ posts the result: an http or https URL, on a public address unless the operator allows others.
    #[schemars(length(max = WEBHOOK_BYTES_MAX), regex(pattern = URL), transform = or_blank)]
    webhook: Option<String>,
    /// A repeated request with the same key returns the task that the first request created, if command and payload
    /// are the same. Payloads are compared as JSON values. At most 256 bytes.
    #[schemars(length(max = IDEMPOTENCY_KEY_BYTES_MAX))]
    idempotency_key: Option<String>,
    /// Do not start before this time, at most ten years from now. Takes precedence over `delaySeconds`.
    #[schemars(extend("format" = "date-time"), transform = or_blank)]
    run_at: Option<String>,
    /// Do not start within this many seconds.
    #[schemars(range(min = 0, max = DELAY_MS_MAX / 1_000))]
    delay_seconds: Option<i64>,
    /// How long an attempt may run, counted from its claim. After that, heartbeats no longer extend its lease, and the
    /// attempt fails with `TIMED_OUT`. 0: the limit of the queue's policy, or none.
    #[schemars(range(min = 0, max = MAX_RUN_MS_MAX / 1_000))]
    max_run_seconds: Option<i64>,
}

/// Several tasks to create. Each is independent of the others.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "NewTasks")]
pub struct BatchRequest<'a> {
    /// At most 100, unless the server is configured otherwise (up to 1,000).
    #[serde(borrow)]
    #[schemars(with = "Vec<TaskRequest>", length(min = 1, max = Config::default().max_batch_size))]
    tasks: Vec<&'a RawValue>,
}

/// The outcome for each task.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EnqueueBatch")]
pub struct BatchAnswer<'a> {
    /// In the order of the request.
    results: Vec<Item<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Item<'a> {
    /// The task was created, now or by an earlier request with the same idempotency key.
    Enqueued { task: Box<TaskBody<'a>> },
    /// The task was refused.
    Refused(ItemProblem<'a>),
}

pub async fn one(context: RequestContext) -> Answer {
    let request: TaskRequest<'_> = json::parse(&context.body)?;
    let mut draft = draft(&context, request)?;
    if let Some(key) = header_key(&context)? {
        match draft.idempotency_key.as_deref().filter(|key| !key.is_empty()) {
            Some(other) if *other != *key => {
                let text = "Idempotency-Key and idempotencyKey are different";
                return Err(ServiceError::new(Code::InvalidIdempotencyKey, text).into());
            }
            _ => draft.idempotency_key = Some(key.into()),
        }
    }
    let (service, caller) = (context.service(), MayProduce::of(&context.caller)?);
    let made = service.call(service.enqueue(caller, draft)?).await?;
    let mut response = response::json(StatusCode::ACCEPTED, &context.task(&made.task));
    mark_repeated(&mut response, made.repeated);
    Ok(response)
}

pub async fn batch(context: RequestContext) -> Answer {
    let request: BatchRequest<'_> = json::parse_batch(&context.body)?;
    let atomic = context.flag("atomic")?;
    context.service().check_batch(request.tasks.len())?;
    let key = header_key(&context)?;
    // An item that cannot be parsed gets its own error. The other items go on.
    let mut tasks = Vec::with_capacity(request.tasks.len());
    let mut outcomes = Vec::with_capacity(request.tasks.len());
    for (index, text) in request.tasks.iter().enumerate() {
        let parsed = json::parse_item(text.get(), context.body.unknown);
        let task =
            parsed.and_then(|request| draft(&context, request)?.into_task(context.service()));
        match task {
            Ok(mut task) => {
                // A key for the whole batch provides one for each task without its own.
                if let (None, Some(key)) = (&task.idempotency_key, &key) {
                    task.idempotency_key = Some(format!("{key}/{index}").into());
                }
                tasks.push(task);
                outcomes.push(None);
            }
            Err(error) if atomic => {
                let text = format!("item {index}: {error}");
                let refused = json::in_item(index, error);
                return Err(ServiceError { error: text.into(), ..refused }.into());
            }
            Err(error) => outcomes.push(Some(error)),
        }
    }
    let made = if tasks.is_empty() {
        Vec::new()
    } else {
        let (service, caller) = (context.service(), MayProduce::of(&context.caller)?);
        let prepared = service.enqueue_batch(caller, tasks, atomic, &mut Ahead::default())?;
        service.call(prepared).await?
    };
    let mut made = made.into_iter();
    let outcomes: Vec<Result<EnqueuedTask, ServiceError>> = outcomes
        .into_iter()
        .filter_map(|refused| refused.map(Err).or_else(|| made.next()))
        .collect();
    let repeated = outcomes.iter().all(|outcome| matches!(outcome, Ok(made) if made.repeated));
    let results = outcomes.iter().map(|outcome| match outcome {
        Ok(made) => Item::Enqueued { task: Box::new(context.task(&made.task)) },
        Err(error) => Item::Refused(error.into()),
    });
    let mut response = response::json(StatusCode::OK, &BatchAnswer { results: results.collect() });
    mark_repeated(&mut response, repeated);
    Ok(response)
}

fn mark_repeated(response: &mut Response, repeated: bool) {
    if repeated {
        response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
}

fn draft(context: &RequestContext, request: TaskRequest<'_>) -> Result<Draft, ServiceError> {
    let payload = match request.payload.map(RawValue::get) {
        None | Some("null") => {
            let detail = "payload is missing or null";
            return Err(ServiceError::invalid_body().field("payload").detail(detail));
        }
        Some(text) => Bytes::copy_from_slice(text.as_bytes()),
    };
    let run_at = run_at(request.run_at.as_deref())?;
    let (parent, state) = creation_context(context);
    Ok(Draft {
        command: request.command.into(),
        payload,
        priority: request.priority.unwrap_or(0),
        max_attempts: request.max_attempts.unwrap_or(0),
        webhook: request.webhook.map(Into::into),
        idempotency_key: request.idempotency_key.map(Into::into),
        run_at,
        delay_seconds: request.delay_seconds,
        max_run_seconds: request.max_run_seconds.unwrap_or(0),
        trace_parent: parent.map(Into::into),
        trace_state: state.map(Into::into),
    })
}

/// The time in `runAt`. Empty counts as absent.
pub fn run_at(text: Option<&str>) -> Result<Option<Millis>, ServiceError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    moment(text).map(Some).ok_or_else(|| {
        let detail = "use a format such as 2026-01-31T08:00:00Z";
        let refused = ServiceError::new(Code::InvalidRunAt, "invalid 'runAt' (use RFC3339)");
        refused.field("runAt").detail(detail)
    })
}

/// The trace stored on the task: the client's, or else the one of this request.
fn creation_context(context: &RequestContext) -> (Option<String>, Option<String>) {
    match &context.trace {
        Some(trace) => {
            (Some(trace.traceparent().to_owned()), trace.tracestate().map(str::to_owned))
        }
        None => trace::current().map_or((None, None), |(parent, state)| (Some(parent), state)),
    }
}

/// The `Idempotency-Key` header: a structured string in quotes, or the bare text that many clients
/// send.
fn header_key(context: &RequestContext) -> Result<Option<String>, ServiceError> {
    let Some(value) = context.headers.get("idempotency-key") else {
        return Ok(None);
    };
    let text = value.to_str().ok().map(str::trim).unwrap_or_default();
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match quoted.unwrap_or(text) {
        "" => {
            let text = "invalid Idempotency-Key header";
            Err(ServiceError::new(Code::InvalidIdempotencyKey, text))
        }
        key => Ok(Some(key.to_owned())),
    }
}
