//! How tasks, results and transitions are printed.

use std::time::Duration;

use codeq_client::{Status, TaskEvent, TaskRecord, TaskResult, Transition};

use crate::cli::{Show, age, cell, span};

impl Show for TaskRecord {
    const COLUMNS: &'static [&'static str] =
        &["ID", "QUEUE", "STATE", "AGE", "TRIES", "ERROR", "PRIO", "WORKER"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.command.clone(),
            state(self).to_owned(),
            age(&self.created_at),
            format!("{}/{}", self.attempts, self.max_attempts),
            self.error.clone(),
            self.priority.to_string(),
            self.worker_id.clone(),
        ]
    }

    fn name(&self) -> String {
        self.id.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let cancel = if self.cancel_requested { "requested" } else { "" };
        vec![
            ("Id", self.id.clone()),
            ("Queue", self.command.clone()),
            ("Tenant", self.tenant_id.clone()),
            ("State", state(self).to_owned()),
            ("Priority", self.priority.to_string()),
            ("Attempts", format!("{} of {} failed", self.attempts, self.max_attempts)),
            ("Worker", self.worker_id.clone()),
            ("Lease until", cell(self.lease_until.as_ref())),
            ("Max run time", cell(self.max_run_seconds.map(Duration::from_secs).map(span))),
            ("Run until", cell(self.run_until.as_ref())),
            ("Visible at", cell(self.visible_at.as_ref())),
            ("Cancel", cancel.to_owned()),
            ("Error", self.error.clone()),
            ("Webhook", self.webhook.clone()),
            ("Origin", cell(self.origin_task_id.as_ref())),
            ("Created", self.created_at.clone()),
            ("Updated", self.updated_at.clone()),
            ("Payload", self.payload.clone()),
        ]
    }
}

fn state(task: &TaskRecord) -> &'static str {
    word(task.status, &task.last_known_location)
}

/// The state in one word: the same words as the columns of `codeq queue list`. Cancelled tasks are `FAILED` too, because
/// neither a task nor a result says whether it failed or was cancelled: a worker may also submit the error `CANCELLED`.
/// The error is printed next to the state.
fn word(status: Status, location: &str) -> &'static str {
    match (status, location) {
        (Status::Pending, "DELAYED_ZSET") => "DELAYED",
        (Status::Pending, _) => "READY",
        (Status::InProgress, _) => "RUNNING",
        (Status::Completed, _) => "COMPLETED",
        (Status::Failed, "DLQ_SET") => "DEAD",
        (Status::Failed, _) => "FAILED",
    }
}

/// The state after a transition. Only a submitted result ends a task as failed; anything else that ends one without
/// success, and not as a dead letter, is a cancellation.
fn word_after(event: &str, status: Status, to: &str) -> &'static str {
    match word(status, to) {
        "FAILED" if event != "submitted" => "CANCELLED",
        word => word,
    }
}

/// How a task ended. A result does not say whether a failed task is a dead letter.
fn outcome(result: &TaskResult) -> &'static str {
    word(result.status, "NONE")
}

impl Show for TaskResult {
    fn name(&self) -> String {
        self.task_id.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let artifacts: Vec<&str> = self.artifacts.iter().map(|item| item.name.as_str()).collect();
        vec![
            ("Id", self.task_id.clone()),
            ("State", outcome(self).to_owned()),
            ("Finished", self.completed_at.clone()),
            ("Error", self.error.clone()),
            ("Artifacts", artifacts.join(", ")),
            ("Result", cell(self.result.as_deref().map(|json| json.get()))),
        ]
    }
}

impl Show for Transition {
    const COLUMNS: &'static [&'static str] = &["AT", "EVENT", "STATE", "WHO", "WHY"];
    /// The longest event and state; the reason also gets what is left.
    const STREAMED: &'static [usize] = &[24, 16, 9, 40, 40];

    fn cells(&self) -> Vec<String> {
        let (who, why) = (cell(self.who.as_ref()), cell(self.why.as_ref()));
        let state = word_after(&self.event, self.status, &self.to);
        vec![self.at.clone(), self.event.clone(), state.to_owned(), who, why]
    }

    fn name(&self) -> String {
        self.event.clone()
    }
}

impl Show for TaskEvent {
    const COLUMNS: &'static [&'static str] = &["AT", "ID", "EVENT", "STATE", "TRIES", "QUEUE"];
    const STREAMED: &'static [usize] = &[24, 36, 16, 9, 5, 0];

    fn cells(&self) -> Vec<String> {
        vec![
            self.at.clone(),
            self.task_id.clone(),
            self.event.clone(),
            cell(self.status.map(|status| {
                word_after(&self.event, status, self.to.as_deref().unwrap_or_default())
            })),
            self.attempts.to_string(),
            self.command.clone(),
        ]
    }

    fn name(&self) -> String {
        self.task_id.clone()
    }
}
