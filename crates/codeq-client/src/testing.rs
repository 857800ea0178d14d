//! A real server inside the test process, on free ports, with its data in a temporary directory.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use codeq_client::testing::TestServer;
//! use codeq_client::NewTask;
//!
//! let server = TestServer::start().await?;
//! let enqueued = server.producer().await?.enqueue(NewTask::new("mail", &"hello")?).await?;
//! assert_eq!(server.http()?.task(&enqueued.task_id).await?.command, "mail");
//! server.end().await;
//! # Ok(())
//! # }
//! ```

use std::net::{Ipv4Addr, SocketAddr};

use codeq_server::{Config, Server};
use tempfile::TempDir;

use crate::error::Error;
use crate::http::HttpClient;
use crate::options::Options;
use crate::producer::Producer;
use crate::worker::{Worker, WorkerBuilder};

/// A token that a [`TestServer`] accepts for everything.
pub const TOKEN: &str = "dev-token";

/// A server for one test. Dropping it removes its data.
pub struct TestServer {
    config: Config,
    server: Option<Server>,
    dir: TempDir,
}

impl std::fmt::Debug for TestServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestServer")
            .field("dir", &self.dir.path())
            .field("running", &self.server.is_some())
            .finish_non_exhaustive()
    }
}

impl TestServer {
    /// Starts a server.
    pub async fn start() -> Result<TestServer, Error> {
        TestServer::start_with(|_| {}).await
    }

    /// Starts a server with a modified configuration.
    pub async fn start_with(configure: impl FnOnce(&mut Config)) -> Result<TestServer, Error> {
        let dir = tempfile::tempdir().map_err(|error| Error::Config(error.to_string()))?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = Config::dev(dir.path().to_owned(), any);
        let mut config = config.map_err(|problem| Error::Config(problem.to_string()))?;
        configure(&mut config);
        let mut server = TestServer { config, server: None, dir };
        server.resume().await?;
        Ok(server)
    }

    /// Options to connect to the server, with a token that it accepts.
    pub fn options(&self) -> Options {
        Options::new(TOKEN)
            .http_url(format!("http://{}", self.http_addr()))
            .producer_url(format!("http://{}", self.producer_addr()))
            .worker_url(format!("http://{}", self.worker_addr()))
    }

    /// Address of the HTTP API.
    pub fn http_addr(&self) -> SocketAddr {
        self.config.http_addr
    }

    /// Address of the producer stream.
    pub fn producer_addr(&self) -> SocketAddr {
        self.config.stream_addrs().0
    }

    /// Address of the worker stream.
    pub fn worker_addr(&self) -> SocketAddr {
        self.config.stream_addrs().1
    }

    /// Connects a producer.
    pub async fn producer(&self) -> Result<Producer, Error> {
        Producer::connect(self.options()).await
    }

    /// Starts building a worker.
    pub fn worker(&self) -> WorkerBuilder {
        Worker::builder(self.options())
    }

    /// A client of the HTTP API.
    pub fn http(&self) -> Result<HttpClient, Error> {
        HttpClient::new(&self.options())
    }

    /// Stops the server gracefully and keeps its data. Does nothing if it is not running.
    pub async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }

    /// Starts the server again, with its data and on the same ports. Does nothing if it is running.
    pub async fn resume(&mut self) -> Result<(), Error> {
        if self.server.is_some() {
            return Ok(());
        }
        let started = Server::start(self.config.clone()).await;
        let server = started.map_err(|error| Error::Unavailable(error.to_string()))?;
        self.config.http_addr = server.http_addr();
        self.config.producer_addr = Some(server.producer_addr());
        self.config.worker_addr = Some(server.worker_addr());
        self.server = Some(server);
        Ok(())
    }

    /// Stops the server and starts it again.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.stop().await;
        self.resume().await
    }

    /// Stops the server and removes its data.
    pub async fn end(mut self) {
        self.stop().await;
    }
}
