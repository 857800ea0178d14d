//! `codeq worker list`: workers that have a stream, hold a task, or asked for tasks lately.

use serde::{Deserialize, Serialize};

use crate::cli::{About, Done, Session, Show, age, cell, talk};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Workers {
    items: Vec<Seen>,
    total: u64,
    tasks_held_exact: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    worker_id: String,
    queues: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    more_queues: Option<u64>,
    all_queues: bool,
    streams: u32,
    slots: u32,
    tasks_held: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_claim_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_error_at: Option<String>,
}

impl Show for Seen {
    const COLUMNS: &'static [&'static str] =
        &["WORKER", "QUEUES", "HELD", "FREE", "STREAMS", "CLAIMED", "ERROR"];

    fn cells(&self) -> Vec<String> {
        let mut queues = if self.all_queues { "all".to_owned() } else { self.queues.join(",") };
        if let Some(more) = self.more_queues {
            queues.push_str(&format!(" and {more} more"));
        }
        vec![
            self.worker_id.clone(),
            queues,
            self.tasks_held.to_string(),
            self.slots.to_string(),
            self.streams.to_string(),
            cell(self.last_claim_at.as_deref().map(age)),
            cell(self.last_error.as_ref()),
        ]
    }

    fn name(&self) -> String {
        self.worker_id.clone()
    }
}

pub async fn run(session: &Session, limit: u32) -> Done {
    let limit = limit.to_string();
    let found: Workers = session
        .http
        .get(&["admin", "workers"], &[("limit", Some(&limit))])
        .await
        .about("workers")?;
    session.out.items(&found.items)?;
    if found.items.is_empty() {
        talk("no worker has a stream, holds a task, or asked for tasks within the last hour");
    }
    if found.total > found.items.len() as u64 {
        talk(&format!("{} of {} workers listed: see --limit", found.items.len(), found.total));
    }
    if !found.tasks_held_exact {
        talk("HELD is a lower bound: there are too many leases to count them all");
    }
    Ok(())
}
