//! Handlers, with their types erased.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use tracing::Instrument;

use super::outcome::{HandlerError, Outcome};
use super::task::{Task, TaskInfo};

type Handler = Arc<dyn Fn(TaskInfo, Bytes) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// The handlers of a worker by the name of their queue, which ignores the case of ASCII letters.
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
                    // It will not parse the next time either.
                    Err(error) => {
                        return Outcome::Fail(format!("the payload does not parse: {error}"));
                    }
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
                None => Outcome::nack(format!("no handler for the command '{}'", info.command)),
            }
        };
        let work = AssertUnwindSafe(work.instrument(span)).catch_unwind();
        work.map(|outcome| outcome.unwrap_or_else(|panic| Outcome::nack(describe(&*panic))))
    }
}

fn describe(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    match text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)) {
        Some(text) => format!("the handler panicked: {text}"),
        None => "the handler panicked".to_owned(),
    }
}
