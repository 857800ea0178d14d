//! A proxy between a client and a server on loopback, which can degrade the network.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The state of the network.
#[derive(Clone, Copy, Default)]
struct Conditions {
    /// Bytes are held back.
    paused: bool,
    /// Connections with a smaller number are silent for ever.
    silent_below: u64,
    /// Delay of all bytes.
    delay: Duration,
    /// Connections from before the last cut are closed.
    cuts: u64,
}

/// A proxy in front of one port.
pub struct Proxy {
    addr: SocketAddr,
    conditions: watch::Sender<Conditions>,
    /// Connections so far.
    count: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let conditions = watch::Sender::new(Conditions::default());
        let receiver = conditions.subscribe();
        let count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&count);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(connect(client, number, target, receiver.clone()));
            }
        });
        Proxy { addr, conditions, count, accepting }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Closes all connections. New ones work.
    pub fn cut(&self) {
        self.conditions.send_modify(|conditions| conditions.cuts += 1);
    }

    /// Holds back all bytes in both directions; connections stay open.
    pub fn pause(&self) {
        self.conditions.send_modify(|conditions| conditions.paused = true);
    }

    /// Releases the bytes again.
    pub fn resume(&self) {
        self.conditions.send_modify(|conditions| conditions.paused = false);
    }

    /// Lets new connections work; existing ones stay silent for ever.
    pub fn resume_new(&self) {
        let count = self.count.load(Ordering::SeqCst);
        self.conditions.send_modify(|conditions| {
            conditions.paused = false;
            conditions.silent_below = count;
        });
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Delays each chunk by this much.
    pub fn delay(&self, delay: Duration) {
        self.conditions.send_modify(|conditions| conditions.delay = delay);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn connect(
    client: TcpStream,
    number: u64,
    target: SocketAddr,
    mut conditions: watch::Receiver<Conditions>,
) {
    let cuts = conditions.borrow().cuts;
    let Ok(server) = TcpStream::connect(target).await else { return };
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    tokio::select! {
        () = pass(client_in, server_out, number, conditions.clone()) => {}
        () = pass(server_in, client_out, number, conditions.clone()) => {}
        _ = conditions.wait_for(|conditions| conditions.cuts > cuts) => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    mut conditions: watch::Receiver<Conditions>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let open = |now: &Conditions| !now.paused && number >= now.silent_below;
        let Ok(now) = conditions.wait_for(open).await.map(|now| *now) else { return };
        tokio::time::sleep(now.delay).await;
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
