//! A receiver of notifications on loopback, and a server that may call it.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use codeq_server::Config;
use codeq_server::config::StaticToken;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::http::harness::{Harness, WORKER};

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Hears of commands `a` and `b` only.
pub const NARROW: &str = "a-narrow";
/// Of the group `gpu`.
pub const GROUPED: &str = "a-grouped";

/// What arrived.
#[derive(Debug)]
pub struct Heard {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Heard {
    pub fn event_type(&self) -> &str {
        self.body["eventType"].as_str().unwrap()
    }
}

/// A receiver that records its notifications. The start of a path decides the answer: `/gone`, `/broken`, `/hang`;
/// any other path is accepted.
pub struct Receiver {
    base: String,
    heard: mpsc::UnboundedReceiver<Heard>,
}

impl Receiver {
    pub async fn start() -> Receiver {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (sender, heard) = mpsc::unbounded_channel();
        let router =
            Router::new().fallback(move |request: Request| answer(sender.clone(), request));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Receiver { base, heard }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.base)
    }

    /// The next notification.
    pub async fn next(&mut self) -> Heard {
        tokio::time::timeout(PATIENCE, self.heard.recv()).await.expect("a notification").unwrap()
    }

    /// The next notification, which is of this command.
    #[track_caller]
    pub fn expect(&mut self, command: &str) -> impl Future<Output = Heard> {
        let command = command.to_owned();
        async move {
            let heard = self.next().await;
            assert_eq!(heard.event_type(), command, "{heard:?}");
            heard
        }
    }
}

async fn answer(sender: mpsc::UnboundedSender<Heard>, request: Request) -> StatusCode {
    assert_eq!(request.method(), "POST");
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let path = parts.uri.path().to_owned();
    let status = match &path {
        path if path.starts_with("/gone") => StatusCode::GONE,
        path if path.starts_with("/broken") => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::OK,
    };
    let hang = path.starts_with("/hang");
    let body = serde_json::from_slice(&body).unwrap();
    let _ = sender.send(Heard { path, headers: parts.headers, body });
    if hang {
        std::future::pending::<()>().await;
    }
    status
}

fn token(name: &str, event_types: &[&str], group: Option<&str>) -> StaticToken {
    StaticToken {
        token: Some(format!("a-{name}")),
        subject: name.to_owned(),
        tenant: "a".to_owned(),
        scopes: vec!["codeq:subscribe".to_owned()],
        event_types: event_types.iter().map(|name| (*name).to_owned()).collect(),
        worker_group: group.map(str::to_owned),
        ..StaticToken::default()
    }
}

/// A server that calls receivers on this machine.
pub async fn server(change: impl FnOnce(&mut Config)) -> Harness {
    Harness::with(|config| {
        config.webhooks.allowed_networks = vec!["127.0.0.0/8".parse().unwrap()];
        config.backoff_base_seconds = 1;
        let tokens = &mut config.worker_auth.static_tokens;
        tokens.push(token("narrow", &["a", "B"], None));
        tokens.push(token("grouped", &["*"], Some("gpu")));
        change(config);
    })
    .await
}

/// Subscribes and returns the id. Notifications are not throttled unless `more` says so.
pub async fn subscribe_as(h: &Harness, token: &str, url: &str, more: Value) -> String {
    let mut new = json!({"callbackUrl": url, "minIntervalSeconds": 0});
    for (name, value) in more.as_object().unwrap() {
        new[name] = value.clone();
    }
    let made = h.post(token, "workers/subscriptions", new).await.expect(200).json();
    made["subscriptionId"].as_str().unwrap().to_owned()
}

pub async fn subscribe(h: &Harness, url: &str, more: Value) -> String {
    subscribe_as(h, WORKER, url, more).await
}

/// Takes the one task of a queue away, for good.
pub async fn drain(h: &Harness, command: &str) {
    let id = h.claim(WORKER, command).await["id"].as_str().unwrap().to_owned();
    let done = json!({"status": "COMPLETED"});
    h.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
}
