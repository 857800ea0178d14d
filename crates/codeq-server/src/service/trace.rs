//! Spans for task operations, in the producer's trace. Free unless tracing is enabled.

use codeq_auth::Principal;
use codeq_core::id::TaskId;
use codeq_core::view::Task;
use tracing::Span;

use super::Service;
use crate::observe::trace;

impl Service {
    /// The span of an operation on a task whose trace context is in the store; `None` unless
    /// tracing is enabled. A missing task is left for the operation to report.
    pub(super) fn span(
        &self,
        operation: &'static str,
        caller: &Principal,
        id: TaskId,
    ) -> Option<Span> {
        if !trace::is_on() {
            return None;
        }
        Some(span_of(operation, &self.engine.task_now(&caller.tenant, id)?))
    }
}

/// The span of an operation on a task already in memory.
pub(super) fn span_of(operation: &'static str, task: &Task) -> Span {
    if !trace::is_on() {
        return Span::none();
    }
    let state = task.trace_state.as_deref().unwrap_or_default();
    let stored = task.trace_parent.as_deref().map(|parent| (parent, state));
    trace::task_span(operation, &task.command, &task.id.to_string(), &task.tenant, stored)
}
