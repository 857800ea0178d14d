//! `GET /tasks/{id}/why` and `GET /admin/queues/{command}/why`: reasons in words and as fields.

use std::borrow::Cow;

use axum::http::StatusCode;
use codeq_auth::display_identity;
use codeq_core::command::Millis;
use codeq_core::history::Entry;
use schemars::JsonSchema;
use serde::Serialize;

use super::queues::QueueBody;
use super::request_context::{Answer, RequestContext};
use super::response;
use super::schema::{events, places, statuses};
use crate::service::permission::MayAdminister;
use crate::service::why::Reason;
use crate::times::Timestamp;

/// Why a task is where it is.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TaskWhy")]
pub struct TaskWhyBody<'a> {
    /// The task's id.
    #[schemars(extend("format" = "uuid"))]
    task_id: String,
    /// The task's command.
    command: &'a str,
    /// The task's status.
    #[schemars(extend("enum" = statuses()))]
    status: &'static str,
    /// Where the task is.
    #[schemars(extend("enum" = places()))]
    last_known_location: &'static str,
    /// All reasons in one sentence.
    summary: String,
    /// The reasons, the strongest first.
    reasons: Vec<ReasonBody<'a>>,
}

/// Why a queue does or does not move.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "QueueWhy")]
pub struct QueueWhyBody<'a> {
    #[serde(flatten)]
    queue: QueueBody<'a>,
    /// All reasons in one sentence.
    summary: String,
    /// The reasons, the strongest first.
    reasons: Vec<ReasonBody<'a>>,
}

/// The codes of reasons.
const CODES: [&str; 20] = [
    "queue_paused",
    "max_consumers_reached",
    "delayed",
    "waits_for_retry",
    "tasks_ahead",
    "next",
    "no_worker",
    "workers",
    "workers_unknown",
    "leased",
    "cancel_requested",
    "completed",
    "failed",
    "cancelled",
    "dead_lettered",
    "ready_tasks",
    "delayed_tasks",
    "leased_tasks",
    "dead_letters",
    "empty",
];

/// A reason. Which of the other fields it has depends on `code`.
#[derive(Serialize, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Reason")]
struct ReasonBody<'a> {
    /// The kind of reason.
    #[schemars(extend("enum" = CODES))]
    code: &'static str,
    /// The reason in words.
    text: String,
    /// When it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    /// When the delay, the wait or the lease ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    /// When the attempt reaches its maximum run time. Absent without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_until: Option<Timestamp>,
    /// When the queue was paused, when its oldest claimable task was created, or when the server started.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// Who did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<Cow<'a, str>>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Failed attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    /// The limit of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    /// Tasks of the queue that are in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_progress: Option<u64>,
    /// The limit of tasks in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_consumers: Option<u32>,
    /// Tasks of a higher priority, which are claimed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    higher_priority: Option<u64>,
    /// Tasks of the same priority that became claimable earlier, and are claimed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    older: Option<u64>,
    /// False if `older` is a lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    exact: Option<bool>,
    /// When a worker last asked for the queue, to the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_claim_at: Option<Timestamp>,
    /// Workers whose streams could take a task of the queue now. With `workers_unknown`, workers whose streams may wait
    /// for the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_workers: Option<u64>,
    /// The worker that holds the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<Cow<'a, str>>,
    /// When the worker claimed the task or last extended its lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat_at: Option<Timestamp>,
    /// How long ago `heartbeatAt` was.
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat_age_seconds: Option<u64>,
    /// Number of tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    /// The failed attempts that the history has, oldest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<Vec<FailureBody<'a>>>,
    /// Transitions that the history no longer has. Absent if 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    dropped: Option<u32>,
}

/// A failed attempt.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct FailureBody<'a> {
    /// When it ended.
    at: Timestamp,
    /// How it ended.
    #[schemars(extend("enum" = events()))]
    event: &'static str,
    /// The worker. Absent if the server ended the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<Cow<'a, str>>,
    /// The reason, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

pub async fn task(context: RequestContext) -> Answer {
    let why = context.service().explain_task(&context.caller, context.path("id")).await?;
    let reasons = bodies(&context, &why.reasons);
    let status = why.task.place.status().as_str();
    let body = TaskWhyBody {
        task_id: why.task.id.to_string(),
        command: &why.task.command,
        status,
        last_known_location: why.task.place.location(),
        summary: format!("{status}: {}", summary(&reasons)),
        reasons,
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub async fn queue(context: RequestContext) -> Answer {
    let (caller, command) = (MayAdminister::of(&context.caller)?, context.path("command"));
    let why = context.service().explain_queue(caller, command).await?;
    let reasons = bodies(&context, &why.reasons);
    let body = QueueWhyBody {
        queue: QueueBody::new(command, &why.counts, why.paused),
        summary: summary(&reasons),
        reasons,
    };
    Ok(response::json(StatusCode::OK, &body))
}

fn bodies<'a>(context: &RequestContext, reasons: &'a [Reason]) -> Vec<ReasonBody<'a>> {
    let words = Words { context, now: context.service().now().wall };
    reasons.iter().map(|reason| words.body(reason)).collect()
}

