//! Artifacts: outputs of tasks that the server stores.
//!
//! An artifact sent with a URL is stored elsewhere and needs no work here. One sent with content is
//! written to an object store before the result is submitted ([`upload`]). The result holds its
//! name and download URL, from which [`address`] derives the object. When a task is removed, the
//! engine reports it and its objects are removed too ([`removal`]); a periodic [`sweep`] finds
//! objects that were missed or left by a crash. Artifact names never reach the store.

pub mod address;
pub mod content;
pub mod removal;
pub mod store;
pub mod sweep;
pub mod upload;

use std::sync::Arc;
use std::time::Duration;

use codeq_core::id::TaskId;
use codeq_core::view::ResultRecord;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;

use crate::config::Config;
use crate::observe::Metrics;
use address::Stored;
use store::Store;

/// Content type of an artifact sent without one.
pub const DEFAULT_TYPE: &str = "application/octet-stream";
/// Concurrent uploads per request.
pub const UPLOADS_AT_ONCE: usize = 5;
/// Time limit for uploading one result. Far below the age at which the sweep considers an object orphaned.
const UPLOAD_MAX: Duration = Duration::from_secs(15 * 60);

/// Stores, serves and removes artifacts.
#[derive(Debug)]
pub struct Artifacts {
    store: Store,
    metrics: Arc<Metrics>,
    /// Base of download URLs.
    public: String,
    /// Largest artifact, in bytes.
    bytes_max: u64,
}

/// The object store failed; the log has the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreFailed;

/// An artifact being downloaded.
pub struct Download {
    /// Length in bytes.
    pub length: u64,
    /// Media type.
    pub content_type: String,
    /// Content, streamed.
    pub body: BoxStream<'static, object_store::Result<bytes::Bytes>>,
}

impl Artifacts {
    /// Opens the configured store. `public` is the base of download URLs. The error names what is
    /// wrong with the configuration.
    pub fn open(
        config: &Config,
        public: String,
        metrics: Arc<Metrics>,
    ) -> Result<Artifacts, String> {
        let bytes_max = config.artifacts.max_bytes as u64;
        Ok(Artifacts { store: Store::open(config)?, metrics, public, bytes_max })
    }

    /// Opens a download. `None` if the artifact is not stored here, or no longer exists.
    pub async fn download(
        &self,
        record: &ResultRecord,
        name: &str,
    ) -> Result<Option<Download>, StoreFailed> {
        let stored = record.artifacts.iter().find(|artifact| *artifact.name == *name);
        let Some(stored) = stored.and_then(|artifact| Stored::parse(record.id, &artifact.url))
        else {
            return Ok(None);
        };
        match self.store.get(&stored.key(record.id)).await {
            Ok(Some((length, body))) => {
                Ok(Some(Download { length, content_type: stored.content_type, body }))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(failed("cannot read an artifact", record.id, &error)),
        }
    }

    /// Removes objects; missing ones are not an error.
    async fn remove(&self, id: TaskId, keys: Vec<Path>) -> Result<(), StoreFailed> {
        let removing = self.store.delete(keys).await;
        let mut removed =
            removing.map_err(|error| failed("cannot remove artifacts", id, &error))?;
        let mut outcome = Ok(());
        while let Some(one) = removed.next().await {
            match one {
                Ok(_) => self.metrics.artifact("removed"),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => outcome = Err(failed("cannot remove an artifact", id, &error)),
            }
        }
        outcome
    }
}

/// Logs a store error. It may name locations and accounts, so clients never see it.
fn failed(what: &'static str, id: TaskId, error: &object_store::Error) -> StoreFailed {
    tracing::error!(target: "codeq::artifacts", task = %id, %error, "{what}");
    StoreFailed
}
