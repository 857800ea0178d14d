//! The client dials only addresses that were checked.

use std::net::SocketAddr;
use std::sync::Arc;

use codeq_webhooks::client::{Client, Options, SendError};
use hyper::StatusCode;
use tokio::io::AsyncWriteExt;

use crate::support::{Names, PATIENCE, Receiver, client, policy, post, read_request};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
/// Ends the connection, so that the next post needs a new one.
const OK_AND_CLOSE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Hosts that lead to this machine in one way or another.
fn hosts_of_this_machine() -> Vec<String> {
    let mut hosts: Vec<String> = [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f.1",
        "0x7f000001",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "0x0",
        "127.0.0.1.",
        "%31%32%37.0.0.1",
        "１２７.０.０.１",
        "127。0。0。1",
        "127｡1",
        "①②⑦.1",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::0.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::ffff:0.0.0.0]",
        "[::7f00:1]",
        "[::127.0.0.1]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "inside.example",
        "inside6.example",
        "mapped.example",
        "any.example",
    ]
    .map(str::to_owned)
    .into();
    hosts.extend((0..=255).step_by(5).map(|last| format!("127.0.{last}.1")));
    hosts
}

fn names_of_this_machine() -> Arc<Names> {
    let names = Names::none();
    for (name, ip) in [
        ("localhost", "127.0.0.1"),
        ("localhost.", "::1"),
        ("a.localhost", "127.0.0.1"),
        ("inside.example", "127.0.0.1"),
        ("inside6.example", "::1"),
        ("mapped.example", "::ffff:127.0.0.1"),
        ("any.example", "0.0.0.0"),
    ] {
        names.set(name, ip.parse().unwrap());
    }
    names
}

#[tokio::test]
async fn no_spelling_of_this_machine_gets_a_connection() {
    let mut receivers = vec![Receiver::answering("127.0.0.1", OK).await];
    receivers.extend(Receiver::try_start("::1", |_| async {}).await);
    let names = names_of_this_machine();
    let client = client(&[], &names, PATIENCE);
    let mut posts = 0;
    for receiver in &receivers {
        for host in hosts_of_this_machine() {
            for scheme in ["http", "https"] {
                let url = format!("{scheme}://{host}:{}/", receiver.addr.port());
                assert_eq!(post(&client, &url).await, Err(SendError::NotAllowed), "{url}");
                posts += 1;
            }
        }
    }
    assert!(posts >= 150, "{posts}");
    for receiver in &mut receivers {
        assert_eq!(receiver.came().await, 0, "{}", receiver.addr);
    }
    // The same receiver is reached once its network is opened: it was there all the time.
    let open = self::client(&["127.0.0.1/32"], &names, PATIENCE);
    let url = format!("http://mapped.example:{}/", receivers[0].addr.port());
    assert_eq!(post(&open, &url).await.unwrap().status, StatusCode::OK);
    assert_eq!(receivers[0].came().await, 1);
}

#[tokio::test]
async fn answers_that_change_are_judged_each_time() {
    let mut outside = Receiver::answering("127.0.0.2", OK_AND_CLOSE).await;
    let port = outside.addr.port();
    let mut inside = Receiver::answering("127.0.0.1", OK).await;
    let names = Names::of("hook.example", &[&["127.0.0.2"], &["127.0.0.1"]]);
    let client = client(&["127.0.0.2/32"], &names, PATIENCE);
    let url = format!("http://hook.example:{port}/");
    assert_eq!(post(&client, &url).await.unwrap().status, StatusCode::OK);
    assert_eq!(names.asked(), 1, "one lookup for one call");
    assert_eq!(outside.came().await, 1);
    for port in [port, inside.addr.port()] {
        let url = format!("http://hook.example:{port}/");
        assert_eq!(post(&client, &url).await, Err(SendError::NotAllowed));
    }
    assert_eq!(names.asked(), 3);
    assert_eq!((outside.came().await, inside.came().await), (0, 0));
}

#[tokio::test]
async fn the_first_answer_is_the_one_that_is_dialled() {
    // A second lookup, between the check and the connection, would lead to an address that is closed.
    let mut inside = Receiver::answering("127.0.0.1", OK).await;
    let names = Names::of("hook.example", &[&["127.0.0.2"], &["127.0.0.1"]]);
    let client = client(&["127.0.0.2/32"], &names, PATIENCE);
    let url = format!("http://hook.example:{}/", inside.addr.port());
    assert_eq!(post(&client, &url).await, Err(SendError::Unreachable));
    assert_eq!(names.asked(), 1);
    assert_eq!(inside.came().await, 0);
}

