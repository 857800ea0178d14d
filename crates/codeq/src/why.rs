//! `codeq task why` and `codeq queue why`: what a task or a queue waits for.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cli::{About, Done, Session, Show};

/// The server's explanation. Fields without a place in a table are printed as JSON only.
#[derive(Serialize, Deserialize)]
struct Explanation {
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
    const COLUMNS: &'static [&'static str] = &["SUMMARY"];

    fn cells(&self) -> Vec<String> {
        vec![self.summary.clone()]
    }

    fn name(&self) -> String {
        self.names().join(" ")
    }

    fn names(&self) -> Vec<String> {
        self.reasons.iter().map(|reason| reason.code.clone()).collect()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        self.reasons.iter().map(|reason| ("Because", reason.text.clone())).collect()
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
