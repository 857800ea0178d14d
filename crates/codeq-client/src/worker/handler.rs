//! Type-erased handlers.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tracing::Instrument;

use super::outcome::{HandlerError, Outcome};
use super::task::{Task, TaskInfo};

type Handler = Arc<dyn Fn(TaskInfo, Bytes) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// A worker's handlers by queue name, which ignores ASCII case.
#[derive(Default, Clone)]
pub(super) struct Handlers {
    by_queue: HashMap<String, Handler>,
}

impl Handlers {
    pub(super) fn add<T, F, Fut>(&mut self, command: &str, handler: F)
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, HandlerError>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let erased: Handler = Arc::new(move |info, payload| {
            let handler = Arc::clone(&handler);
            async move {
                let payload = match serde_json::from_slice(&payload) {
                    Ok(payload) => payload,
                    // Another worker may be able to read it: this one's release may be too old or too new.
                    Err(error) => return Outcome::nack(unreadable::<T>(&error)),
                };
                match handler(Task { payload, info }).await {
                    Ok(outcome) => outcome,
                    Err(error) => Outcome::nack(error.to_string()),
                }
            }
            .boxed()
        });
        self.by_queue.insert(command.to_ascii_lowercase(), erased);
    }

    pub(super) fn commands(&self) -> Vec<String> {
        self.by_queue.keys().cloned().collect()
    }

    /// Runs the handler of the task's command. Never panics.
    pub(super) fn run(
        &self,
        info: TaskInfo,
        payload: Bytes,
    ) -> impl Future<Output = Outcome> + Send + 'static {
        let handler = self.by_queue.get(&info.command.to_ascii_lowercase()).cloned();
        let span = tracing::info_span!("task", id = %info.id, command = %info.command);
        let work = async move {
            match handler {
                Some(handler) => handler(info, payload).await,
                None => Outcome::nack(format!("no handler for command '{}'", info.command)),
            }
        };
        let work = AssertUnwindSafe(work.instrument(span)).catch_unwind();
        work.map(|outcome| outcome.unwrap_or_else(|panic| Outcome::nack(describe(&*panic))))
    }
}

/// Why a payload could not be read, without quoting it: reasons end up in logs and lists.
fn unreadable<T>(error: &serde_json::Error) -> String {
    let (kind, place) = (std::any::type_name::<T>(), (error.line(), error.column()));
    let said = error.to_string();
    let at = format!(" at line {} column {}", place.0, place.1);
    let said = said.strip_suffix(&at).unwrap_or(&said);
    let short =
        |text: &str| text.split(['"', '`']).next().unwrap_or_default().trim_end().to_owned();
    let reason = match error.classify() {
        Category::Data if said.starts_with("missing field `") => said.to_owned(),
        // "invalid type: string "…", expected u32": naming the kind of value is enough.
        Category::Data if said.starts_with("invalid ") => {
            let (found, expected) = said.rsplit_once(", expected ").unwrap_or((said, "another"));
            format!("{}, expected {expected}", short(found))
        }
        Category::Data => short(said),
        Category::Syntax | Category::Eof | Category::Io => "it is not JSON".to_owned(),
    };
    format!("the payload cannot be read as {kind}: {reason}{at}")
}

fn describe(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    match text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)) {
        Some(text) => format!("the handler panicked: {text}"),
        None => "the handler panicked".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only their types count")]
    struct Order {
        count: u32,
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    enum Kind {
        Small,
    }

    #[test]
    fn the_reason_does_not_quote_the_payload() {
        for (payload, reason) in [
            ("{}", "missing field `count`"),
            (r#"{"count":"secret"}"#, "invalid type: string, expected u32"),
            (r#"{"count":"a, expected secret"}"#, "invalid type: string, expected u32"),
            (r#"{"count":-1}"#, "invalid value: integer, expected u32"),
            (r#"{"secret":1}"#, "unknown field"),
            (r#"{"count":1,"kind":"secret"}"#, "unknown variant"),
            ("secret", "it is not JSON"),
        ] {
            let error = serde_json::from_str::<Order>(payload).unwrap_err();
            let text = unreadable::<Order>(&error);
            let place = format!(" at line 1 column {}", error.column());
            let head = "the payload cannot be read as ";
            assert!(text.starts_with(head) && text.contains("::Order: "), "{text}");
            assert!(text.ends_with(&format!(": {reason}{place}")), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
