//! `codeq task why` and `codeq queue why`: what a task or a queue waits for.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cli::{About, Done, Session, Show, cell};

/// The server's explanation. Fields that `details` leaves out are printed as JSON and YAML only.
#[derive(Serialize, Deserialize)]
struct Explanation {
    /// The task's; a queue has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// The status and all reasons in one line.
    summary: String,
    reasons: Vec<Reason>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
struct Reason {
    code: String,
    text: String,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Show for Explanation {
    fn name(&self) -> String {
        self.names().join(" ")
    }

    fn names(&self) -> Vec<String> {
        self.reasons.iter().map(|reason| reason.code.clone()).collect()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let reasons = self.reasons.iter().map(|reason| ("Because", reason.text.clone()));
        [("Status", cell(self.status.as_ref()))].into_iter().chain(reasons).collect()
    }
}

pub async fn task(session: &Session, id: &str) -> Done {
    let why: Explanation =
        session.http.get(&["tasks", id, "why"], &[]).await.about(&format!("task {id}"))?;
    session.out.item(&why)
}

pub async fn queue(session: &Session, queue: &str) -> Done {
    let path = ["admin", "queues", queue, "why"];
    let why: Explanation = session.http.get(&path, &[]).await.about(&format!("queue '{queue}'"))?;
    session.out.item(&why)
}
