//! A server in its own process, for limits of a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use codeq_net::{NetLimits, NetStats, serve};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::{Events, PATIENCE, app, limits};

const HELLO: &[u8] = b"GET /hello HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

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
        serve(listener, app, None, limits, stats, stopped, std::time::Duration::ZERO).await;
    });
}

struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
    addr: SocketAddr,
}

impl Process {
    fn start(descriptors: usize) -> Self {
        let exe = std::env::current_exe().unwrap();
        let script = format!(
            "ulimit -n {descriptors} && exec \"$0\" --ignored --exact process::server --nocapture"
        );
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .arg(exe)
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
fn a_server_out_of_descriptors_goes_on_when_some_are_free_again() {
    let mut server = Process::start(40);
    let crowd: Vec<_> = (0..60).map(|_| server.connect()).collect();
    line_with(&mut server.lines, "cannot accept connections");
    drop(crowd);
    let mut client = server.connect();
    client.write_all(HELLO).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}
