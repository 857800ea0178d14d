//! How tasks, results and transitions are printed.

use codeq_client::{Status, TaskEvent, TaskRecord, TaskResult, Transition};

use crate::cli::{Show, age, cell};

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

/// The state in one word: the status, more precisely.
fn state(task: &TaskRecord) -> &'static str {
    match (task.status, task.last_known_location.as_str()) {
        (Status::Pending, "DELAYED_ZSET") => "DELAYED",
        (Status::Pending, _) => "PENDING",
        (Status::InProgress, _) => "IN_PROGRESS",
        (Status::Completed, _) => "COMPLETED",
        (Status::Failed, "DLQ_SET") => "DEAD",
        (Status::Failed, _) if task.error == "CANCELLED" => "CANCELLED",
        (Status::Failed, _) => "FAILED",
    }
}

pub fn word(status: Status) -> &'static str {
    match status {
        Status::Pending => "PENDING",
        Status::InProgress => "IN_PROGRESS",
        Status::Completed => "COMPLETED",
        Status::Failed => "FAILED",
    }
}

impl Show for TaskResult {
    const COLUMNS: &'static [&'static str] = &["ID", "STATUS", "COMPLETED", "RESULT", "ERROR"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.task_id.clone(),
            word(self.status).to_owned(),
            self.completed_at.clone(),
            cell(self.result.as_deref().map(|json| json.get())),
            self.error.clone(),
        ]
    }

    fn name(&self) -> String {
        self.task_id.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let artifacts: Vec<&str> = self.artifacts.iter().map(|item| item.name.as_str()).collect();
        vec![
            ("Id", self.task_id.clone()),
            ("Status", word(self.status).to_owned()),
            ("Finished", self.completed_at.clone()),
            ("Error", self.error.clone()),
            ("Artifacts", artifacts.join(", ")),
            ("Result", cell(self.result.as_deref().map(|json| json.get()))),
        ]
    }
}

impl Show for Transition {
    const COLUMNS: &'static [&'static str] = &["AT", "EVENT", "STATUS", "WHO", "WHY"];

    fn cells(&self) -> Vec<String> {
        let (who, why) = (cell(self.who.as_ref()), cell(self.why.as_ref()));
        vec![self.at.clone(), self.event.clone(), word(self.status).to_owned(), who, why]
    }

    fn name(&self) -> String {
        self.event.clone()
    }
}

impl Show for TaskEvent {
    const COLUMNS: &'static [&'static str] = &["AT", "ID", "QUEUE", "EVENT", "STATUS", "ATTEMPTS"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.at.clone(),
            self.task_id.clone(),
            self.command.clone(),
            self.event.clone(),
            cell(self.status.map(word)),
            self.attempts.to_string(),
        ]
    }

    fn name(&self) -> String {
        self.task_id.clone()
    }
}