fn summary(reasons: &[ReasonBody<'_>]) -> String {
    let texts: Vec<&str> = reasons.iter().map(|reason| reason.text.as_str()).collect();
    texts.join("; ")
}

struct Words<'c> {
    context: &'c RequestContext,
    now: Millis,
}

impl Words<'_> {
    fn date(&self, at: Millis) -> String {
        self.context.times().text(at)
    }

    fn stamp(&self, at: Millis) -> Timestamp {
        self.context.times().timestamp(at)
    }

    /// A time to come, with how far away it is.
    fn until(&self, at: Millis) -> String {
        format!("{} (in {})", self.date(at), span(at.saturating_sub(self.now)))
    }

    fn ago(&self, at: Millis) -> String {
        span(self.now.saturating_sub(at))
    }

    fn body<'a>(&self, reason: &'a Reason) -> ReasonBody<'a> {
        let of = |code, text| ReasonBody { code, text, ..ReasonBody::default() };
        match reason {
            Reason::Paused(None) => of("queue_paused", "the queue is paused".to_owned()),
            Reason::Paused(Some(paused)) => {
                let (since, by) = (self.date(paused.at), display_identity(&paused.by));
                let text = format!("{by} paused the queue at {since}");
                ReasonBody {
                    since: Some(self.stamp(paused.at)),
                    by: Some(by),
                    ..of("queue_paused", text)
                }
            }
            Reason::MaxConsumers { in_progress, max } => ReasonBody {
                in_progress: Some(*in_progress),
                max_consumers: Some(*max),
                ..of(
                    "max_consumers_reached",
                    format!(
                        "{} in progress, and the policy of the queue allows {max}",
                        are(*in_progress, "task")
                    ),
                )
            },
            Reason::Delayed { until } => ReasonBody {
                until: Some(self.stamp(*until)),
                ..of("delayed", format!("it is delayed until {}", self.until(*until)))
            },
            Reason::Retry { until, attempts, max_attempts, error, timed_out } => {
                let texts = [error.as_deref(), timed_out.as_deref()];
                let why = match texts.into_iter().flatten().collect::<Vec<_>>() {
                    none if none.is_empty() => String::new(),
                    some => format!(" ({})", some.join(": ")),
                };
                let when = self.until(*until);
                let text = format!(
                    "attempt {attempts} of {max_attempts} failed{why}; it waits for its retry until {when}"
                );
                ReasonBody {
                    until: Some(self.stamp(*until)),
                    attempts: Some(*attempts),
                    max_attempts: Some(*max_attempts),
                    error: error.as_deref(),
                    ..of("waits_for_retry", text)
                }
            }
            Reason::Ahead { higher_priority, older, exact } => {
                let at_least = if *exact { "" } else { "at least " };
                let text = format!(
                    "{at_least}{} claimed before it: {higher_priority} of higher priority, {older} older",
                    are(higher_priority + older, "task")
                );
                ReasonBody {
                    higher_priority: Some(*higher_priority),
                    older: Some(*older),
                    exact: Some(*exact),
                    ..of("tasks_ahead", text)
                }
            }
            Reason::Next => of("next", "it is the next task of its queue to be claimed".to_owned()),
            Reason::NoWorker { last_claim: None, since } => {
                let text = format!(
                    "no worker has asked for this queue since the server started, {} ago",
                    self.ago(*since)
                );
                ReasonBody { since: Some(self.stamp(*since)), ..of("no_worker", text) }
            }
            Reason::NoWorker { last_claim: Some(at), .. } => {
                let text = format!("no worker has asked for this queue for {}", self.ago(*at));
                ReasonBody { last_claim_at: Some(self.stamp(*at)), ..of("no_worker", text) }
            }
            Reason::Workers { last_claim, waiting } => {
                let last = last_claim
                    .map(|at| format!("a worker asked for this queue {} ago", self.ago(at)));
                let wait = (*waiting > 0).then(|| match waiting {
                    1 => "1 worker is waiting for tasks of this queue".to_owned(),
                    n => format!("{n} workers are waiting for tasks of this queue"),
                });
                let text: Vec<String> = last.into_iter().chain(wait).collect();
                ReasonBody {
                    last_claim_at: last_claim.map(|at| self.stamp(at)),
                    waiting_workers: Some(*waiting),
                    ..of("workers", text.join(", "))
                }
            }
            Reason::MaybeWorkers { last_claim, waiting } => {
                let who = match waiting {
                    1 => "1 worker waits".to_owned(),
                    n => format!("{n} workers wait"),
                };
                let text = format!(
                    "{who} on streams, possibly for this queue: the server does not remember every queue that a stream \
                     waits for"
                );
                ReasonBody {
                    last_claim_at: last_claim.map(|at| self.stamp(at)),
                    waiting_workers: Some(*waiting),
                    ..of("workers_unknown", text)
                }
            }
            Reason::Leased { worker, until, heartbeat, run_until } => {
                let (worker, heard) = (display_identity(worker), self.ago(*heartbeat));
                let when = self.until(*until);
                let limit = run_until.map_or(String::new(), |at| {
                    format!("; it may run until {} at most", self.until(at))
                });
                let text = format!(
                    "{worker} holds its lease until {when} and was last heard from {heard} ago{limit}"
                );
                ReasonBody {
                    worker_id: Some(worker),
                    until: Some(self.stamp(*until)),
                    run_until: run_until.map(|at| self.stamp(at)),
                    heartbeat_at: Some(self.stamp(*heartbeat)),
                    heartbeat_age_seconds: Some(self.now.saturating_sub(*heartbeat) / 1_000),
                    ..of("leased", text)
                }
            }
            Reason::CancelRequested => {
                let text = "its cancellation was requested, and its worker has not stopped yet";
                of("cancel_requested", text.to_owned())
            }
            Reason::Completed { at } => ReasonBody {
                at: Some(self.stamp(*at)),
                ..of("completed", format!("it completed at {}", self.date(*at)))
            },
            Reason::Failed { at, by, error } => {
                let by = by.as_deref().map(display_identity);
                let who = by.as_deref().unwrap_or("its worker");
                let what = error.as_deref().unwrap_or("no error given");
                ReasonBody {
                    at: Some(self.stamp(*at)),
                    error: error.as_deref(),
                    ..of("failed", format!("{who} failed it at {}: {what}", self.date(*at)))
                }
                .by(by)
            }
            Reason::Cancelled { at, by } => {
                let by = by.as_deref().map(display_identity);
                let who = by.as_deref().map_or(String::new(), |by| format!(" by {by}"));
                let text = format!("it was cancelled{who} at {}", self.date(*at));
                ReasonBody { at: Some(self.stamp(*at)), ..of("cancelled", text) }.by(by)
            }
            Reason::Dead { at, attempts, max_attempts, failures, dropped } => {
                let last = failures.last().map_or(String::new(), |last| {
                    let why = last.why.as_deref().unwrap_or("no reason given");
                    format!("; the last attempt: {} ({why})", last.event.as_str().replace('_', " "))
                });
                let when = self.date(*at);
                let text = format!(
                    "it became a dead letter at {when} after {attempts} of {max_attempts} attempts{last}"
                );
                ReasonBody {
                    at: Some(self.stamp(*at)),
                    attempts: Some(*attempts),
                    max_attempts: Some(*max_attempts),
                    failures: Some(failures.iter().map(|entry| self.failure(entry)).collect()),
                    dropped: Some(*dropped).filter(|dropped| *dropped > 0),
                    ..of("dead_lettered", text)
                }
            }
            Reason::ReadyTasks { count, oldest } => {
                let age = oldest.map_or(String::new(), |at| {
                    format!(", the oldest created {} ago", self.ago(at))
                });
                let text = format!("{} claimable{age}", are(*count, "task"));
                let since = oldest.map(|at| self.stamp(at));
                ReasonBody { count: Some(*count), since, ..of("ready_tasks", text) }
            }
            Reason::DelayedTasks { count } => {
                let text = format!("{} delayed", are(*count, "task"));
                ReasonBody { count: Some(*count), ..of("delayed_tasks", text) }
            }
            Reason::LeasedTasks { count } => {
                let text = format!("{} in progress", are(*count, "task"));
                ReasonBody { count: Some(*count), ..of("leased_tasks", text) }
            }
            Reason::DeadLetters { count } => {
                let text = match count {
                    1 => "1 task is a dead letter".to_owned(),
                    n => format!("{n} tasks are dead letters"),
                };
                ReasonBody { count: Some(*count), ..of("dead_letters", text) }
            }
            Reason::Empty => {
                of("empty", "no task of the queue is waiting or in progress".to_owned())
            }
        }
    }

    fn failure<'a>(&self, entry: &'a Entry) -> FailureBody<'a> {
        FailureBody {
            at: self.stamp(entry.at),
            event: entry.event.as_str(),
            who: entry.who.as_deref().map(display_identity),
            why: entry.why.as_deref(),
        }
    }
}

impl<'a> ReasonBody<'a> {
    fn by(self, by: Option<Cow<'a, str>>) -> ReasonBody<'a> {
        ReasonBody { by, ..self }
    }
}

/// "1 task is", "3 tasks are".
fn are(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun} is") } else { format!("{count} {noun}s are") }
}

/// A length of time in at most two units.
fn span(ms: Millis) -> String {
    let seconds = ms / 1_000;
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest} s"),
        (0, 0, _) => format!("{minutes} m {rest} s"),
        (0, ..) => format!("{hours} h {minutes} m"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_at_most_two_units() {
        let texts = [0, 59_999, 61_000, 7_260_000, 90_000_000].map(span);
        assert_eq!(texts, ["0 s", "59 s", "1 m 1 s", "2 h 1 m", "1 d 1 h"]);
        assert_eq!(are(1, "task"), "1 task is");
        assert_eq!(are(0, "task"), "0 tasks are");
    }
}
