//! A real server on a free port, and a client for it.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use bytes::Bytes;
use codeq_engine::{Engine, Options};
use codeq_server::config::{AuthConfig, Durability, StaticToken};
use codeq_server::{Config, OpenEngine, Server};
use codeq_webhooks::dns::{DnsResolver, Resolve};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster_of_one;

/// Tokens, named after tenant and role.
pub const PRODUCER: &str = "a-producer";
pub const WORKER: &str = "a-worker";
pub const WORKER_2: &str = "a-worker2";
/// May claim commands named `a`, and do nothing else.
pub const RESTRICTED: &str = "a-restricted";
pub const ADMIN: &str = "a-admin";
pub const OPERATOR: &str = "a-operator";
pub const PRODUCER_B: &str = "b-producer";
pub const WORKER_B: &str = "b-worker";
pub const ADMIN_B: &str = "b-admin";

/// An id that no task has.
pub const UNKNOWN_ID: &str = "00000000-0000-8fff-8000-00000000abcd";
/// A moment after every other one.
pub const LATER: &str = "2999-01-01T00:00:00Z";

const WORKER_SCOPES: [&str; 6] = [
    "codeq:claim",
    "codeq:heartbeat",
    "codeq:abandon",
    "codeq:nack",
    "codeq:result",
    "codeq:subscribe",
];

/// The engine under the server: one of its own or, if `CODEQ_TEST_CLUSTER` is set, a cluster of one.
fn engine() -> OpenEngine {
    if !over_cluster() {
        return Engine::open;
    }
    |dir, options| {
        // A cluster always syncs.
        let options = Options { durability: codeq_engine::Durability::Fsync, ..options };
        cluster_of_one::start(dir, options)
    }
}

/// Whether the tests run over a cluster of one.
pub fn over_cluster() -> bool {
    std::env::var_os("CODEQ_TEST_CLUSTER").is_some()
}

/// A running server with its data.
pub struct Harness {
    server: Server,
    dir: TempDir,
    config: Config,
    client: Client,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Harness {
    pub async fn start() -> Harness {
        Harness::with(|_| ()).await
    }

    /// With changes to the configuration.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Harness {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config {
            data_dir: dir.path().join("data"),
            http_addr: ([127, 0, 0, 1], 0).into(),
            durability: Durability::Os,
            producer_auth: producers(),
            worker_auth: workers(),
            shutdown_grace_seconds: 5,
            ..Config::default()
        };
        change(&mut config);
        Harness::open(dir, config).await
    }

    /// Restarts the server with this name server for webhooks.
    pub async fn resolving(self, resolve: Arc<dyn Resolve>) -> Harness {
        let Harness { server, dir, config, client } = self;
        server.stop().await;
        let server = Server::start_on(config.clone(), resolve, engine()).await.unwrap();
        Harness { server, dir, config, client }
    }

    async fn open(dir: TempDir, config: Config) -> Harness {
        let resolve = Arc::new(DnsResolver::system());
        let server = Server::start_on(config.clone(), resolve, engine()).await.unwrap();
        Harness { server, dir, config, client: client() }
    }

    /// Stops cleanly and starts again on the same data.
    pub async fn restart(self) -> Harness {
        let Harness { server, dir, config, client } = self;
        drop(client);
        server.stop().await;
        Harness::open(dir, config).await
    }

    /// Stops cleanly; the data stays until the returned directory is dropped.
    pub async fn stop(self) -> TempDir {
        self.server.stop().await;
        self.dir
    }

    /// Where the data is.
    pub fn dir(&self) -> &std::path::Path {
        &self.config.data_dir
    }

    /// The configuration it was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    pub fn addr(&self) -> std::net::SocketAddr {
        self.server.http_addr()
    }

    pub fn producer_addr(&self) -> std::net::SocketAddr {
        self.server.producer_addr()
    }

    pub fn worker_addr(&self) -> std::net::SocketAddr {
        self.server.worker_addr()
    }

    /// A request; a path without a leading slash is one of the API. The token `""` sends none.
    pub fn request(&self, method: Method, token: &str, path: &str) -> RequestBuilder {
        let base = if path.starts_with('/') { "" } else { "/v1/codeq/" };
        let url = format!("http://{}{base}{path}", self.addr());
        let request = self.client.request(method, url);
        if token.is_empty() { request } else { request.bearer_auth(token) }
    }

    pub async fn get(&self, token: &str, path: &str) -> Reply {
        send(self.request(Method::GET, token, path)).await
    }

    pub async fn delete(&self, token: &str, path: &str) -> Reply {
        send(self.request(Method::DELETE, token, path)).await
    }

    pub async fn post(&self, token: &str, path: &str, body: Value) -> Reply {
        self.post_text(token, path, body.to_string()).await
    }

    pub async fn put(&self, token: &str, path: &str, body: Value) -> Reply {
        send(self.request(Method::PUT, token, path).body(body.to_string())).await
    }

    /// Posts a body exactly as it stands here.
    pub async fn post_text(&self, token: &str, path: &str, body: impl Into<Vec<u8>>) -> Reply {
        send(self.request(Method::POST, token, path).body(body.into())).await
    }

    /// Posts without a body.
    pub async fn act(&self, token: &str, path: &str) -> Reply {
        send(self.request(Method::POST, token, path)).await
    }

    /// Makes a task and returns its id.
    pub async fn enqueue(&self, token: &str, body: Value) -> String {
        self.post(token, "tasks", body).await.expect(202).id()
    }

    /// Makes a task of this command.
    pub async fn task(&self, command: &str) -> String {
        self.enqueue(PRODUCER, json!({"command": command, "payload": {}})).await
    }

    /// Claims a task of this command, which must be there.
    pub async fn claim(&self, token: &str, command: &str) -> Value {
        self.post(token, "tasks/claim", json!({"commands": [command]})).await.expect(200).json()
    }

    /// Makes a task and claims it as [`WORKER`].
    pub async fn running(&self, command: &str) -> String {
        let id = self.task(command).await;
        assert_eq!(self.claim(WORKER, command).await["id"], *id);
        id
    }

    /// Makes a task that is dead-lettered with `reason`.
    pub async fn dead(&self, command: &str, reason: &str) -> String {
        let task = json!({"command": command, "payload": {}, "maxAttempts": 1});
        let id = self.enqueue(PRODUCER, task).await;
        self.claim(WORKER, command).await;
        let nack = json!({"reason": reason});
        let done = self.post(WORKER, &format!("tasks/{id}/nack"), nack).await.expect(200).json();
        assert_eq!(done, json!({"status": "dlq", "delaySeconds": 0}));
        id
    }

    /// Makes a task that is completed.
    pub async fn completed(&self, command: &str) -> String {
        let id = self.running(command).await;
        let done = json!({"status": "COMPLETED"});
        self.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
        id
    }
}

