//! A server that is killed. It runs as a separate process of this test program.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use codeq_client::Options;
use codeq_client::testing::TOKEN;
use codeq_server::Server;
use codeq_server::config::{BackoffPolicy, Config};

use crate::ledger::{Ledger, TASKS};

const DIR: &str = "CODEQ_TEST_SERVER_DIR";
const PORTS: &str = "CODEQ_TEST_SERVER_PORTS";
/// Precedes the ports in the process's output.
const MARK: &str = "ports ";

/// A server in another process.
struct Process {
    child: Child,
    /// Ports of HTTP, producers and workers.
    ports: Vec<u16>,
}

impl Process {
    fn start(dir: &Path, ports: &[u16]) -> Process {
        let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::server_process", "--ignored", "--nocapture"])
            .env(DIR, dir)
            .env(PORTS, ports.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines
            .find_map(|line| line.unwrap().split_once(MARK).map(|(_, ports)| ports.to_owned()))
            .expect("the server does not start");
        let ports = line.split_whitespace().map(|port| port.parse().unwrap()).collect();
        Process { child, ports }
    }

    fn kill(mut self) -> Vec<u16> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.ports
    }
}

/// Not a test: this is what [`Process`] runs. Ends with the process that started it.
#[test]
#[ignore = "run by other tests in a process of its own"]
fn server_process() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let ports: Vec<u16> =
        std::env::var(PORTS).unwrap().split(' ').map(|port| port.parse().unwrap()).collect();
    let addr = |index: usize| SocketAddr::from(([127, 0, 0, 1], ports[index]));
    let mut config = Config::dev(dir.into(), addr(0)).unwrap();
    config.producer_addr = Some(addr(1));
    config.worker_addr = Some(addr(2));
    config.backoff_policy = BackoffPolicy::Fixed;
    config.backoff_base_seconds = 1;
    config.backoff_max_seconds = 1;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(config)).unwrap();
    let port = |addr: SocketAddr| addr.port();
    println!(
        "{MARK}{} {} {}",
        port(server.http_addr()),
        port(server.producer_addr()),
        port(server.worker_addr())
    );
    // Until the parent process is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = Process::start(dir.path(), &[0, 0, 0]);
    let url = |index: usize| format!("http://127.0.0.1:{}", process.ports[index]);
    let options = Options::new(TOKEN).http_url(url(0)).producer_url(url(1)).worker_url(url(2));
    let ledger = Ledger::start(options).await;
    for step in 1..4 {
        ledger.reaches(step * TASKS / 10).await;
        let ports = process.kill();
        process = Process::start(dir.path(), &ports);
    }
    ledger.check().await;
    process.kill();
}
