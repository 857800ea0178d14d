//! Helpers.

use std::time::Duration;

use codeq_client::testing::TestServer;
use codeq_client::{
    Error, HttpClient, NewTask, Producer, Status, TaskResult, WorkerBuilder, WorkerHandle,
    WorkerStats,
};
use codeq_server::config::BackoffPolicy;
use serde::Serialize;
use tokio::task::JoinHandle;

/// Long enough for a busy machine; a test that waits this long has failed.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A server that retries failed tasks after a second.
pub async fn server() -> TestServer {
    TestServer::start_with(|config| {
        config.backoff_policy = BackoffPolicy::Fixed;
        config.backoff_base_seconds = 1;
        config.backoff_max_seconds = 1;
    })
    .await
    .unwrap()
}

/// A running worker.
pub struct Running {
    pub handle: WorkerHandle,
    working: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub fn start(builder: WorkerBuilder) -> Running {
        let worker = builder.build().unwrap();
        let handle = worker.handle();
        Running { handle, working: tokio::spawn(worker.run()) }
    }

    /// What `run` returned.
    pub async fn ended(self) -> Result<(), Error> {
        soon(self.working).await.unwrap()
    }

    /// Shuts the worker down and returns its statistics.
    pub async fn stop(self) -> WorkerStats {
        let handle = self.handle.clone();
        handle.shutdown();
        self.ended().await.unwrap();
        handle.stats()
    }
}

/// Waits until the lease of a task has been extended four times. It is extended whenever a third of it has passed, so
/// without the extensions it would have ended by then.
pub async fn outlives_its_lease(http: &HttpClient, id: &str) {
    let lease = || async { http.task(id).await.unwrap().lease_until };
    soon(async {
        let (mut until, mut extended) = (lease().await, 0);
        while extended < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = lease().await;
            extended += u32::from(now != until);
            until = now;
        }
    })
    .await;
}

/// Awaits the future. The test fails if that takes longer than [`TIMEOUT`].
pub async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIMEOUT, future).await.expect("it takes too long")
}

/// Enqueues a task and returns its id.
pub async fn enqueue(producer: &Producer, command: &str, payload: &impl Serialize) -> String {
    producer.enqueue(NewTask::new(command, payload).unwrap()).await.unwrap().task_id
}

/// The result of a task.
pub async fn result(producer: &Producer, id: &str) -> TaskResult {
    producer.wait_result(id, TIMEOUT).await.unwrap()
}

/// The error of a task that failed.
pub async fn failure(producer: &Producer, id: &str) -> String {
    let result = result(producer, id).await;
    assert_eq!(result.status, Status::Failed);
    result.error
}
