//! Shutdown, in dependency order.

use std::sync::Arc;
use std::time::Instant;

use super::Server;

impl Server {
    /// Drains and stops: reports not ready, answers waiting claims, lets in-flight requests finish,
    /// and writes a checkpoint.
    pub async fn stop(self) {
        self.stop_because("asked to").await;
    }

    /// Stops like [`Server::stop`], with a reason for the log.
    pub async fn stop_because(self, why: &str) {
        let start = Instant::now();
        tracing::info!(target: "codeq::server", why, "draining");
        self.drain().await;
        let took_ms = start.elapsed().as_micros() as f64 / 1_000.0;
        tracing::info!(target: "codeq::server", took_ms, "stopped");
    }

    async fn drain(self) {
        let Server { app, draining, stopping, listeners, background, streams, .. } = self;
        draining.send_replace(true);
        streams.stop().await;
        drop(streams);
        app.service.engine().drain();
        stopping.send_replace(true);
        for task in listeners.into_iter().chain(background) {
            if let Err(error) = task.await {
                tracing::error!(target: "codeq::server", %error, "task failed");
            }
        }
        let engine = Arc::clone(app.service.engine());
        drop(app);
        // Joins threads and writes a checkpoint, which would block the runtime.
        let closed = tokio::task::spawn_blocking(move || engine.shutdown()).await;
        if let Err(error) = closed {
            tracing::error!(target: "codeq::server", %error, "engine shutdown failed");
        }
    }
}
