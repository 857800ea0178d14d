//! The audit log: what admins did, as lines of JSON in `audit/` of the data directory.

use std::net::IpAddr;
use std::sync::Arc;

use codeq_core::names::cut;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::times::Timestamp;

mod log;

pub use log::{AuditLog, AuditPage, Line};

/// A body with more bytes is left out.
const BODY_BYTES_MAX: usize = 4 << 10;
/// Bytes kept of a parameter's value.
const PARAMETER_BYTES_MAX: usize = 256;
/// Replaces secrets.
const MASK: &str = "***";

/// What an admin did.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Action {
    /// When the request arrived.
    pub at: Timestamp,
    /// The tenant of the token.
    pub tenant_id: Arc<str>,
    /// The subject of the token.
    pub subject: String,
    /// The operation's id.
    pub operation: &'static str,
    /// Parameters of path and query. Absent if there are none.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// The body, with secrets masked. Absent if it is empty or longer than 4 KiB, and if the request was refused,
    /// because a secret could then be anywhere in it. Absent too if `status` is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// Where the request came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_address: Option<IpAddr>,
    /// The id of the request.
    pub request_id: String,
    /// The status of the response. Absent if the client disconnected before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The error code of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
}

/// A request's body for the log: JSON that is not too long, with secrets masked.
fn shown_body(bytes: &[u8]) -> Option<Value> {
    let body = bytes.trim_ascii();
    if body.is_empty() || body.len() > BODY_BYTES_MAX {
        return None;
    }
    let mut value = serde_json::from_slice(body).ok().filter(|value| *value != Value::Null)?;
    mask(&mut value);
    Some(value)
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let name = name.to_ascii_lowercase();
                if ["secret", "token", "password"].iter().any(|word| name.contains(word)) {
                    *value = Value::from(MASK);
                } else {
                    mask(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(mask),
        _ => {}
    }
}

/// An action in progress. It is recorded even if the client leaves before the response.
pub struct Recording {
    log: Arc<AuditLog>,
    action: Option<Box<Action>>,
}

impl Recording {
    /// Begins to record an action.
    pub fn new(log: &Arc<AuditLog>, action: Action) -> Recording {
        Recording { log: Arc::clone(log), action: Some(Box::new(action)) }
    }

    /// Adds a parameter of the path or the query.
    pub fn parameter(&mut self, name: &str, value: &str) {
        if let Some(action) = &mut self.action {
            action.parameters.insert(name.to_owned(), cut(value, PARAMETER_BYTES_MAX).into());
        }
    }

    /// Adds the body, once it is read.
    pub fn body(&mut self, bytes: &[u8]) {
        if let Some(action) = &mut self.action {
            action.body = shown_body(bytes);
        }
    }

    /// Records how the action ended, and returns once that is written.
    pub async fn done(mut self, status: u16, code: Option<&'static str>) {
        if let Some(mut action) = self.action.take() {
            (action.status, action.code) = (Some(status), code);
            if status >= 400 {
                action.body = None;
            }
            let log = Arc::clone(&self.log);
            // If the task cannot run, the runtime is shutting down.
            let _ = tokio::task::spawn_blocking(move || write(&log, &action)).await;
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let (Some(mut action), Ok(runtime)) =
            (self.action.take(), tokio::runtime::Handle::try_current())
        {
            action.body = None;
            let log = Arc::clone(&self.log);
            runtime.spawn_blocking(move || write(&log, &action));
        }
    }
}

/// A failed write does not fail the action, which is done already.
fn write(log: &AuditLog, action: &Action) {
    if let Err(error) = log.append(action) {
        let (operation, tenant, subject) = (action.operation, &*action.tenant_id, &*action.subject);
        tracing::error!(target: "codeq::audit", %error, operation, tenant, subject, "not recorded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    pub fn action(tenant: &str, text: &str) -> Action {
        Action {
            at: crate::times::Times::new("UTC").unwrap().timestamp(0),
            tenant_id: tenant.into(),
            subject: "admin".to_owned(),
            operation: "pauseQueue",
            parameters: Map::from_iter([("command".to_owned(), json!(text))]),
            body: None,
            remote_address: None,
            request_id: "r".to_owned(),
            status: Some(200),
            code: None,
        }
    }

    #[tokio::test]
    async fn an_action_is_recorded_even_if_its_client_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(AuditLog::new(dir.path(), false));
        let begun = || Recording::new(&log, Action { status: None, ..action("a", "x") });
        begun().done(404, Some("not_found")).await;
        drop(begun());
        let read = || log.read(None, None, 9).unwrap().items;
        while read().len() < 2 {
            tokio::task::yield_now().await;
        }
        let items: Vec<Value> =
            read().iter().map(|line| serde_json::from_str(line.get()).unwrap()).collect();
        assert_eq!((&items[0]["status"], &items[0]["code"]), (&json!(404), &json!("not_found")));
        assert_eq!((items[1].get("status"), items[1].get("code")), (None, None));
    }

    #[test]
    fn secrets_are_masked_and_bodies_bounded() {
        let body = br#"{"secret":"whsec_1","overlapSeconds":5,"deep":[{"apiToken":"t"}],"x":null}"#;
        let shown = shown_body(body).unwrap();
        let expected =
            json!({"secret": "***", "overlapSeconds": 5, "deep": [{"apiToken": "***"}], "x": null});
        assert_eq!(shown, expected);
        for bad in [
            &b""[..],
            b" ",
            b"null",
            b"{",
            &[b' '; 9],
            format!("[{}]", "1,".repeat(4_096)).as_bytes(),
        ] {
            assert_eq!(shown_body(bad), None);
        }
    }
}
