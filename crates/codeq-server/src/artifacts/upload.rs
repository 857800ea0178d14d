//! Uploads a result's content: validates all of it, then writes all of it or leaves nothing behind.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use codeq_core::command::Artifact;
use codeq_core::id::TaskId;
use codeq_core::limits::ARTIFACTS_MAX;
use futures_util::future::join_all;
use object_store::path::Path;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::address::{Stored, is_content_type};
use super::content::Content;
use super::store::generic;
use super::{Artifacts, DEFAULT_TYPE, StoreFailed, UPLOAD_MAX, failed};
use crate::hex::hex;

/// Longest name of a stored artifact, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Part size of multipart writes. Clouds require at least 5 MiB, and some require equal parts, so
/// this is a multiple of what [`Content`] yields at a time.
const PART_BYTES: usize = 160 * (36 << 10);

/// An artifact as a worker sends it.
#[derive(Debug, Clone)]
pub struct NewArtifact {
    /// Name, unique within the result.
    pub name: Arc<str>,
    /// URL or content.
    pub source: Source,
}

/// Where an artifact's bytes are.
#[derive(Debug, Clone)]
pub enum Source {
    /// Stored elsewhere, under this URL.
    Url(Arc<str>),
    /// Sent along, to be stored by this server.
    Content {
        /// Base64 content.
        content: Content,
        /// Media type, if the worker sent one.
        content_type: Option<Box<str>>,
    },
}

/// Validated artifacts with the location of each.
#[derive(Debug)]
pub struct Prepared {
    /// Artifacts for the result, in the order sent.
    pub artifacts: Vec<Artifact>,
    id: TaskId,
    uploads: Vec<Upload>,
}

#[derive(Debug)]
struct Upload {
    key: Path,
    content: Content,
    length: u64,
}

/// Checks the names and types of a result's artifacts. The error says what is wrong.
pub fn check(artifacts: &[NewArtifact]) -> Result<(), String> {
    if artifacts.len() > ARTIFACTS_MAX {
        return Err(format!(
            "{} artifacts, but at most {ARTIFACTS_MAX} are allowed",
            artifacts.len()
        ));
    }
    let mut names = HashSet::new();
    for (index, NewArtifact { name, source }) in artifacts.iter().enumerate() {
        if !names.insert(name) {
            return Err(format!("artifact {index}: another artifact has the same name"));
        }
        let Source::Content { content_type, .. } = source else { continue };
        if !is_name(name) {
            let rule =
                "1 to 255 bytes without control characters, '/' and '\\', and not '.' or '..'";
            return Err(format!("artifact {index}: the name must be {rule}"));
        }
        if content_type.as_deref().is_some_and(|text| !is_content_type(text)) {
            return Err(format!("artifact {index}: the content type is not like text/plain"));
        }
    }
    Ok(())
}

/// Whether a name works as a path segment and as a file name on any client.
fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.chars().any(|letter| letter.is_control() || matches!(letter, '/' | '\\'))
        && !matches!(name, "." | "..")
}

/// Whether a stored artifact equals the one sent: same URL, or same bytes and type.
pub fn is_same(id: TaskId, stored: &Artifact, sent: &Artifact) -> bool {
    let both = || Some((Stored::parse(id, &stored.url)?, Stored::parse(id, &sent.url)?));
    let content = |it: Stored| (it.index, it.content_type, it.digest);
    stored.name == sent.name
        && (stored.url == sent.url || both().is_some_and(|(a, b)| content(a) == content(b)))
}

