//! Queues, dead letters, topics and cleanup, which need an admin token; backups and the configuration, which need an
//! operator token.

use std::time::Duration;

use reqwest::Method;

use super::HttpClient;
use super::types::{
    Backup, BulkOptions, CancelTasks, CancelledTasks, CleanedUp, Purged, Queue, QueueList,
    QueueStats, Reloaded, Replay, Replayed, Search, TaskPage, TaskRecord, Topic, TopicPolicy,
};
use crate::error::Error;

/// A backup of a large server takes a long time, and the response begins only once it is complete.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(86_400);

impl HttpClient {
    /// All queues of the tenant.
    pub async fn queues(&self) -> Result<Vec<Queue>, Error> {
        let request = self.request(Method::GET, &["admin", "queues"])?;
        let list: QueueList = request.query(&[("format", Some("list"))]).json().await?;
        Ok(list.items)
    }

    /// Statistics of a queue.
    pub async fn queue(&self, command: &str) -> Result<QueueStats, Error> {
        self.request(Method::GET, &["admin", "queues", command])?.json().await
    }

    /// Pauses claims from a queue; enqueues continue.
    pub async fn pause_queue(&self, command: &str) -> Result<(), Error> {
        let path = ["admin", "queues", command, "pause"];
        self.request(Method::POST, &path)?.send().await.map(|_| ())
    }

    /// Resumes claims from a queue.
    pub async fn resume_queue(&self, command: &str) -> Result<(), Error> {
        let path = ["admin", "queues", command, "resume"];
        self.request(Method::POST, &path)?.send().await.map(|_| ())
    }

    /// Cancels ready and delayed tasks of a queue.
    pub async fn purge_queue(&self, command: &str, which: &BulkOptions) -> Result<Purged, Error> {
        let path = ["admin", "queues", command, "purge"];
        self.request(Method::POST, &path)?.body(which).json().await
    }

    /// Cancels tasks of a queue: ready and delayed ones at once, and running ones by asking their workers to stop.
    pub async fn cancel_tasks(
        &self,
        command: &str,
        which: &CancelTasks,
    ) -> Result<CancelledTasks, Error> {
        let path = ["admin", "queues", command, "cancel"];
        self.request(Method::POST, &path)?.body(which).json().await
    }

    /// A page of a queue's dead letters. Only `filter`, `limit` and `cursor` of the search apply.
    pub async fn dead_letters(&self, command: &str, search: &Search) -> Result<TaskPage, Error> {
        let search = Search { command: None, status: None, state: None, ..search.clone() };
        self.search(&["admin", "dlq", command], &search).await
    }

    /// Returns dead-lettered, failed or cancelled tasks to their queue.
    pub async fn replay_dead_letters(
        &self,
        command: &str,
        replay: &Replay,
    ) -> Result<Replayed, Error> {
        let path = ["admin", "dlq", command, "replay"];
        self.request(Method::POST, &path)?.body(replay).json().await
    }

    /// Returns a dead-lettered, failed or cancelled task to its queue.
    pub async fn replay_task(&self, id: &str) -> Result<TaskRecord, Error> {
        self.request(Method::POST, &["tasks", id, "replay"])?.json().await
    }

    /// Removes dead letters permanently.
    pub async fn purge_dead_letters(
        &self,
        command: &str,
        which: &BulkOptions,
    ) -> Result<Purged, Error> {
        let path = ["admin", "dlq", command, "purge"];
        self.request(Method::POST, &path)?.body(which).json().await
    }

    /// The policy of a queue.
    pub async fn topic(&self, name: &str) -> Result<Topic, Error> {
        self.request(Method::GET, &["admin", "topics", name])?.json().await
    }

    /// Sets the policy of a queue.
    pub async fn put_topic(&self, name: &str, policy: &TopicPolicy) -> Result<Topic, Error> {
        self.request(Method::PUT, &["admin", "topics", name])?.body(policy).json().await
    }

    /// Removes the policy of a queue; its tasks stay.
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let request = self.request(Method::DELETE, &["admin", "topics", name])?;
        request.query(&[("deletionPolicy", Some("Delete"))]).send().await.map(|_| ())
    }

    /// Removes finished tasks: those that finished before a given time or, by default, those whose retention has ended.
    pub async fn cleanup(&self, which: &BulkOptions) -> Result<CleanedUp, Error> {
        let path = ["admin", "tasks", "cleanup"];
        self.request(Method::POST, &path)?.body(which).json().await
    }

    /// Makes a backup at the server's configured target. Returns when it is complete and verified.
    pub async fn backup(&self) -> Result<Backup, Error> {
        let request = self.request(Method::POST, &["admin", "backup"])?;
        request.waits(BACKUP_TIMEOUT).json().await
    }

    /// Makes the server reread its configuration.
    pub async fn reload_config(&self) -> Result<Reloaded, Error> {
        self.request(Method::POST, &["admin", "config", "reload"])?.json().await
    }
}
