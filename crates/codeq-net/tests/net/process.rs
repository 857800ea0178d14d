//! A server in a process of its own: for limits and sizes that belong to a process.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use codeq_net::{NetLimits, NetStats, TlsFiles, serve};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::{Client, Events, PATIENCE, app, limits};
use crate::tls;

/// Where the server finds its certificate, if it has one.
const CERTIFICATE: &str = "CODEQ_TEST_CERTIFICATE";
const HELLO: &[u8] = b"GET /hello HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
const WAIT: &[u8] = b"GET /wait HTTP/1.1\r\nHost: t\r\n\r\n";

/// Not a test: the server that the tests below start. It stops when its input ends.
#[test]
#[ignore = "started by other tests"]
fn server() {
    tracing_subscriber::fmt().with_ansi(false).init();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("\nlistens on {}", listener.local_addr().unwrap());
        let (stop, stopped) = watch::channel(false);
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.send_replace(true);
        });
        let limits = NetLimits { max_connections: 100_000, ..limits() };
        let app = app(Arc::new(Events::default()));
        let stats = Arc::new(NetStats::default());
        let tls = std::env::var_os(CERTIFICATE).map(|dir| {
            let dir = PathBuf::from(dir);
            TlsFiles::load(&dir.join("cert.pem"), &dir.join("key.pem")).unwrap()
        });
        serve(listener, app, tls, limits, stats, stopped, std::time::Duration::ZERO).await;
    });
}

struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
    addr: SocketAddr,
}

impl Process {
    fn start(descriptors: usize, certificate: Option<&Path>) -> Self {
        let exe = std::env::current_exe().unwrap();
        let script = format!(
            "ulimit -n {descriptors} && exec \"$0\" --ignored --exact process::server --nocapture"
        );
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .arg(exe)
            .envs(certificate.map(|dir| (CERTIFICATE, dir)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let line = line_with(&mut lines, "listens on ");
        let addr = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
        Self { child, lines, addr }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Resident memory in KiB.
    fn resident(&self) -> usize {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn line_with(lines: &mut impl BufRead, text: &str) -> String {
    lines.lines().map(Result::unwrap).find(|line| line.contains(text)).expect("the line")
}

#[test]
fn a_server_out_of_descriptors_goes_on_when_there_are_some() {
    let mut server = Process::start(40, None);
    let crowd: Vec<_> = (0..60).map(|_| server.connect()).collect();
    line_with(&mut server.lines, "cannot accept connections");
    drop(crowd);
    let mut client = server.connect();
    client.write_all(HELLO).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

/// `cargo test --release -p codeq-server --test net -- --ignored --nocapture process::memory`
#[test]
#[ignore = "a measurement"]
fn memory_of_requests_that_wait() {
    let count = 5_000;
    let server = Process::start(count + 100, None);
    // Threads, buffers of the first connections and so on are not what is measured.
    let _warm: Vec<_> = (0..50).map(|_| wait(&server)).collect();
    let before = server.resident();
    let crowd: Vec<_> = (0..count).map(|_| wait(&server)).collect();
    // The server has taken them all when it answers this one.
    let mut last = server.connect();
    last.write_all(HELLO).unwrap();
    last.read_to_end(&mut Vec::new()).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let each = (server.resident() - before) as f64 / crowd.len() as f64;
    println!("{each:.1} KiB for each of {count} requests that wait");
    assert!(each <= 60.0);
}

/// A connection that has been used, and now waits: both of its buffers have been touched.
fn wait(server: &Process) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(b"GET /hello HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let mut answer = [0; 1024];
    let n = stream.read(&mut answer).unwrap();
    assert!(answer[..n].starts_with(b"HTTP/1.1 200 OK"));
    stream.write_all(WAIT).unwrap();
    stream
}

/// `cargo test --release -p codeq-server --test net -- --ignored --nocapture process::memory`
#[tokio::test]
#[ignore = "a measurement"]
async fn memory_of_requests_that_wait_under_tls() {
    let count = 2_000;
    let (files, cert) = tls::Files::new();
    let server = Process::start(count + 100, Some(files.dir.path()));
    let wait = async || {
        let stream = tls::connect(server.addr, &cert, &[b"http/1.1"]).await.unwrap();
        let mut client = Client::new(stream);
        assert_eq!(client.get("/hello").await.status, 200);
        client.send(WAIT).await;
        client
    };
    let mut warm = Vec::new();
    for _ in 0..50 {
        warm.push(wait().await);
    }
    let before = server.resident();
    let mut crowd = Vec::new();
    for _ in 0..count {
        crowd.push(wait().await);
    }
    let each = (server.resident() - before) as f64 / crowd.len() as f64;
    println!("{each:.1} KiB for each of {count} requests that wait under TLS");
    assert!(each <= 60.0);
}
