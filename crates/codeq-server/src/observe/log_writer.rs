//! Writes log lines from a separate thread, so that the server never blocks on the log's reader.
//!
//! A pipe without a reader fills up, and then a write to it blocks forever. Lines wait in a buffer;
//! lines that do not fit are dropped and counted, and the log reports the count once there is room
//! again.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use super::line::notice;
use crate::config::LogFormat;

/// Maximum bytes of waiting lines: about two thousand lines, enough for a brief pause of the
/// reader.
const WAITING_BYTES_MAX: usize = 512 << 10;
/// Maximum buffer capacity to keep after a write.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// How long the process waits for its last lines to be written.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Lines lost since the process started. Global because the process has one standard error.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines lost since the process started.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Takes lines without blocking. Clones share the buffer.
#[derive(Clone, Debug)]
pub struct LogWriter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the writer thread.
    work: Condvar,
    /// Wakes callers of `flush`.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Lines dropped since the last write.
    lost: u64,
    writing: bool,
}

impl LogWriter {
    /// Starts a writer to standard error.
    pub fn stderr(format: LogFormat) -> io::Result<LogWriter> {
        // Not `std::io::Stderr`: its lock would be held for as long as a write blocks.
        let stderr = std::fs::File::from(io::stderr().as_fd().try_clone_to_owned()?);
        LogWriter::start(stderr, format)
    }

    fn start(mut to: impl Write + Send + 'static, format: LogFormat) -> io::Result<LogWriter> {
        let writer = LogWriter(Arc::default());
        let shared = Arc::clone(&writer.0);
        let thread = std::thread::Builder::new().name("codeq-logs".into());
        thread.spawn(move || {
            let mut lines = Vec::new();
            loop {
                shared.take(&mut lines, format);
                // An error means that the reader has closed the pipe. There is no other place to
                // report it.
                let _ = to.write_all(&lines);
            }
        })?;
        Ok(writer)
    }

    /// Waits up to a second until all lines are written.
    pub fn flush(&self) {
        let until = Instant::now() + FLUSH_MAX;
        let mut state = self.0.state.lock();
        while state.writing || !state.waiting.is_empty() {
            if self.0.idle.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }
}

impl Shared {
    /// Waits for lines and takes all of them.
    fn take(&self, lines: &mut Vec<u8>, format: LogFormat) {
        lines.clear();
        lines.shrink_to(KEPT_BYTES_MAX);
        let mut state = self.state.lock();
        state.writing = false;
        while state.waiting.is_empty() {
            self.idle.notify_all();
            self.work.wait(&mut state);
        }
        std::mem::swap(lines, &mut state.waiting);
        state.writing = true;
        let lost = std::mem::take(&mut state.lost);
        drop(state);
        if lost > 0 {
            lines.extend_from_slice(notice(format, lost).as_bytes());
        }
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state.lock();
        if state.waiting.len().saturating_add(line.len()) > WAITING_BYTES_MAX {
            state.lost += 1;
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.waiting.extend_from_slice(line);
        if !state.writing {
            self.work.notify_one();
        }
    }
}

impl<'w> MakeWriter<'w> for LogWriter {
    type Writer = &'w LogWriter;

    fn make_writer(&'w self) -> &'w LogWriter {
        self
    }
}

impl Write for &LogWriter {
    /// Each call passes one complete line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A writer that blocks each write until the test receives it.
    struct Slow(mpsc::SyncSender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn writes_never_block_and_lost_lines_are_counted() {
        let (read, reader) = mpsc::sync_channel(0);
        let writer = LogWriter::start(Slow(read), LogFormat::Json).unwrap();
        let line = [b'x'; 1 << 10];
        let sent = 2 * WAITING_BYTES_MAX / line.len();
        for _ in 0..sent {
            (&writer).write_all(&line).unwrap();
        }
        let start = Instant::now();
        writer.flush();
        assert!(start.elapsed() >= FLUSH_MAX, "flush gives up without a reader");
        let (mut kept, mut told) = (0, 0);
        while kept + told < sent {
            let text = String::from_utf8(reader.recv_timeout(FLUSH_MAX * 10).unwrap()).unwrap();
            kept += text.matches(&"x".repeat(line.len())).count();
            if let Some((_, notice)) = text.split_once('{') {
                let notice: serde_json::Value =
                    serde_json::from_str(&format!("{{{notice}")).unwrap();
                told += notice["lost"].as_u64().unwrap() as usize;
            }
        }
        assert_eq!(kept + told, sent);
        assert!(told >= sent / 4, "{told} of {sent}");
        assert!(lost() >= told as u64);
        writer.flush();
    }
}
