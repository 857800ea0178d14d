//! Work off the commit path: preparing log segments, writing checkpoints and maintaining stores, freeing memory,
//! recording the time.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use codeq_log::{LogError, PrepareJob, Prepared};
use codeq_store::{FinishedJob, StoreJob};

use crate::clock_file::NOTE_EVERY;
use crate::observer::SharedObserver;
use crate::request::{Inbox, Notice};

/// Sends work to the background threads. They end when every handle is dropped.
#[derive(Clone)]
pub struct Background {
    prepare: mpsc::Sender<PrepareJob>,
    store: mpsc::Sender<StoreWork>,
}

enum StoreWork {
    Run(Box<StoreJob>, Arc<Inbox>),
    Free(Box<FinishedJob>),
}

impl Background {
    /// Starts the threads; `prepared` receives each requested segment. Segments have their own thread, so that a long
    /// checkpoint cannot keep the log waiting.
    pub fn start(
        prepared: impl Fn(Result<Prepared, LogError>) + Send + 'static,
        observer: SharedObserver,
        note_time: impl Fn() + Send + 'static,
    ) -> std::io::Result<(Background, [JoinHandle<()>; 2])> {
        let (prepare, prepare_jobs) = mpsc::channel::<PrepareJob>();
        let (store, store_jobs) = mpsc::channel::<StoreWork>();
        let segments = Builder::new().name("codeq-segments".into()).spawn(move || {
            for job in prepare_jobs {
                prepared(job.run());
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
                    StoreWork::Run(job, inbox) => {
                        let start = Instant::now();
                        let finished = job.run();
                        if let Some(observer) =
                            observer.0.as_ref().filter(|_| finished.is_checkpoint())
                        {
                            observer.checkpointed(start.elapsed(), finished.succeeded());
                        }
                        inbox.notify(Notice::JobFinished(Box::new(finished)));
                    }
                    StoreWork::Free(finished) => drop(finished),
                }
            }
        })?;
        Ok((Background { prepare, store }, [segments, checkpoints]))
    }

    /// A handle without threads: whatever is sent to it is dropped.
    #[cfg(all(test, feature = "shuttle"))]
    pub fn idle() -> Background {
        Background { prepare: mpsc::channel().0, store: mpsc::channel().0 }
    }

    /// Prepares a log segment.
    pub fn prepare(&self, job: PrepareJob) {
        // The thread ends only with the engine.
        let _ = self.prepare.send(job);
    }

    /// Writes a checkpoint, or does a step of maintenance, and notifies the shard.
    pub fn run(&self, job: StoreJob, inbox: Arc<Inbox>) {
        let _ = self.store.send(StoreWork::Run(Box::new(job), inbox));
    }

    /// Frees the memory of a finished job.
    pub fn free(&self, finished: Box<FinishedJob>) {
        let _ = self.store.send(StoreWork::Free(finished));
    }
}
