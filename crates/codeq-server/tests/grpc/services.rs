//! What is served where: both streams on both ports, health, reflection, TLS; and the limits on a message.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use codeq_proto::producer::producer_stream_client::ProducerStreamClient;
use codeq_proto::producer::{CreateTask, ProducerEvent};
use futures_util::stream;
use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tower::{Service, service_fn};

use crate::grpc::client::{Producer, Worker, channel, endpoint, new_task};
use crate::http::harness::{Harness, PRODUCER, WORKER};

#[tokio::test]
async fn both_streams_are_on_both_ports() {
    let server = Harness::start().await;
    assert_ne!(server.producer_addr(), server.worker_addr());
    for addr in [server.producer_addr(), server.worker_addr()] {
        // On one connection, too.
        let shared = channel(addr).await;
        let mut producer = Producer::open_on(shared.clone(), PRODUCER).await;
        let mut worker = Worker::open_on(shared, WORKER, "").await;
        worker.ready("c", 1).await;
        let id = producer.make(new_task(1, "c")).await;
        assert_eq!(worker.task().await.id, id);
    }
}

#[tokio::test]
async fn ports_can_be_chosen_and_be_one() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Harness::with(|config| {
        config.producer_addr = Some(free);
        config.worker_addr = Some(free);
    })
    .await;
    assert_eq!((server.producer_addr(), server.worker_addr()), (free, free));
    Producer::open(free, PRODUCER).await.closes().await;
    Worker::open(free, WORKER).await.closes().await;
}

#[test]
fn the_default_ports() {
    let (producer, worker) = codeq_server::Config::default().stream_addrs();
    assert_eq!((producer.port(), worker.port()), (9092, 9091));
}

#[tokio::test]
async fn health_is_reported_for_the_server_and_each_service() {
    let server = Harness::start().await;
    for addr in [server.producer_addr(), server.worker_addr()] {
        let mut health = HealthClient::new(channel(addr).await);
        for service in ["", "producerpb.ProducerStream", "workerpb.WorkerStream"] {
            let request = HealthCheckRequest { service: service.into() };
            let answer = health.check(request.clone()).await.unwrap().into_inner();
            assert_eq!(answer.status, 1, "{service}");
            let mut watch = health.watch(request).await.unwrap().into_inner();
            assert_eq!(watch.message().await.unwrap().unwrap().status, 1, "{service}");
        }
        let request = HealthCheckRequest { service: "other".into() };
        assert_eq!(health.check(request).await.unwrap_err().code(), Code::NotFound);
    }
}

async fn listed(addr: SocketAddr) -> Result<Vec<String>, tonic::Status> {
    let mut client = ServerReflectionClient::new(channel(addr).await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = client.server_reflection_info(stream::iter([request])).await?.into_inner();
    let answer = answers.message().await?.unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}")
    };
    Ok(list.service.into_iter().map(|service| service.name).collect())
}

#[tokio::test]
async fn reflection_is_for_those_who_ask_for_it() {
    let without = Harness::start().await;
    assert_eq!(listed(without.producer_addr()).await.unwrap_err().code(), Code::Unimplemented);
    let with = Harness::with(|config| config.grpc.reflection = true).await;
    for addr in [with.producer_addr(), with.worker_addr()] {
        let services = listed(addr).await.unwrap();
        for service in
            ["producerpb.ProducerStream", "workerpb.WorkerStream", "grpc.health.v1.Health"]
        {
            assert!(services.iter().any(|name| name == service), "{service}: {services:?}");
        }
    }
}

#[tokio::test]
async fn unknown_methods_and_services_are_unimplemented() {
    let server = Harness::start().await;
    for path in [
        "/producerpb.ProducerStream/Other",
        "/workerpb.WorkerStream/stream",
        "/other.Service/Stream",
        "/",
        "/v1/codeq/tasks",
    ] {
        let channel = channel(server.producer_addr()).await;
        let elsewhere = service_fn(move |mut request: axum::http::Request<tonic::body::Body>| {
            *request.uri_mut() = path.parse().unwrap();
            let mut channel: Channel = channel.clone();
            async move {
                std::future::poll_fn(|cx| Service::<_>::poll_ready(&mut channel, cx)).await?;
                channel.call(request).await
            }
        });
        let call = Request::new(stream::empty::<ProducerEvent>());
        let status = ProducerStreamClient::new(elsewhere).stream(call).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn a_message_beyond_the_limit_ends_the_stream_and_nothing_else() {
    let server = Harness::start().await;
    let shared = channel(server.producer_addr()).await;
    let mut other = Producer::open_on(shared.clone(), PRODUCER).await;
    let mut producer = Producer::open_on(shared, PRODUCER).await;
    let sized = |bytes: usize| CreateTask {
        payload: format!("\"{}\"", "x".repeat(bytes)).into(),
        ..new_task(1, "c")
    };
    producer.make(sized(1_000_000)).await;
    producer.say(codeq_proto::producer::producer_event::Event::Create(sized(4 << 20))).await;
    assert_eq!(producer.ended().await.0, Code::OutOfRange);
    other.make(new_task(2, "c")).await;
}

#[tokio::test]
async fn a_message_of_too_many_items_is_refused_before_it_takes_memory() {
    let server = Harness::start().await;
    // Also before the Hello: sending such a message takes no token.
    let first = crate::grpc::client::producer(server.producer_addr()).await;
    let second = Producer::open(server.producer_addr(), PRODUCER).await;
    for (mut producer, items) in [(first, 100), (second, 1_000_000)] {
        let tasks = vec![CreateTask::default(); items];
        let batch = codeq_proto::producer::CreateTaskBatch { tasks };
        producer.say(codeq_proto::producer::producer_event::Event::CreateBatch(batch)).await;
        assert_eq!(producer.ended().await.0, Code::InvalidArgument);
    }
}

/// A TLS connection to the server with this certificate.
async fn tls_channel(addr: SocketAddr, trusted: &CertificateDer<'static>) -> Channel {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let connect = service_fn(move |_| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(addr).await?;
            let name = ServerName::try_from("localhost").unwrap();
            connector.connect(name, stream).await.map(TokioIo::new)
        }
    });
    endpoint(addr).connect_with_connector(connect).await.unwrap()
}

#[tokio::test]
async fn with_a_certificate_both_ports_speak_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (cert_file, key_file) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&cert_file, cert.pem()).unwrap();
    fs::write(&key_file, signing_key.serialize_pem()).unwrap();
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
    let server = Harness::with(|config| {
        config.tls.cert_file = Some(cert_file);
        config.tls.key_file = Some(key_file);
    })
    .await;
    let producers = tls_channel(server.producer_addr(), cert.der()).await;
    let workers = tls_channel(server.worker_addr(), cert.der()).await;
    let mut producer = Producer::open_on(producers, PRODUCER).await;
    let mut worker = Worker::open_on(workers, WORKER, "").await;
    worker.ready("c", 1).await;
    let id = producer.make(new_task(1, "c")).await;
    assert_eq!(worker.task().await.id, id);
    // Without TLS there is no answer.
    let plain = ProducerStreamClient::new(endpoint(server.producer_addr()).connect_lazy())
        .stream(Request::new(stream::empty()))
        .await;
    assert!(plain.is_err());
}
