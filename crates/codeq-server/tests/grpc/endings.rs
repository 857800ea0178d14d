//! How streams end: the client half-closes, the server stops, or the token expires.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use codeq_proto::producer::producer_event::Event as ToProducers;
use codeq_proto::producer::server_event::Event as FromProducers;
use codeq_proto::producer::{CreateTaskBatch, ProducerEvent, ServerEvent};
use codeq_server::config::{Durability, JwtConfig};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::grpc::acks::{ack, heartbeat, result};
use crate::grpc::client::{PATIENCE, Producer, Worker, channel, endpoint, new_task};
use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER, WORKER_2};

const STOPPED: (Code, &str) = (Code::Unavailable, "the server is shutting down");

#[tokio::test]
async fn a_half_closed_stream_answers_everything_and_ends_ok() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    for seq in 0..200 {
        producer.say(ToProducers::Create(new_task(seq, "c"))).await;
    }
    producer.half_close();
    let mut seqs = Vec::new();
    while let Some(answer) = producer.answer().await.unwrap() {
        let Some(FromProducers::CreateAck(ack)) = answer.event else { panic!("{answer:?}") };
        assert!(ack.ok);
        seqs.push(ack.seq);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (0..200).collect::<Vec<_>>());

    // A worker with waiting Readys: its events are answered, the Readys are not.
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let tasks: Vec<_> = {
        worker.ready("c", 50).await;
        worker.tasks().await
    };
    assert!(!tasks.is_empty());
    worker.ready("nothing", 1).await;
    for task in &tasks {
        worker.say(heartbeat(&task.id, 0)).await;
        worker.say(result(&task.id, "COMPLETED")).await;
    }
    worker.half_close();
    let mut acks = 0;
    while let Some(answer) = worker.answer().await.unwrap() {
        let got = ack(answer.event.unwrap());
        // A result may overtake the heartbeat of the same task.
        assert!(got.ok || (got.kind == "heartbeat" && got.code == "not_in_progress"), "{got:?}");
        acks += 1;
    }
    assert_eq!(acks, 2 * tasks.len());
}

#[tokio::test]
async fn a_stop_ends_idle_streams_at_once() {
    let server = Harness::with(|config| config.shutdown_grace_seconds = 30).await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    worker.ready("c", 1).await;
    worker.ready("c", 10).await;
    worker.settle().await;
    // Two streams that have not sent a Hello.
    let mut silent = crate::grpc::client::producer(server.producer_addr()).await;
    let mut mute = crate::grpc::client::worker(server.worker_addr()).await;
    let mut health = HealthClient::new(channel(server.worker_addr()).await);
    let watched = HealthCheckRequest { service: String::new() };
    let mut watch = health.watch(watched).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 1);

    let start = Instant::now();
    let stopping = tokio::spawn(server.stop());
    let (code, text) = producer.ended().await;
    assert_eq!((code, &*text), STOPPED);
    // Nothing but the end: the Readys are not answered.
    let (code, text) = worker.ended().await;
    assert_eq!((code, &*text), STOPPED);
    // A stream that watches the health reports the stop, and then ends.
    let mut last = 1;
    while let Ok(Some(change)) = watch.message().await {
        last = change.status;
    }
    assert_ne!(last, 1);
    for (code, text) in [silent.ended().await, mute.ended().await] {
        assert_eq!((code, &*text), STOPPED);
    }
    stopping.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Waits until this many claims wait for a task.
async fn until_waiting(server: &Harness, wanted: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = server.get("", "/metrics").await.expect(200).text();
        let line = metrics.lines().find_map(|line| line.strip_prefix("codeq_claims_waiting "));
        if line == Some(wanted.to_string().as_str()) {
            return;
        }
        assert!(Instant::now() < deadline, "{line:?} instead of {wanted}");
    }
}

