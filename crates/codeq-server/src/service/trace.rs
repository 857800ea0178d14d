//! Spans of what is done with tasks, in the producer's trace. Cost nothing unless traces are collected.

use codeq_core::id::TaskId;
use codeq_core::view::Task;
use tracing::Span;

use super::Service;
use crate::auth::Principal;
use crate::observe::trace;

impl Service {
    /// The span of an operation on a task whose context is on the disk; none unless traces are collected. The operation
    /// itself will say that there is no such task.
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

/// The span of an operation on a task that is at hand.
pub(super) fn span_of(operation: &'static str, task: &Task) -> Span {
    if !trace::is_on() {
        return Span::none();
    }
    let state = task.trace_state.as_deref().unwrap_or_default();
    let stored = task.trace_parent.as_deref().map(|parent| (parent, state));
    trace::task_span(operation, &task.command, &task.id.to_string(), &task.tenant, stored)
}
