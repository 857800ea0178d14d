//! Queues, dead letters, topics, cleanup: for tokens of administrators.

use reqwest::Method;

use super::HttpClient;
use super::types::{
    BulkOptions, CleanedUp, Purged, Queue, QueueList, QueueStats, Replay, Replayed, Search,
    TaskPage, TaskRecord, Topic, TopicPolicy,
};
use crate::error::Error;

impl HttpClient {
    /// All queues of the tenant.
    pub async fn queues(&self) -> Result<Vec<Queue>, Error> {
        let request = self.request(Method::GET, &["admin", "queues"])?;
        let list: QueueList = request.query(&[("format", Some("list"))]).json().await?;
        Ok(list.items)
    }

    /// The numbers of a queue.
    pub async fn queue(&self, command: &str) -> Result<QueueStats, Error> {
        self.request(Method::GET, &["admin", "queues", command])?.json().await
    }

    /// Stops claims from a queue; enqueues go on.
    pub async fn pause_queue(&self, command: &str) -> Result<(), Error> {
        let path = ["admin", "queues", command, "pause"];
        self.request(Method::POST, &path)?.send().await.map(|_| ())
    }

    /// Allows claims from a queue again.
    pub async fn resume_queue(&self, command: &str) -> Result<(), Error> {
        let path = ["admin", "queues", command, "resume"];
        self.request(Method::POST, &path)?.send().await.map(|_| ())
    }

    /// Cancels tasks that wait in a queue.
    pub async fn purge_queue(&self, command: &str, which: &BulkOptions) -> Result<Purged, Error> {
        let path = ["admin", "queues", command, "purge"];
        self.request(Method::POST, &path)?.body(which).json().await
    }

    /// A page of the dead letters of a queue. Of the search, `filter`, `limit` and `cursor` count.
    pub async fn dead_letters(&self, command: &str, search: &Search) -> Result<TaskPage, Error> {
        let limit = search.limit.map(|limit| limit.to_string());
        self.request(Method::GET, &["admin", "dlq", command])?
            .query(&[
                ("filter", search.filter.as_deref()),
                ("limit", limit.as_deref()),
                ("cursor", search.cursor.as_deref()),
            ])
            .json()
            .await
    }

    /// Puts dead letters, failed or cancelled tasks back into their queue.
    pub async fn replay_dead_letters(
        &self,
        command: &str,
        replay: &Replay,
    ) -> Result<Replayed, Error> {
        let path = ["admin", "dlq", command, "replay"];
        self.request(Method::POST, &path)?.body(replay).json().await
    }

    /// Puts a task back into its queue that is dead-lettered, failed or cancelled.
    pub async fn replay_task(&self, id: &str) -> Result<TaskRecord, Error> {
        self.request(Method::POST, &["tasks", id, "replay"])?.json().await
    }

    /// Removes dead letters for good.
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

    /// Removes finished tasks: those that finished before a moment, or without one those whose retention has ended.
    pub async fn cleanup(&self, which: &BulkOptions) -> Result<CleanedUp, Error> {
        let path = ["admin", "tasks", "cleanup"];
        self.request(Method::POST, &path)?.body(which).json().await
    }
}