#[tokio::test]
async fn a_name_with_one_closed_address_is_closed() {
    let mut open = Receiver::answering("127.0.0.2", OK).await;
    for answers in [
        &["127.0.0.2", "127.0.0.1"] as &[&str],
        &["127.0.0.1", "127.0.0.2"],
        &["127.0.0.2", "1.1.1.1", "::1"],
        &["127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.2", "10.0.0.1"],
        &["127.0.0.2", "::ffff:169.254.169.254"],
    ] {
        let names = Names::of("hook.example", &[answers]);
        let client = client(&["127.0.0.2/32"], &names, PATIENCE);
        let url = format!("http://hook.example:{}/", open.addr.port());
        assert_eq!(post(&client, &url).await, Err(SendError::NotAllowed), "{answers:?}");
    }
    assert_eq!(open.came().await, 0);
}

#[tokio::test]
async fn addresses_are_tried_in_turn() {
    let mut there = Receiver::answering("127.0.0.2", OK).await;
    let names = Names::of("hook.example", &[&["127.0.0.3", "127.0.0.4", "127.0.0.2"]]);
    let client = client(&["127.0.0.0/29"], &names, PATIENCE);
    let url = format!("http://hook.example:{}/", there.addr.port());
    assert_eq!(post(&client, &url).await.unwrap().status, StatusCode::OK);
    assert_eq!((there.came().await, names.asked()), (1, 1));
}

#[tokio::test]
async fn names_without_addresses_are_unreachable() {
    let names = Names::of("empty.example", &[&[]]);
    let client = client(&[], &names, PATIENCE);
    for url in ["http://empty.example/", "https://missing.example/"] {
        assert_eq!(post(&client, url).await, Err(SendError::Unreachable), "{url}");
    }
}

#[tokio::test]
async fn the_server_does_not_call_itself() {
    let names = Names::of("me.example", &[&["93.184.215.14"]]);
    let own: SocketAddr = "93.184.215.14:8443".parse().unwrap();
    let options = || Options { own: vec![own], time: PATIENCE, ..Options::default() };
    let client = Client::new(policy(&[]), Arc::<Names>::clone(&names), options());
    for url in [
        "https://me.example:8443/",
        "http://93.184.215.14:8443/",
        "http://[::ffff:93.184.215.14]:8443/",
    ] {
        assert_eq!(post(&client, url).await, Err(SendError::NotAllowed), "{url}");
    }
    // What the operator has opened is open.
    let mut receiver = Receiver::answering("127.0.0.1", OK).await;
    let options = Options { own: vec![receiver.addr], ..options() };
    let client = Client::new(policy(&["127.0.0.1/32"]), names, options);
    assert!(post(&client, &receiver.url()).await.is_ok());
    assert_eq!(receiver.came().await, 1);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let mut inside = Receiver::answering("127.0.0.1", OK).await;
    let mut elsewhere = Receiver::answering("127.0.0.2", OK).await;
    let client = client(&["127.0.0.2/32"], &Names::none(), PATIENCE);
    for to in [inside.url(), elsewhere.url(), "file:///etc/passwd".into(), "//127.1/".into()] {
        for status in [301, 302, 303, 307, 308] {
            let answer = format!(
                "HTTP/1.1 {status} Elsewhere\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"
            );
            let receiver = Receiver::start("127.0.0.2", move |mut stream| {
                let answer = answer.clone();
                async move {
                    while read_request(&mut stream).await.is_some() {
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                }
            })
            .await;
            assert_eq!(post(&client, &receiver.url()).await.unwrap().status, status);
        }
    }
    assert_eq!((inside.came().await, elsewhere.came().await), (0, 0));
}

#[tokio::test]
async fn a_kept_connection_is_not_used_once_its_name_leads_elsewhere() {
    let mut receiver = Receiver::answering("127.0.0.2", OK).await;
    let names = Names::of("hook.example", &[&["127.0.0.2"], &["127.0.0.2"], &["127.0.0.1"]]);
    let client = client(&["127.0.0.2/32"], &names, PATIENCE);
    let url = format!("http://hook.example:{}/", receiver.addr.port());
    for _ in 0..2 {
        assert_eq!(post(&client, &url).await.unwrap().status, StatusCode::OK);
    }
    assert_eq!(post(&client, &url).await, Err(SendError::NotAllowed));
    assert_eq!((receiver.came().await, names.asked()), (1, 3));
}
