//! Room in the log: segments are prepared before they are needed, and a full disk is noticed before anything is proposed.

use std::sync::Arc;

use codeq_engine::EngineError;
use codeq_engine::options::FULL_DISK_RETRY;
use codeq_log::LogError;

use crate::fault::Fault;
use crate::runtime;
use crate::storage::{PrepareFailure, Storage};

impl Storage {
    /// Makes sure that entries of this many bytes fit into the log, and prepares a segment if need be. More bytes than one
    /// frame can have count as one full frame: more may never be free at once, and the log prepares further segments while
    /// it writes. Any disk error other than a shortage stops the node.
    pub async fn make_room(self: &Arc<Storage>, bytes: u64) -> Result<(), EngineError> {
        if self.has(Fault::IgnoreFullDisk) {
            return Ok(());
        }
        if let Some(error) = self.memory_is_full() {
            self.checkpoint_in_background();
            return Err(error);
        }
        self.prepare_ahead();
        let bytes = bytes.min(self.options.log().max_frame_bytes());
        while !self.log.has_room(bytes) {
            // Somebody else may prepare the segment meanwhile.
            let _one = self.preparing.lock().await;
            if !self.log.has_room(bytes) && !self.prepare().await? {
                return Err(EngineError::DiskFull);
            }
        }
        Ok(())
    }

    /// Prepares a segment in the background, if one is due.
    fn prepare_ahead(self: &Arc<Storage>) {
        if !self.log.has_job() {
            return;
        }
        let Ok(one) = Arc::clone(&self.preparing).try_lock_owned() else { return };
        let storage = Arc::clone(self);
        runtime::spawn(async move {
            let _one = one;
            // Whoever needs the segment learns what was wrong.
            let _ = storage.prepare().await;
        });
    }

    /// Runs the log's next job; false if there is none. After a shortage the job is not repeated for a while. The caller
    /// holds `preparing`.
    async fn prepare(&self) -> Result<bool, EngineError> {
        if let Some(failure) = self.prepare_failure.lock().as_ref()
            && runtime::now() < failure.retry_at
        {
            return Err(failure.error.clone());
        }
        let log = self.log.clone();
        let run = move || -> Result<bool, LogError> {
            let Some(job) = log.next_job() else { return Ok(false) };
            log.provide(job.run()?);
            Ok(true)
        };
        let error = match runtime::unblock(run).await.map_err(|_| EngineError::Closed)? {
            Ok(done) => {
                *self.prepare_failure.lock() = None;
                self.report_shortage(None);
                return Ok(done);
            }
            Err(error) => error,
        };
        let Some(shortage) = error.shortage() else {
            self.fail(&error);
            return Err(self.status.error());
        };
        self.report_shortage(Some(&error.to_string()));
        let error = EngineError::from(shortage);
        let retry_at = runtime::now() + FULL_DISK_RETRY;
        *self.prepare_failure.lock() = Some(PrepareFailure { error: error.clone(), retry_at });
        Err(error)
    }

    /// Reports that the log or a checkpoint lacks something, or that neither does any more.
    pub fn report_shortage(&self, why: Option<&str>) {
        if why.is_some()
            || (self.prepare_failure.lock().is_none() && self.checkpoint_shortage.lock().is_none())
        {
            self.status.set_short(why);
        }
    }
}