impl Artifacts {
    /// Validates all content and assigns its locations. Writes nothing. The error says what is wrong.
    pub async fn prepare(
        self: &Arc<Artifacts>,
        id: TaskId,
        artifacts: Vec<NewArtifact>,
    ) -> Result<Prepared, String> {
        let this = Arc::clone(self);
        // Decoding megabytes of base64 would block an async thread.
        let validating = tokio::task::spawn_blocking(move || this.validate_all(id, artifacts));
        validating.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn validate_all(&self, id: TaskId, sent: Vec<NewArtifact>) -> Result<Prepared, String> {
        let upload = rand::random();
        let mut prepared = Prepared { artifacts: Vec::new(), id, uploads: Vec::new() };
        for (index, NewArtifact { name, source }) in sent.into_iter().enumerate() {
            let url = match source {
                Source::Url(url) => url,
                Source::Content { content, content_type } => {
                    let looked = self.measure(&content);
                    let (length, digest) =
                        looked.map_err(|why| format!("artifact {index}: {why}"))?;
                    let content_type = content_type.as_deref().unwrap_or(DEFAULT_TYPE).to_owned();
                    let stored = Stored { upload, index, content_type, digest };
                    prepared.uploads.push(Upload { key: stored.key(id), content, length });
                    stored.url(&self.public, id, &name).into()
                }
            };
            prepared.artifacts.push(Artifact { name, url });
        }
        Ok(prepared)
    }

    /// Decodes content for its length and digest.
    fn measure(&self, content: &Content) -> Result<(u64, String), String> {
        let (mut reader, mut piece) = (content.reader(), Vec::new());
        let (mut length, mut digest) = (0, Sha256::new());
        while reader.read(&mut piece).map_err(|_| "contentBase64 is not base64".to_owned())? {
            length += piece.len() as u64;
            if length > self.bytes_max {
                return Err(format!("larger than {} bytes", self.bytes_max));
            }
            digest.update(&piece);
            piece.clear();
        }
        Ok((length, hex(&digest.finalize())))
    }

    /// Writes all content, with as many concurrent writes as there are permits. If one fails, removes all.
    pub async fn upload(
        &self,
        prepared: &Prepared,
        at_once: &Semaphore,
    ) -> Result<(), StoreFailed> {
        let (stop, deadline) = (AtomicBool::new(false), Instant::now() + UPLOAD_MAX);
        let writing = prepared.uploads.iter().map(|upload| async {
            // The semaphore is never closed.
            let _permit = at_once.acquire().await;
            let mut parts = Parts::of(upload);
            let next = || {
                if stop.load(Ordering::Relaxed) || Instant::now() > deadline {
                    return Err(generic("another artifact failed, or all took too long"));
                }
                parts.next()
            };
            if let Err(error) = self.store.put(&upload.key, PART_BYTES, next).await {
                stop.store(true, Ordering::Relaxed);
                self.metrics.artifact("failed");
                return Err(failed("cannot store an artifact", prepared.id, &error));
            }
            Ok(())
        });
        // Wait for all of them: a write still running could not be cleaned up.
        let done: Result<Vec<()>, StoreFailed> = join_all(writing).await.into_iter().collect();
        if done.is_err() {
            self.discard(prepared).await;
            return Err(StoreFailed);
        }
        for upload in &prepared.uploads {
            self.metrics.artifact_stored(upload.length);
        }
        Ok(())
    }

    /// Removes the uploaded objects. The sweep finds any that cannot be removed now.
    pub async fn discard(&self, prepared: &Prepared) {
        let keys = prepared.uploads.iter().map(|upload| upload.key.clone()).collect();
        // `remove` logs failures.
        let _ = self.remove(prepared.id, keys).await;
    }
}

/// Content split into parts.
struct Parts {
    reader: super::content::Reader,
    left: u64,
}

impl Parts {
    fn of(upload: &Upload) -> Parts {
        Parts { reader: upload.content.reader(), left: upload.length }
    }

    fn next(&mut self) -> object_store::Result<Bytes> {
        let mut part = Vec::with_capacity(self.left.min(PART_BYTES as u64) as usize);
        while part.len() < PART_BYTES {
            // `prepare` already validated the content.
            if !self.reader.read(&mut part).map_err(|_| generic("not base64"))? {
                break;
            }
        }
        self.left = self.left.saturating_sub(part.len() as u64);
        Ok(part.into())
    }
}
