//! gRPC: producer and worker streams, on the same service layer as HTTP.
//!
//! ```text
//! messages ─> session (Hello, flow control, drain) ─> producer | worker: event -> service -> answer
//! ```
//!
//! A stream is a single task. It reads events, starts the requested operations, and writes the
//! answers as they become durable. All answers that are ready go out in one write.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use codeq_net::Peer;
use codeq_proto::codec;
use tonic::codec::{EncodeBody, SingleMessageCompressionOverride};
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::app::App;
use crate::request_id::{REQUEST_ID, request_id};

mod convert;
mod hello;
mod mailbox;
mod messages;
mod producer;
mod session;
mod worker;

use messages::Messages;
use session::{Opened, Protocol, Session};

/// Maximum request size for the health and reflection services, which need no token.
const SIDE_REQUEST_BYTES_MAX: usize = 4 << 10;

/// The gRPC services: both streams, health and, for development, reflection.
pub struct Streams {
    router: Router,
    health: HealthReporter,
}

/// The services that health checks report on. The empty name stands for the whole server.
const SERVICES: [&str; 3] = ["", "producerpb.ProducerStream", "workerpb.WorkerStream"];

impl Streams {
    /// Puts all services on one router: both gRPC ports serve all of them.
    pub async fn new(app: Arc<App>, reflection: bool) -> Streams {
        let (health, health_server) = health();
        for service in SERVICES {
            health.set_service_status(service, tonic_health::ServingStatus::Serving).await;
        }
        let producers = Arc::clone(&app);
        let producers = move |request| call(Arc::clone(&producers), request, producer::open);
        let workers = move |request| call(Arc::clone(&app), request, worker::open);
        let mut router = Router::new()
            .route("/producerpb.ProducerStream/Stream", any(producers))
            .route("/workerpb.WorkerStream/Stream", any(workers))
            .route_service("/grpc.health.v1.Health/{method}", health_server)
            .fallback(unknown);
        if reflection {
            router = with_reflection(router);
        }
        Streams { router, health }
    }

    /// The router for a listener.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Reports to health checks that the server is shutting down.
    pub async fn stop(&self) {
        for service in SERVICES {
            self.health.set_service_status(service, tonic_health::ServingStatus::NotServing).await;
        }
        // Ends the watch streams after they received the status: they would keep the connection
        // open.
        for service in SERVICES {
            let mut health = self.health.clone();
            health.clear_service_status(service).await;
        }
    }
}

/// Answers a stream call with a session, which then waits for the Hello.
async fn call<P, F>(app: Arc<App>, request: Request, open: Open<P::In, F>) -> Response
where
    P: Protocol,
    F: Future<Output = Result<Opened<P>, Status>> + Send + 'static,
{
    let (parts, body) = request.into_parts();
    let coding = parts.headers.get("grpc-encoding");
    if coding.is_some_and(|coding| coding != "identity") {
        return Status::unimplemented("compressed messages are not supported").into_http();
    }
    let connection = parts.extensions.get::<Peer>().map(|peer| Arc::clone(&peer.held));
    let messages = match Messages::new(body, &app.budget.strangers()) {
        Ok(messages) => messages,
        Err(status) => return status.into_http(),
    };
    let origin = Arc::new(StreamOrigin {
        request_id: request_id(&parts.headers),
        peer: parts.extensions.get::<Peer>().map(|peer| peer.addr),
        quiet: AtomicBool::new(false),
    });
    let id = HeaderValue::from_str(&origin.request_id);
    let opening = open(Arc::clone(&app), Arc::clone(&origin), parts.headers, messages);
    let single = SingleMessageCompressionOverride::default();
    let session = Session::new(app, connection, origin, opening);
    let body = EncodeBody::new_server(codec::encoder::<P::Out>(), session, None, single, None);
    let kind = HeaderValue::from_static("application/grpc");
    let mut response = ([(header::CONTENT_TYPE, kind)], Body::new(body)).into_response();
    if let Ok(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Opens a stream: waits for the Hello and authenticates the client.
type Open<In, F> = fn(Arc<App>, Arc<StreamOrigin>, HeaderMap, Messages<In>) -> F;

/// The parts of the HTTP request that a stream keeps.
struct StreamOrigin {
    /// Identifies the stream in the log and to its client.
    request_id: String,
    peer: Option<SocketAddr>,
    /// Suppresses the log line of a stream whose token was refused, if too many refusals were logged recently.
    quiet: AtomicBool,
}

fn health() -> (HealthReporter, HealthServer<HealthService>) {
    let reporter = HealthReporter::new();
    let service = HealthService::from_health_reporter(reporter.clone());
    (reporter, HealthServer::new(service).max_decoding_message_size(SIDE_REQUEST_BYTES_MAX))
}

/// Adds reflection, for tools such as grpcurl.
fn with_reflection(router: Router) -> Router {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(codeq_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => router
            .route_service(
                "/grpc.reflection.v1.ServerReflection/{method}",
                v1.max_decoding_message_size(SIDE_REQUEST_BYTES_MAX),
            )
            .route_service(
                "/grpc.reflection.v1alpha.ServerReflection/{method}",
                v1alpha.max_decoding_message_size(SIDE_REQUEST_BYTES_MAX),
            ),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(target: "codeq::grpc", %error, "cannot serve reflection");
            router
        }
    }
}

/// The answer for unknown services.
async fn unknown() -> Response {
    let status = HeaderValue::from(Code::Unimplemented as i32);
    let kind = HeaderValue::from_static("application/grpc");
    ([(header::CONTENT_TYPE, kind), (tonic::Status::GRPC_STATUS, status)], ()).into_response()
}
