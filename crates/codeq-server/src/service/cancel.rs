//! Cancel: a producer withdraws its task.

use codeq_core::command::{Cancel, Command};
use codeq_core::reply::Reply;
use codeq_core::view::Task;

use super::permission::MayProduce;
use super::{Service, ServiceError, task_id};

/// The state of a cancellation.
pub enum Cancelled {
    /// The task was not running, so it is finished.
    Done(Box<Task>),
    /// The task is running; its worker has been asked to stop.
    Requested(Box<Task>),
}

impl Service {
    /// Finishes a task that is not running, or asks its worker to stop.
    pub async fn cancel(
        &self,
        caller: MayProduce<'_>,
        id: &str,
    ) -> Result<Cancelled, ServiceError> {
        let cancel = Cancel {
            tenant: caller.tenant.clone(),
            id: task_id(id, "not found")?,
            by: caller.subject.clone(),
        };
        match self.propose(Command::Cancel(cancel)).await? {
            Reply::Cancelled(task) => Ok(Cancelled::Done(task)),
            Reply::CancelRequested(task) => Ok(Cancelled::Requested(task)),
            Reply::Rejected(codeq_core::reply::Rejection::NotFound) => {
                Err(ServiceError::not_found("not found"))
            }
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Err(ServiceError::unexpected()),
        }
    }
}
