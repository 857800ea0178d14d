//! The server that is measured: one that is running already, or a child process on a fresh directory.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::super::process;

/// A server to be measured.
pub struct Target {
    /// Where it serves.
    pub addr: SocketAddr,
    /// Its process, if it is known.
    pub pid: Option<u32>,
    /// From the start of the process to the line that says it is ready.
    pub ready: Duration,
    child: Option<Child>,
    /// Kept open, so that the server can print the rest of its greeting.
    _greeting: Option<BufReader<ChildStdout>>,
}

impl Target {
    /// A server that runs already.
    pub fn running(addr: SocketAddr, pid: Option<u32>) -> Target {
        Target { addr, pid, ready: Duration::ZERO, child: None, _greeting: None }
    }

    /// Starts `codeq dev` of this binary on a directory.
    pub fn start(dir: &Path, durability: &str) -> anyhow::Result<Target> {
        let start = Instant::now();
        let exe = std::env::current_exe().context("which binary is this?")?;
        let mut child = Command::new(exe)
            // Not a line per request.
            .args(["dev", "--log-level", "warn", "--http-addr", "127.0.0.1:0"])
            .args(["--durability", durability, "--data-dir"])
            .arg(dir)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let stdout = child.stdout.take().context("the server has no output")?;
        let mut greeting = BufReader::new(stdout);
        for line in greeting.by_ref().lines() {
            let line = line?;
            let Some(url) = line.trim().strip_prefix("API") else {
                continue;
            };
            let addr = url.trim().trim_start_matches("http://").split('/').next();
            let addr = addr.unwrap_or_default().parse().context("no address in the greeting")?;
            let (pid, ready) = (Some(child.id()), start.elapsed());
            return Ok(Target { addr, pid, ready, child: Some(child), _greeting: Some(greeting) });
        }
        let _ = child.wait();
        bail!("the server ended without a greeting")
    }

    /// Memory of the server in bytes.
    pub fn rss(&self) -> Option<u64> {
        self.pid.map(process::rss_of)
    }

    /// CPU time that the server has used.
    pub fn cpu(&self) -> Option<Duration> {
        self.pid.map(process::cpu_of)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Its directory is removed too, so a clean shutdown is not needed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
