//! Outputs of tasks that the server keeps for its clients.
//!
//! An artifact that comes with a URL lies elsewhere and is none of our business. One that comes with its
//! content is written to an object store before the result is submitted ([`upload`]); the result has its name
//! and the address of the download, and [`address`] finds the object from that. Objects go when their task
//! does: the engine says so ([`keeper`]), and what was missed, or left by a crash, is found by looking
//! ([`sweep`]). Names never reach the store.

pub mod address;
pub mod content;
pub mod keeper;
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

/// The content type of an artifact that has none.
pub const DEFAULT_TYPE: &str = "application/octet-stream";
/// Uploads of one request that go on at the same time.
pub const UPLOADS_AT_ONCE: usize = 5;
/// How long one result may take to upload. Far below the age from which the sweep takes an object for left over.
const UPLOAD_MAX: Duration = Duration::from_secs(15 * 60);

/// What the server keeps for tasks.
#[derive(Debug)]
pub struct Artifacts {
    store: Store,
    metrics: Arc<Metrics>,
    /// What addresses begin with.
    public: String,
    /// Most bytes of one artifact.
    bytes_max: u64,
}

/// The store did not do what it was asked for; why is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreFailed;

/// An artifact on its way to a client.
pub struct Download {
    /// Its length in bytes.
    pub length: u64,
    /// Its content type.
    pub content_type: String,
    /// Its bytes.
    pub body: BoxStream<'static, object_store::Result<bytes::Bytes>>,
}

impl Artifacts {
    /// As configured. `public` is what addresses begin with. Says what is wrong with the configuration.
    pub fn open(
        config: &Config,
        public: String,
        metrics: Arc<Metrics>,
    ) -> Result<Artifacts, String> {
        let bytes_max = config.artifacts.max_bytes as u64;
        Ok(Artifacts { store: Store::open(config)?, metrics, public, bytes_max })
    }

    /// The artifact of that name, if it lies here. None if it does not, or no longer.
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

    /// Removes objects; what is gone already is fine.
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

/// Logs what the store said: it may name places and accounts, so it is for the operator only.
fn failed(what: &'static str, id: TaskId, error: &object_store::Error) -> StoreFailed {
    tracing::error!(target: "codeq::artifacts", task = %id, %error, "{what}");
    StoreFailed
}
