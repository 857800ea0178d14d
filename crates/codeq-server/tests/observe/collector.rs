//! An OTLP collector: an HTTP server that keeps the spans it receives. It decodes the protobuf itself, so that the tests
//! check what goes over the wire.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;

/// A span as it was sent.
#[derive(Debug, Clone, Default)]
pub struct Sent {
    pub trace: String,
    pub id: String,
    pub parent: String,
    pub state: String,
    pub name: String,
    pub kind: u64,
    pub status: u64,
    /// Trace and span id of every link.
    pub links: Vec<(String, String)>,
    pub attributes: Vec<(String, String)>,
}

impl Sent {
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }
}

/// What a collector has received.
#[derive(Clone, Default)]
pub struct Collector {
    pub spans: Arc<Mutex<Vec<Sent>>>,
    pub resource: Arc<Mutex<Vec<(String, String)>>>,
}

impl Collector {
    /// Starts on a free port.
    pub async fn start() -> (Collector, SocketAddr) {
        let collector = Collector::default();
        let keep = collector.clone();
        let take = move |headers: HeaderMap, body: Bytes| async move {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            keep.take(&body);
        };
        let app = Router::new().route("/otlp/v1/traces", post(take));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        (collector, addr)
    }

    fn take(&self, request: &[u8]) {
        for resource_spans in children(request, 1) {
            for resource in children(resource_spans, 1) {
                *self.resource.lock().unwrap() = attributes(resource, 1);
            }
            for scope_spans in children(resource_spans, 2) {
                self.spans.lock().unwrap().extend(children(scope_spans, 2).map(span));
            }
        }
    }

    /// The one span of this name.
    pub fn span(&self, name: &str) -> Sent {
        let spans = self.spans.lock().unwrap();
        let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
        assert_eq!(found.len(), 1, "{name}: {spans:#?}");
        found[0].clone()
    }
}

fn span(bytes: &[u8]) -> Sent {
    let first = |number| children(bytes, number).next().unwrap_or_default();
    Sent {
        trace: hex(first(1)),
        id: hex(first(2)),
        state: text(first(3)),
        parent: hex(first(4)),
        name: text(first(5)),
        kind: number(bytes, 6),
        status: children(bytes, 15).next().map_or(0, |status| number(status, 3)),
        links: children(bytes, 13)
            .map(|link| {
                let id = |number| hex(children(link, number).next().unwrap_or_default());
                (id(1), id(2))
            })
            .collect(),
        attributes: attributes(bytes, 9),
    }
}

fn attributes(bytes: &[u8], field: u64) -> Vec<(String, String)> {
    let value = |value: &[u8]| match children(value, 1).next() {
        Some(string) => text(string),
        None => number(value, 3).to_string(),
    };
    children(bytes, field)
        .map(|pair| {
            let key = text(children(pair, 1).next().unwrap_or_default());
            (key, children(pair, 2).next().map(value).unwrap_or_default())
        })
        .collect()
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes)),
            1 => Value::Bytes(bytes.split_off(..8).unwrap()),
            2 => {
                let length = varint(&mut bytes) as usize;
                Value::Bytes(bytes.split_off(..length).unwrap())
            }
            5 => Value::Bytes(bytes.split_off(..4).unwrap()),
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first().unwrap();
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn children(bytes: &[u8], wanted: u64) -> impl Iterator<Item = &[u8]> {
    fields(bytes).into_iter().filter_map(move |(number, value)| match value {
        Value::Bytes(bytes) if number == wanted => Some(bytes),
        _ => None,
    })
}

fn number(bytes: &[u8], wanted: u64) -> u64 {
    let found = fields(bytes).into_iter().find_map(|(number, value)| match value {
        Value::Number(value) if number == wanted => Some(value),
        _ => None,
    });
    found.unwrap_or(0)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
