//! Work beside the commit path: preparing log segments, writing checkpoints, freeing memory, noting the time.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use codeq_log::PrepareJob;
use codeq_store::{FlushJob, Flushed};

use crate::clock_file::NOTE_EVERY;
use crate::inbox::{Inbox, Notice};
use crate::observer::SharedObserver;
use crate::pipeline::Pipeline;

/// Hands work to the background threads. They end when every handle is gone.
#[derive(Clone)]
pub struct Background {
    prepare: mpsc::Sender<PrepareJob>,
    store: mpsc::Sender<StoreWork>,
}

enum StoreWork {
    Flush(Box<FlushJob>, Arc<Inbox>),
    Free(Box<Flushed>),
}

impl Background {
    /// Starts the threads; `pipeline` is told of prepared segments once it exists. Segments have their own
    /// thread, so that a long checkpoint cannot keep the log waiting.
    pub fn start(
        pipeline: Arc<OnceLock<Weak<Pipeline>>>,
        observer: SharedObserver,
        note_time: impl Fn() + Send + 'static,
    ) -> std::io::Result<(Background, [JoinHandle<()>; 2])> {
        let (prepare, prepare_jobs) = mpsc::channel::<PrepareJob>();
        let (store, store_jobs) = mpsc::channel::<StoreWork>();
        let segments = Builder::new().name("codeq-segments".into()).spawn(move || {
            for job in prepare_jobs {
                let prepared = job.run();
                if let Some(pipeline) = pipeline.get().and_then(Weak::upgrade) {
                    pipeline.prepared(prepared);
                }
            }
        })?;
        let checkpoints = Builder::new().name("codeq-checkpoint".into()).spawn(move || {
            let mut noted = Instant::now();
            loop {
                if noted.elapsed() >= NOTE_EVERY {
                    noted = Instant::now();
                    note_time();
                }
                let wait = NOTE_EVERY.saturating_sub(noted.elapsed());
                let work = match store_jobs.recv_timeout(wait) {
                    Ok(work) => work,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                match work {
                    StoreWork::Flush(job, inbox) => {
                        let start = Instant::now();
                        let flushed = job.run();
                        if let Some(observer) = &observer.0 {
                            observer.checkpointed(start.elapsed(), flushed.is_done());
                        }
                        inbox.notify(Notice::Flushed(Box::new(flushed)));
                    }
                    StoreWork::Free(flushed) => drop(flushed),
                }
            }
        })?;
        Ok((Background { prepare, store }, [segments, checkpoints]))
    }

    /// Prepares a log segment.
    pub fn prepare(&self, job: PrepareJob) {
        // The thread is gone only when the engine is.
        let _ = self.prepare.send(job);
    }

    /// Writes a checkpoint and tells the shard.
    pub fn flush(&self, job: FlushJob, inbox: Arc<Inbox>) {
        let _ = self.store.send(StoreWork::Flush(Box::new(job), inbox));
    }

    /// Frees what a checkpoint left behind.
    pub fn free(&self, flushed: Box<Flushed>) {
        let _ = self.store.send(StoreWork::Free(flushed));
    }
}