#[tokio::test]
async fn readys_of_a_stream_that_is_gone_wait_no_more() {
    let server = Harness::start().await;
    let mut stays = Worker::open(server.worker_addr(), WORKER).await;
    let gone = Worker::open(server.worker_addr(), WORKER).await;
    let mut done = Worker::open(server.worker_addr(), WORKER).await;
    for worker in [&stays, &gone, &done] {
        for _ in 0..20 {
            worker.ready("c", 1).await;
        }
    }
    until_waiting(&server, 60).await;
    drop(gone);
    until_waiting(&server, 40).await;
    done.half_close();
    until_waiting(&server, 20).await;
    server.task("c").await;
    stays.task().await;
    until_waiting(&server, 19).await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_clients_that_take_nothing() {
    let server = Harness::with(|config| config.shutdown_grace_seconds = 30).await;
    let held = server.running("held").await;
    let mut deaf = Vec::new();
    for at in 0..3 {
        // The window has room for some of the answers, and nobody reads them.
        let endpoint = endpoint(server.producer_addr()).initial_stream_window_size(1_024);
        let producer = Producer::open_on(endpoint.connect().await.unwrap(), PRODUCER).await;
        for seq in 0..100 {
            producer.say(ToProducers::Create(new_task(seq, &format!("deaf-{at}")))).await;
        }
        deaf.push(producer);
    }
    let deadline = Instant::now() + PATIENCE;
    let made = loop {
        let queues = server.get(ADMIN, "admin/queues").await.expect(200).json();
        let made = (0..3).map(|at| queues[format!("codeq:q:deaf-{at}:a:pending:0")].as_u64());
        if made.clone().all(|made| made == Some(100)) {
            break queues;
        }
        assert!(Instant::now() < deadline, "{queues}");
    };
    let start = Instant::now();
    let server = server.restart().await;
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert_eq!(server.get(ADMIN, "admin/queues").await.expect(200).json(), made);
    let beat = server.post(WORKER, &format!("tasks/{held}/heartbeat"), json!({})).await;
    beat.expect(200);
}

#[tokio::test]
async fn a_stop_flushes_acknowledgements_and_makes_no_assignments() {
    // With syncs, some acknowledgements are still due when the server is stopped.
    let server = Harness::with(|config| config.durability = Durability::Fsync).await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let held = server.task("held").await;
    assert_eq!(worker.take("held").await.id, held);
    worker.ready("c", 1).await;
    worker.settle().await;
    for seq in 0..500 {
        producer.say(ToProducers::Create(new_task(seq, "bulk"))).await;
    }
    // When this event is answered, those before it have been read.
    producer.say(ToProducers::CreateBatch(CreateTaskBatch::default())).await;
    let (mut acked, mut read) = (HashSet::new(), false);
    let mut stopping = None;
    let mut server = Some(server);
    let end = loop {
        match producer.answer().await {
            Ok(Some(ServerEvent { event: Some(FromProducers::CreateAck(ack)) })) => {
                assert!(ack.ok && acked.insert(ack.task_id), "{}", ack.error_message);
            }
            Ok(Some(ServerEvent { event: Some(FromProducers::CreateAckBatch(_)) })) => {
                read = true;
                stopping = server.take().map(|server| tokio::spawn(server.restart()));
            }
            Ok(other) => panic!("{other:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!((end.code(), end.message(), read), (STOPPED.0, STOPPED.1, true));
    assert_eq!(acked.len(), 500);
    // The worker's Ready is not answered.
    let (code, text) = worker.ended().await;
    assert_eq!((code, &*text), STOPPED);
    let server = stopping.unwrap().await.unwrap();
    let queue = server.get(ADMIN, "admin/queues/bulk").await.expect(200).json();
    assert_eq!(queue["ready"], 500);
    // The client comes back and goes on.
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    assert!(ack(worker.ask(result(&held, "COMPLETED")).await).ok);
}

#[tokio::test]
async fn what_was_acknowledged_while_the_server_stopped_is_there_afterwards() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let sender = producer.sender();
    // A client that does not stop sending: what it still sends must not keep it from reading the end.
    let sending = tokio::spawn(async move {
        for seq in 0..100_000 {
            let event = Some(ToProducers::Create(new_task(seq, "bulk")));
            if sender.send(ProducerEvent { event }).await.is_err() {
                break;
            }
        }
    });
    let mut acked = HashSet::new();
    for _ in 0..100 {
        acked.insert(producer.ack().await.task_id);
    }
    let stopping = tokio::spawn(server.restart());
    let end = loop {
        let answer = match producer.answer().await {
            Ok(answer) => answer.unwrap(),
            Err(end) => break end,
        };
        let Some(FromProducers::CreateAck(ack)) = answer.event else { panic!("no ack") };
        if ack.ok {
            assert!(acked.insert(ack.task_id));
        } else {
            assert_eq!(ack.code, "shutting_down");
        }
    };
    assert_eq!(end.code(), Code::Unavailable, "{end}");
    sending.await.unwrap();
    let server = stopping.await.unwrap();
    let queue = server.get(ADMIN, "admin/queues/bulk").await.expect(200).json();
    assert_eq!(queue["ready"], acked.len(), "{queue}");
    for id in acked.iter().take(100) {
        server.get(PRODUCER, &format!("tasks/{id}")).await.expect(200);
    }
}

/// An identity provider, and what it signs with.
pub struct Provider {
    key: EncodingKey,
    pub url: String,
    /// Notified when somebody fetches the keys.
    asked: Arc<Notify>,
}

impl Provider {
    pub async fn start() -> Provider {
        let pair = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        let jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        let mut jwk = serde_json::to_value(jwk).unwrap();
        jwk["kid"] = json!("k");
        let keys = json!({"keys": [jwk]}).to_string();
        let asked = Arc::new(Notify::new());
        let notify = Arc::clone(&asked);
        let answer = move || async move {
            notify.notify_one();
            keys
        };
        let router = Router::new().route("/keys", get(answer));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Provider { key, url, asked }
    }

    pub fn config(&self) -> JwtConfig {
        JwtConfig {
            issuer: "https://id.example".into(),
            audience: "codeq".into(),
            jwks_url: Some(self.url.clone()),
        }
    }

    pub fn token(&self, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": "k"});
        let message = format!("{}.{}", part(&header), part(claims));
        let signature =
            jsonwebtoken::crypto::sign(message.as_bytes(), &self.key, Algorithm::ES256).unwrap();
        format!("{message}.{signature}")
    }
}

#[tokio::test]
async fn keys_are_fetched_before_a_token_needs_them() {
    let provider = Provider::start().await;
    let jwt = provider.config();
    let server = Harness::with(move |config| config.producer_auth.jwt.push(jwt)).await;
    timeout(PATIENCE, provider.asked.notified()).await.expect("at the start");
    let new = Provider::start().await;
    let mut config = server.config().clone();
    config.producer_auth.jwt = vec![new.config()];
    server.server().reload_to(&config).await.unwrap();
    timeout(PATIENCE, new.asked.notified()).await.expect("after a reload");
}

#[tokio::test]
async fn a_stream_outlives_its_token_unless_it_is_to_end_with_it() {
    let provider = Provider::start().await;
    let with = |ends| {
        let jwt = provider.config();
        Harness::with(move |config| {
            config.producer_auth.jwt.push(jwt.clone());
            config.worker_auth.jwt.push(jwt);
            config.auth.end_streams_at_expiry = ends;
        })
    };
    let (strict, server) = (with(true).await, with(false).await);
    // Clocks may differ by a minute: this one is still good for a few seconds.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let token = provider.token(&json!({
        "iss": "https://id.example", "aud": "codeq", "sub": "short", "tenantId": "a",
        "exp": now - 55, "iat": now - 100, "scope": "codeq:claim codeq:result codeq:heartbeat",
        "eventTypes": ["*"],
    }));
    let mut lasting_producer = Producer::open(server.producer_addr(), &token).await;
    let mut lasting_worker = Worker::open(server.worker_addr(), &token).await;
    let mut producer = Producer::open(strict.producer_addr(), &token).await;
    let mut worker = Worker::open(strict.worker_addr(), &token).await;
    worker.ready("c", 1).await;
    worker.settle().await;
    let id = producer.make(new_task(1, "c")).await;
    assert_eq!(worker.task().await.id, id);
    worker.ready("c", 1).await;
    for (code, text) in [producer.ended().await, worker.ended().await] {
        assert_eq!((code, &*text), (Code::Unauthenticated, "token expired"));
    }
    // Its Ready is gone.
    let other = strict.task("c").await;
    let mut next = Worker::open(strict.worker_addr(), WORKER).await;
    assert_eq!(next.take("c").await.id, other);
    // The token has expired by now, and the streams of the other server go on.
    let id = lasting_producer.make(new_task(1, "c")).await;
    assert_eq!(lasting_worker.take("c").await.id, id);
    assert!(ack(lasting_worker.ask(result(&id, "COMPLETED")).await).ok);
    // But the token opens no other stream.
    for server in [&strict, &server] {
        let mut late = crate::grpc::client::worker(server.worker_addr()).await;
        late.hello(&token, "").await;
        assert_eq!(late.ended().await.0, Code::Unauthenticated);
    }
}

#[tokio::test]
async fn a_revoked_token_ends_its_streams_and_no_others() {
    let server = Harness::start().await;
    let mut gone = Worker::open(server.worker_addr(), WORKER).await;
    let mut stays = Worker::open(server.worker_addr(), WORKER_2).await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    gone.ready("c", 1).await;
    gone.settle().await;
    let mut config = server.config().clone();
    config.worker_auth.static_tokens.retain(|known| known.token.as_deref() != Some(WORKER));
    server.server().reload_to(&config).await.unwrap();
    assert_eq!(gone.ended().await, (Code::Unauthenticated, "token revoked".to_owned()));
    let mut again = crate::grpc::client::worker(server.worker_addr()).await;
    again.hello(WORKER, "").await;
    assert_eq!(again.ended().await.0, Code::Unauthenticated);
    // The task goes to whoever is still there.
    stays.ready("c", 1).await;
    producer.say(ToProducers::Create(new_task(1, "c"))).await;
    assert!(matches!(
        producer.answer().await.unwrap().unwrap().event,
        Some(FromProducers::CreateAck(ack)) if ack.ok
    ));
    assert_eq!(stays.task().await.command, "c");
}