/// Advances the clock of this runtime, on which the server and its clients wait. A connection that has not answered a
/// ping for 20 s is closed, so advance further in steps, and let the peers talk in between.
pub async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// A client without certificates, because loading the system's takes longer than most tests.
pub fn client() -> Client {
    let client = Client::builder().no_proxy().tls_certs_only([]);
    client.timeout(Duration::from_secs(60)).build().unwrap()
}

/// Sends a request and takes the whole answer.
pub async fn send(request: RequestBuilder) -> Reply {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = response.bytes().await.unwrap();
    Reply { status, headers, body }
}

impl Reply {
    /// Checks the status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Reply {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    #[track_caller]
    pub fn id(&self) -> String {
        self.json()["id"].as_str().unwrap().to_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Checks that this is a problem document with this status and short text.
    #[track_caller]
    pub fn refused(&self, status: u16, error: &str) -> Value {
        let body = self.json();
        assert_eq!((self.status, body["error"].as_str()), (status, Some(error)), "{body}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(body["status"], status);
        if matches!(status, 429 | 503) {
            assert!(self.header("retry-after").is_some(), "{body}");
        }
        assert_eq!(body["requestId"].as_str(), self.header("x-request-id"));
        for member in ["type", "title", "detail", "code"] {
            assert!(body[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {body}");
        }
        body
    }
}

fn token(role: &str, tenant: &str, scopes: &[&str], event_types: &[&str]) -> StaticToken {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    StaticToken {
        token: Some(format!("{tenant}-{role}")),
        token_sha256: None,
        subject: role.to_owned(),
        tenant: tenant.to_owned(),
        scopes: owned(scopes),
        event_types: owned(event_types),
        worker_group: None,
    }
}

fn producers() -> AuthConfig {
    let of = |tenant| {
        [
            token("producer", tenant, &[], &[]),
            token("admin", tenant, &["codeq:admin"], &[]),
            token("operator", tenant, &["codeq:operator"], &[]),
        ]
    };
    AuthConfig { jwt: Vec::new(), static_tokens: ["a", "b"].map(of).concat() }
}

fn workers() -> AuthConfig {
    let of = |tenant| {
        [
            token("worker", tenant, &WORKER_SCOPES, &["*"]),
            token("worker2", tenant, &WORKER_SCOPES, &["*"]),
            token("restricted", tenant, &["codeq:claim"], &["a"]),
        ]
    };
    AuthConfig { jwt: Vec::new(), static_tokens: ["a", "b"].map(of).concat() }
}
