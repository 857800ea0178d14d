//! Receivers, and a resolver for their names.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use codeq_webhooks::client::{Answered, Client, Options, SendError};
use codeq_webhooks::dns::Resolve;
use codeq_webhooks::policy::AddressPolicy;
use futures_util::future::BoxFuture;
use hyper::HeaderMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The time limit of clients that are expected to run into it.
pub const SHORT: Duration = Duration::from_secs(1);

/// A policy with these networks open.
pub fn policy(open: &[&str]) -> Arc<AddressPolicy> {
    let networks: Vec<_> = open.iter().map(|net| net.parse().unwrap()).collect();
    Arc::new(AddressPolicy::new(&networks))
}

/// Allows everything, to read URLs that a stricter client then dials.
pub fn everything() -> Arc<AddressPolicy> {
    policy(&["0.0.0.0/0", "::/0"])
}

/// A client with these networks open.
pub fn client(open: &[&str], names: &Arc<Names>, time: Duration) -> Client {
    let options = Options { time, ..Options::default() };
    Client::new(policy(open), Arc::<Names>::clone(names), options)
}

/// Posts to a URL, whether or not the client's policy would accept it.
pub async fn post(client: &Client, to: &str) -> Result<Answered, SendError> {
    // Odd spellings are refused before anything is posted.
    let Ok(to) = everything().read(to) else { return Err(SendError::NotAllowed) };
    let body = Bytes::from_static(b"{}");
    timeout(PATIENCE, client.post(&"t".into(), &to, HeaderMap::new(), body))
        .await
        .expect("an end of the post")
}

/// Answers of DNS, in the order in which they are given; the last one stays.
#[derive(Default)]
pub struct Names {
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    asked: AtomicUsize,
}

impl Names {
    pub fn none() -> Arc<Names> {
        Arc::default()
    }

    /// One name, and what is answered each time.
    pub fn of(name: &str, answers: &[&[&str]]) -> Arc<Names> {
        let names = Names::none();
        let ips = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().unwrap()).collect();
        let answers = answers.iter().map(ips).collect();
        names.answers.lock().unwrap().insert(name.to_owned(), answers);
        names
    }

    pub fn set(&self, name: &str, answer: IpAddr) {
        self.answers.lock().unwrap().insert(name.to_owned(), [vec![answer]].into());
    }

    /// How often somebody asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Resolve for Names {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut answers = self.answers.lock().unwrap();
        let answer = answers.get_mut(host).and_then(|answers| {
            if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
        });
        Box::pin(async move { answer.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }
}

/// A listener that counts who comes.
pub struct Receiver {
    pub addr: SocketAddr,
    peers: mpsc::UnboundedReceiver<SocketAddr>,
}

impl Receiver {
    /// On any port of this address; none if the machine does not have it.
    pub async fn try_start<F, S>(ip: &str, serve: F) -> Option<Receiver>
    where
        F: Fn(TcpStream) -> S + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let ip: IpAddr = ip.parse().unwrap();
        let listener = TcpListener::bind((ip, 0)).await.ok()?;
        let addr = listener.local_addr().unwrap();
        let (came, peers) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                if came.send(peer).is_err() {
                    return;
                }
                tokio::spawn(serve(stream));
            }
        });
        Some(Receiver { addr, peers })
    }

    pub async fn start<F, S>(ip: &str, serve: F) -> Receiver
    where
        F: Fn(TcpStream) -> S + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        Receiver::try_start(ip, serve).await.unwrap()
    }

    /// Says this to every request.
    pub async fn answering(ip: &str, answer: &'static str) -> Receiver {
        Receiver::start(ip, move |mut stream| async move {
            while read_request(&mut stream).await.is_some() {
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.addr)
    }

    /// How many connections came since the last call. They are accepted in order, so once a connection made here is
    /// accepted, all earlier ones have been counted.
    pub async fn came(&mut self) -> usize {
        let last = TcpStream::connect(self.addr).await.unwrap();
        let me = last.local_addr().unwrap();
        let mut count = 0;
        while timeout(PATIENCE, self.peers.recv()).await.unwrap().unwrap() != me {
            count += 1;
        }
        count
    }
}

/// The head and the body of a request; none at the end.
pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.ok()?;
        text.push(byte[0]);
    }
    let head = String::from_utf8(text).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8(body).unwrap())
}

/// Returns when the other side has gone.
pub async fn gone(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await.is_ok_and(|n| n > 0) {}
}
