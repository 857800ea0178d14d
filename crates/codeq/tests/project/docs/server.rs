//! A development server for the pages, as a reader would start it.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Addresses of servers that pages start themselves.
const OTHERS: [&str; 4] = ["127.0.0.1:8090", "127.0.0.1:8091", "127.0.0.1:8092", "127.0.0.1:9099"];

/// Addresses that nobody listens on.
fn free() -> Vec<String> {
    let open = OTHERS.map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    open.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// A server, killed at the end.
pub struct Server {
    child: Child,
    /// Its addresses as the pages show them, and the actual ones.
    pub addresses: Vec<(&'static str, String)>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// `codeq dev` with free ports. Its profile is kept below `dir`.
    pub fn start(dir: &Path) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_codeq"))
            .args(["dev", "--profile", "dev", "--http-addr", "127.0.0.1:0", "--data-dir"])
            .arg(dir.join("server"))
            .env("XDG_CONFIG_HOME", dir.join("config"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut found = Vec::new();
        let mut line = String::new();
        while found.len() < 3 && out.read_line(&mut line).unwrap() > 0 {
            let said: &[&'static str] = match line.split_whitespace().next() {
                Some("API") => &["127.0.0.1:8080"],
                Some("Streams") => &["127.0.0.1:9092", "127.0.0.1:9091"],
                _ => &[],
            };
            let ports = line.split("127.0.0.1:").skip(1).map(|rest| {
                let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
                format!("127.0.0.1:{port}")
            });
            found.extend(said.iter().copied().zip(ports));
            line.clear();
        }
        assert_eq!(found.len(), 3, "codeq dev did not say where it listens");
        found.extend(OTHERS.into_iter().zip(free()));
        // Nobody reads the rest.
        std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
        Server { child, addresses: found }
    }
}
