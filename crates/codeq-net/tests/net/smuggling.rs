//! Requests whose end can be read in two ways: 400, and the connection is closed.

use crate::support::{Server, limits};

const NEXT: &str = "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n";

/// What is sent after `POST /echo HTTP/1.1\r\nHost: t\r\n`.
const ROWS: [(&str, &str); 18] = [
    ("length, then encoding", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("encoding, then length", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    ("two lengths", "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"),
    ("the same length twice", "Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde"),
    ("a list of lengths", "Content-Length: 5, 5\r\n\r\nabcde"),
    ("a signed length", "Content-Length: +5\r\n\r\nabcde"),
    ("a negative length", "Content-Length: -1\r\n\r\n"),
    ("an empty length", "Content-Length:\r\n\r\n"),
    ("a length beyond 64 bits", "Content-Length: 99999999999999999999\r\n\r\n"),
    ("an encoding that is not chunked", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("chunked under another encoding", "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ("two encodings", "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n"),
    ("a space before the colon", "Content-Length : 5\r\n\r\nabcde"),
    ("a folded line", "X: a\r\n b\r\n\r\n"),
    ("a folded encoding", "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    ("a bare LF after a header", "X: a\nContent-Length: 5\r\n\r\nabcde"),
    ("a NUL in a header", "X: a\0b\r\n\r\n"),
    ("a bare CR in a header", "X: a\rb\r\n\r\n"),
];

#[tokio::test]
async fn ambiguous_requests_are_400_and_what_follows_is_not_served() {
    let server = Server::start(limits()).await;
    for (what, rest) in ROWS {
        let mut client = server.connect().await;
        client.send(format!("POST /echo HTTP/1.1\r\nHost: t\r\n{rest}{NEXT}")).await;
        assert_eq!(client.answer().await.status, 400, "{what}");
        assert!(client.closed().await.is_empty(), "{what}");
    }
}

#[tokio::test]
async fn ambiguous_requests_are_400_after_a_valid_one_too() {
    let server = Server::start(limits()).await;
    for (what, rest) in ROWS {
        let mut client = server.connect().await;
        client.send(format!("{NEXT}POST /echo HTTP/1.1\r\nHost: t\r\n{rest}{NEXT}")).await;
        assert_eq!(client.answer().await.status, 200, "{what}");
        assert_eq!(client.answer().await.status, 400, "{what}");
        assert!(client.closed().await.is_empty(), "{what}");
    }
}

#[tokio::test]
async fn a_request_line_that_ends_in_a_bare_lf_is_400() {
    let server = Server::start(limits()).await;
    for request in [
        "GET /hello HTTP/1.1\nHost: t\r\n\r\n",
        "GET /hello HTTP/1.1\n\n",
        "\nGET / HTTP/1.1\r\n\r\n",
    ] {
        let mut client = server.connect().await;
        client.send(request).await;
        assert_eq!(client.answer().await.status, 400, "{}", request.escape_debug());
        assert!(client.closed().await.is_empty());
    }
}

#[tokio::test]
async fn an_encoding_in_http_1_0_is_400() {
    let server = Server::start(limits()).await;
    let mut client = server.connect().await;
    client.send("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 400);
    client.closed().await;
}

#[tokio::test]
async fn bad_chunks_end_the_connection() {
    let server = Server::start(limits()).await;
    for chunks in ["x\r\n", "1\nab", "5\r\nabcdeXX0\r\n\r\n", "ffffffffffffffffff\r\n", "-1\r\n"] {
        let mut client = server.connect().await;
        let head = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(format!("{head}{chunks}{NEXT}")).await;
        let rest = String::from_utf8(client.closed().await).unwrap();
        assert!(!rest.contains("200 OK"), "{}: {rest}", chunks.escape_debug());
    }
}
