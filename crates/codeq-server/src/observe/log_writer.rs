//! Log lines on their way out: written by a thread of their own, so that nobody ever waits for whoever reads them.
//!
//! A pipe that nobody reads fills up, and then a write to it blocks for ever. Lines gather in a buffer here; what does
//! not fit is lost and counted, and the count is the first thing written when there is room again.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use super::line::notice;
use crate::config::LogFormat;

/// Bytes of lines that wait: for a reader that pauses for a moment, some two thousand lines.
const WAITING_BYTES_MAX: usize = 512 << 10;
/// A buffer that has grown beyond this is not kept.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// How long the end of the process waits for the lines to be read.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Lines lost since the process started. One number for the process, like its standard error.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines lost since the process started.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Takes lines and never blocks. Clones share the buffer.
#[derive(Clone, Debug)]
pub struct LogWriter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes whoever waits for everything to be written.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Lines that did not fit since the last write.
    lost: u64,
    writing: bool,
}

impl LogWriter {
    /// Writes to standard error.
    pub fn stderr(format: LogFormat) -> io::Result<LogWriter> {
        // Not through the standard library's handle: its lock would be held for as long as a write blocks.
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
                // Whoever has closed it does not want to read on.
                let _ = to.write_all(&lines);
            }
        })?;
        Ok(writer)
    }

    /// Waits until everything is written, for a second at most.
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
    /// Waits for lines and takes them all.
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
    /// A line comes in one piece.
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

    /// Every write waits until the test takes it.
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
    fn nobody_waits_and_what_is_lost_is_counted() {
        let (read, reader) = mpsc::sync_channel(0);
        let writer = LogWriter::start(Slow(read), LogFormat::Json).unwrap();
        let line = [b'x'; 1 << 10];
        let sent = 2 * WAITING_BYTES_MAX / line.len();
        for _ in 0..sent {
            (&writer).write_all(&line).unwrap();
        }
        let start = Instant::now();
        writer.flush();
        assert!(start.elapsed() >= FLUSH_MAX, "nobody reads, and there is an end to waiting");
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
