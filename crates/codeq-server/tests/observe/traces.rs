//! Spans at a real collector.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use codeq_server::Config;
use codeq_server::observe::{subscriber, trace};
use tracing::Instrument;

use crate::observe::collector::Collector;
use crate::observe::logs::{Sink, observed};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const SERVER: u64 = 2;
const CLIENT: u64 = 3;
const PRODUCER: u64 = 4;
const CONSUMER: u64 = 5;
const ERROR: u64 = 2;

fn config(addr: impl std::fmt::Display, sample_ratio: f64) -> Config {
    let mut config = Config::default();
    config.tracing.otlp_endpoint = Some(format!("http://{addr}/otlp"));
    config.tracing.sample_ratio = sample_ratio;
    config.log_level = "error".to_owned();
    config
}

/// Runs `work` with everything set up and returns when all spans are sent.
async fn traced(config: Config, work: impl FnOnce() + Send + 'static) -> String {
    let run = move || {
        let sink = Sink::default();
        let to = sink.clone();
        let (subscriber, guard) = subscriber(&config, move || to.clone()).unwrap();
        observed(subscriber, work);
        drop(guard);
        sink.text()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test]
async fn a_producers_trace_goes_on_through_claim_submit_and_callback() {
    let (collector, addr) = Collector::start().await;
    traced(config(addr, 1.0), || {
        let sent = trace::parse(Some(PARENT), Some("vendor=1")).unwrap();
        let request = trace::request_span("createTask", "POST", Some(&sent));
        let stored = request.in_scope(|| {
            let enqueue = trace::task_span("enqueue", "resize", "t-1", "acme", None);
            enqueue.in_scope(trace::current).unwrap()
        });
        trace::answered(&request, "POST", "/v1/codeq/tasks", 202);
        drop(request);
        let stored = (&*stored.0, stored.1.as_deref().unwrap_or_default());
        for operation in ["claim", "heartbeat", "submit"] {
            let request = trace::request_span(operation, "POST", None);
            request.in_scope(|| {
                trace::task_span(operation, "resize", "t-1", "acme", Some(stored)).in_scope(|| ());
            });
            trace::answered(&request, "POST", "/v1/worker", 500);
        }
        trace::task_span("callback", "resize", "t-1", "acme", Some(stored)).in_scope(|| ());
    })
    .await;

    let request = collector.span("POST /v1/codeq/tasks");
    assert_eq!((&*request.trace, &*request.parent), (TRACE, "00f067aa0ba902b7"));
    assert_eq!((request.kind, request.status, &*request.state), (SERVER, 0, "vendor=1"));
    assert_eq!(request.attribute("http.request.method"), Some("POST"));
    assert_eq!(request.attribute("http.route"), Some("/v1/codeq/tasks"));
    assert_eq!(request.attribute("http.response.status_code"), Some("202"));
    let enqueue = collector.span("enqueue resize");
    assert_eq!((&enqueue.trace, &enqueue.parent), (&request.trace, &request.id));
    assert_eq!((enqueue.kind, enqueue.links.len()), (PRODUCER, 0));
    assert_eq!(enqueue.attribute("messaging.system"), Some("codeq"));
    assert_eq!(enqueue.attribute("messaging.operation.name"), Some("enqueue"));
    assert_eq!(enqueue.attribute("messaging.operation.type"), Some("send"));
    assert_eq!(enqueue.attribute("messaging.destination.name"), Some("resize"));
    assert_eq!(enqueue.attribute("messaging.message.id"), Some("t-1"));
    assert_eq!(enqueue.attribute("codeq.tenant"), Some("acme"));
    let requests: Vec<_> = {
        let spans = collector.spans.lock().unwrap();
        spans.iter().filter(|span| span.name == "POST /v1/worker").cloned().collect()
    };
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|span| span.trace != TRACE && span.status == ERROR));
    for name in ["claim resize", "heartbeat resize", "submit resize", "callback resize"] {
        let span = collector.span(name);
        assert_eq!((&*span.trace, &span.parent), (TRACE, &enqueue.id), "{name}");
        assert_eq!(span.state, "vendor=1");
        let linked = requests
            .iter()
            .filter(|request| span.links.contains(&(request.trace.clone(), request.id.clone())));
        let links = if name.starts_with("callback") { 0 } else { 1 };
        assert_eq!((span.links.len(), linked.count()), (links, links), "{name}");
    }
    assert_eq!(collector.span("claim resize").kind, CONSUMER);
    assert_eq!(collector.span("callback resize").kind, CLIENT);
    assert_eq!(collector.span("heartbeat resize").attribute("messaging.operation.type"), None);
    let resource = collector.resource.lock().unwrap();
    let says = |key: &str, value: &str| resource.contains(&(key.to_owned(), value.to_owned()));
    assert!(says("service.name", "codeq"), "{resource:?}");
    assert!(says("service.version", env!("CARGO_PKG_VERSION")), "{resource:?}");
}

#[tokio::test]
async fn sampling_follows_the_parent_and_flags_say_so() {
    let (collector, addr) = Collector::start().await;
    let text = traced(config(addr, 0.0), || {
        let alone = trace::request_span("alone", "GET", None);
        let (context, _) = alone.in_scope(trace::current).unwrap();
        assert!(context.ends_with("-00"), "{context}");
        let sampled = trace::parse(Some(PARENT), None);
        let kept = trace::request_span("kept", "GET", sampled.as_ref());
        let (context, state) = kept.in_scope(trace::current).unwrap();
        assert!(context.starts_with(&PARENT[..36]) && context.ends_with("-01"), "{context}");
        assert_eq!(state, None);
        let unsampled = trace::parse(Some(&PARENT.replace("-01", "-00")), None);
        trace::request_span("left out", "GET", unsampled.as_ref()).in_scope(|| ());
        assert_eq!(trace::current(), None);
        kept.in_scope(|| tracing::error!("inside"));
        tracing::error!("outside");
    })
    .await;
    let names: Vec<String> =
        collector.spans.lock().unwrap().iter().map(|span| span.name.clone()).collect();
    assert_eq!(names, ["kept"]);
    let kept = collector.span("kept");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["trace_id"], TRACE);
    assert_eq!(lines[0]["span_id"], kept.id);
    assert_eq!(lines[1].get("trace_id"), None);
}

#[tokio::test]
async fn requests_that_take_turns_keep_their_own_contexts() {
    // No span is sampled, so nothing is sent to this address.
    let (subscriber, _guard) = subscriber(&config("127.0.0.1:1", 0.0), std::io::sink).unwrap();
    let _default = tracing::subscriber::set_default(subscriber);
    let request = |n: u8| {
        let text = format!("00-{n:032x}-00f067aa0ba902b7-00");
        let sent = trace::parse(Some(&text), None).unwrap();
        let work = async move {
            for _ in 0..3 {
                let (context, _) = trace::current().unwrap();
                assert_eq!(context[..36], text[..36]);
                tokio::task::yield_now().await;
            }
        };
        work.instrument(trace::request_span("listTasks", "GET", Some(&sent)))
    };
    tokio::join!(request(1), request(2), request(3));
    assert_eq!(trace::current(), None);
}

#[tokio::test]
async fn a_collector_that_does_not_answer_does_not_hold_up_the_end() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap();
    let start = Instant::now();
    traced(config(addr, 1.0), || {
        trace::request_span("lost", "GET", None).in_scope(|| ());
    })
    .await;
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}
