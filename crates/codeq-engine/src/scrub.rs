//! Slowly verifies the stores while the engine runs. Damage in rows that nothing reads is then found while there is
//! still a good backup, not when the rows are needed.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use codeq_store::ScrubPlace;
use parking_lot::RwLock;

use crate::error::EngineError;
use crate::options::{Options, SCRUB_BYTES_PER_SECOND};
use crate::shard::ShardData;
use crate::status::Status;

/// Bytes per step, which takes two or three milliseconds of a core.
const STEP_BYTES: u64 = 256 << 10;

/// The thread that verifies the stores.
pub(crate) struct Scrub {
    /// Dropping it stops the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Scrub {
    /// Starts the thread. The first pass starts at once, or after the usual interval if the stores were just
    /// `verified`. `damaged` stops the engine, as any other read of a damaged row does.
    pub(crate) fn start(
        shards: Vec<Arc<RwLock<ShardData>>>,
        status: Arc<Status>,
        options: &Options,
        verified: bool,
        damaged: impl FnOnce(&EngineError) + Send + 'static,
    ) -> std::io::Result<Scrub> {
        let (stop, stopped) = mpsc::channel();
        let (every, observer) = (options.scrub_every, options.observer.clone());
        let thread = Builder::new().name("codeq-scrub".into()).spawn(move || {
            let mut wait = if verified { every } else { Duration::ZERO };
            while pause(&stopped, wait) {
                match pass(&shards, &status, &stopped) {
                    Ok(Some((bytes, took))) => {
                        if let Some(observer) = &observer.0 {
                            observer.scrubbed(bytes, took);
                        }
                    }
                    Ok(None) => return,
                    Err(error) => return damaged(&error),
                }
                wait = every;
            }
        })?;
        Ok(Scrub { stop, thread })
    }

    /// Stops the thread.
    pub(crate) fn stop(self) {
        drop(self.stop);
        // If it panicked, still stop the other threads.
        let _ = self.thread.join();
    }
}

/// Waits; false if the engine stops.
fn pause(stopped: &Receiver<()>, wait: Duration) -> bool {
    matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout))
}

/// Verifies every row once. Returns the bytes and the duration, or `None` if the engine stops.
fn pass(
    shards: &[Arc<RwLock<ShardData>>],
    status: &Status,
    stopped: &Receiver<()>,
) -> Result<Option<(u64, Duration)>, EngineError> {
    let start = Instant::now();
    let mut bytes = 0;
    for data in shards {
        let mut next = Some(ScrubPlace::default());
        while let Some(place) = next {
            let job = data.read().store.scrub(place);
            let seen = job.run(STEP_BYTES);
            let seen = seen.map_err(|error| EngineError::Failed(error.to_string().into()))?;
            status.scrubbed.fetch_add(seen.bytes, std::sync::atomic::Ordering::Relaxed);
            bytes += seen.bytes;
            next = seen.next;
            let due = Duration::from_millis(bytes.saturating_mul(1_000) / SCRUB_BYTES_PER_SECOND);
            if !pause(stopped, due.saturating_sub(start.elapsed())) || status.has_failed() {
                return Ok(None);
            }
        }
    }
    Ok(Some((bytes, start.elapsed())))
}
