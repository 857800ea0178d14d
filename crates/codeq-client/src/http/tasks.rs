//! Tasks: read, wait, change, cancel.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use tokio::time::Instant;

use super::HttpClient;
use super::types::{FinishedTask, History, Search, TaskChanges, TaskPage, TaskRecord, TaskResult};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::seconds::from_now;

/// Longest wait per request.
const WAIT_MAX: Duration = Duration::from_secs(30);

impl HttpClient {
    /// Looks up a task.
    pub async fn task(&self, id: &str) -> Result<TaskRecord, Error> {
        self.request(Method::GET, &["tasks", id])?.json().await
    }

    /// The result, if there is one now or within `wait` (whole seconds, up to 60).
    pub async fn result(&self, id: &str, wait: Duration) -> Result<Option<TaskResult>, Error> {
        let seconds = wait.as_secs().min(60);
        let answer: Result<FinishedTask, Error> = self
            .request(Method::GET, &["tasks", id, "result"])?
            .query(&[("waitSeconds", Some(&seconds.to_string()))])
            .waits(Duration::from_secs(seconds))
            .json()
            .await;
        match answer {
            Ok(finished) => Ok(Some(finished.result)),
            Err(Error::Api { status: 404, message, .. }) if message == "result not found" => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for the result, or returns [`Error::Timeout`] after `timeout`. Retries while the server is unavailable.
    pub async fn wait_result(&self, id: &str, timeout: Duration) -> Result<TaskResult, Error> {
        self.wait_result_with(id, timeout, |_| ()).await
    }

    /// Same as [`HttpClient::wait_result`], and calls `note` before every retry: with the error of the request, or with
    /// `None` if the server answered that there is no result yet.
    pub async fn wait_result_with(
        &self,
        id: &str,
        timeout: Duration,
        note: impl FnMut(Option<&Error>),
    ) -> Result<TaskResult, Error> {
        let deadline = from_now(timeout);
        let asking = self.ask_for_result(id, deadline, note);
        tokio::time::timeout_at(deadline, asking).await.unwrap_or(Err(Error::Timeout))
    }

    async fn ask_for_result(
        &self,
        id: &str,
        deadline: Instant,
        mut note: impl FnMut(Option<&Error>),
    ) -> Result<TaskResult, Error> {
        let mut backoff = Backoff::default();
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).min(WAIT_MAX);
            // Rounded up: a wait of less than a second must not become a busy loop.
            let wait = Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0));
            let asked = Instant::now();
            let pause = match self.result(id, wait).await {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => {
                    note(None);
                    pause_after_wait(asked.elapsed(), wait, &mut backoff)
                }
                Err(error) if error.is_transient() => {
                    note(Some(&error));
                    error.retry_after().unwrap_or_else(|| backoff.pause())
                }
                Err(error) => return Err(error),
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Every transition of a task.
    pub async fn history(&self, id: &str) -> Result<History, Error> {
        self.request(Method::GET, &["tasks", id, "history"])?.json().await
    }

    /// A page of tasks that match the search.
    pub async fn tasks(&self, search: &Search) -> Result<TaskPage, Error> {
        self.search(&["tasks"], search).await
    }

    pub(super) async fn search(&self, path: &[&str], search: &Search) -> Result<TaskPage, Error> {
        let limit = search.limit.map(|limit| limit.to_string());
        self.request(Method::GET, path)?
            .query(&[
                ("command", search.command.as_deref()),
                ("status", search.status.map(|status| status.as_str())),
                ("state", search.state.map(|state| state.as_str())),
                ("filter", search.filter.as_deref()),
                ("limit", limit.as_deref()),
                ("cursor", search.cursor.as_deref()),
            ])
            .json()
            .await
    }

    /// Changes the priority of a task that is not running, or when it becomes claimable.
    pub async fn change(&self, id: &str, changes: &TaskChanges) -> Result<TaskRecord, Error> {
        self.request(Method::PATCH, &["tasks", id])?.body(changes).json().await
    }

    /// Cancels a task. True if it is finished now; false if it is running and its worker was asked to stop.
    pub async fn cancel(&self, id: &str) -> Result<bool, Error> {
        let (status, _) = self.request(Method::POST, &["tasks", id, "cancel"])?.send().await?;
        Ok(status == StatusCode::OK)
    }
}

/// The pause after a wait without result: none, unless the server answered early, as it does while it shuts down. It must
/// not be asked again and again.
fn pause_after_wait(waited: Duration, wait: Duration, backoff: &mut Backoff) -> Duration {
    if waited < wait / 2 {
        return backoff.pause();
    }
    backoff.reset();
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_early_answers_are_followed_by_a_pause() {
        let mut backoff = Backoff::default();
        let early: Vec<_> =
            (0..20).map(|_| pause_after_wait(Duration::ZERO, WAIT_MAX, &mut backoff)).collect();
        assert!(early.iter().any(|pause| *pause > Duration::from_millis(100)), "{early:?}");
        assert_eq!(pause_after_wait(WAIT_MAX, WAIT_MAX, &mut backoff), Duration::ZERO);
        assert!(backoff.pause() <= Duration::from_millis(100), "it starts over");
    }
}
