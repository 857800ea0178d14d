//! Results with artifacts, and downloads.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use reqwest::{Method, Response, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;

use super::types::{Status, TaskRecord, TaskResult};
use super::{HttpClient, RESPONSE_TIMEOUT, failed};
use crate::error::Error;

/// An artifact to submit with a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewArtifact {
    name: String,
    source: Source,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Url(String),
    Content { bytes: Bytes, content_type: Option<String> },
}

impl NewArtifact {
    /// An artifact stored elsewhere.
    pub fn url(name: impl Into<String>, url: impl Into<String>) -> NewArtifact {
        NewArtifact { name: name.into(), source: Source::Url(url.into()) }
    }

    /// An artifact for the server to store.
    pub fn content(name: impl Into<String>, bytes: impl Into<Bytes>) -> NewArtifact {
        let source = Source::Content { bytes: bytes.into(), content_type: None };
        NewArtifact { name: name.into(), source }
    }

    /// Sets the content type of downloads, such as `image/png`.
    #[must_use]
    pub fn with_type(mut self, text: impl Into<String>) -> NewArtifact {
        if let Source::Content { content_type, .. } = &mut self.source {
            *content_type = Some(text.into());
        }
        self
    }
}

/// A task's outcome with its artifacts.
#[derive(Debug, Clone)]
pub struct Submission {
    status: Status,
    result: Option<Box<RawValue>>,
    error: Option<String>,
    artifacts: Vec<NewArtifact>,
}

impl Submission {
    /// Succeeded. The result must serialise to a JSON object.
    pub fn completed(result: &impl Serialize) -> Result<Submission, Error> {
        let result = Some(serde_json::value::to_raw_value(result).map_err(Error::Encode)?);
        Ok(Submission { status: Status::Completed, result, error: None, artifacts: Vec::new() })
    }

    /// Failed for good.
    pub fn failed(error: impl Into<String>) -> Submission {
        let error = Some(error.into());
        Submission { status: Status::Failed, result: None, error, artifacts: Vec::new() }
    }

    /// Adds an artifact. Names must be unique.
    #[must_use]
    pub fn with(mut self, artifact: NewArtifact) -> Submission {
        self.artifacts.push(artifact);
        self
    }

    /// Bytes of content to upload.
    fn weight(&self) -> usize {
        let of = |artifact: &NewArtifact| match &artifact.source {
            Source::Url(_) => 0,
            Source::Content { bytes, .. } => bytes.len(),
        };
        self.artifacts.iter().map(of).sum()
    }
}

#[derive(Serialize)]
struct SubmissionBody<'a> {
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    artifacts: Vec<ArtifactBody<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactBody<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
}

impl<'a> From<&'a NewArtifact> for ArtifactBody<'a> {
    fn from(artifact: &'a NewArtifact) -> ArtifactBody<'a> {
        let (url, content, content_type) = match &artifact.source {
            Source::Url(url) => (Some(url.as_str()), None, None),
            Source::Content { bytes, content_type } => {
                (None, Some(BASE64_STANDARD.encode(bytes)), content_type.as_deref())
            }
        };
        ArtifactBody { name: &artifact.name, url, content_base64: content, content_type }
    }
}

/// An artifact that is being downloaded.
#[derive(Debug)]
pub struct Download {
    response: Response,
}

impl Download {
    /// Length in bytes, if known.
    pub fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// Content type, if known.
    pub fn content_type(&self) -> Option<&str> {
        self.response.headers().get("content-type")?.to_str().ok()
    }

    /// The next chunk; `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let next = tokio::time::timeout(RESPONSE_TIMEOUT, self.response.chunk());
        next.await.map_err(|_| Error::Timeout)?.map_err(failed)
    }

    /// Reads everything, up to `max` bytes; a longer artifact is an error.
    pub async fn bytes(mut self, max: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if all.len().saturating_add(chunk.len()) > max {
                return Err(Error::TooLarge(format!("the artifact has more than {max} bytes")));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClaimBody<'a> {
    commands: &'a [&'a str],
    lease_seconds: u64,
    wait_seconds: u64,
}

impl HttpClient {
    /// Leases one task of these commands, or of any command that the token allows if the list is empty. Waits up to
    /// `wait` for one (whole seconds, up to 30). The lease is not extended automatically. Use
    /// this for tasks whose artifacts the server is to store, and a [`Worker`](crate::Worker) for all others.
    pub async fn claim(
        &self,
        commands: &[&str],
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<TaskRecord>, Error> {
        let wait_seconds = wait.as_secs().min(30);
        let body = ClaimBody { commands, lease_seconds: lease.as_secs().max(1), wait_seconds };
        let request = self.request(Method::POST, &["tasks", "claim"])?;
        let wait = Duration::from_secs(wait_seconds);
        let (status, body) = request.body(&body).waits(wait).send().await?;
        if status == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        serde_json::from_slice(&body).map(Some).map_err(Error::Decode)
    }

    /// Finishes a task leased with [`HttpClient::claim`] under the same token, with artifacts for the server to
    /// store. Tasks of a [`Worker`](crate::Worker) belong to its stream, which cannot carry artifacts.
    pub async fn submit(&self, id: &str, submission: &Submission) -> Result<TaskResult, Error> {
        /// Bytes per second of a slow connection.
        const SLOW: u64 = 256 << 10;
        let body = SubmissionBody {
            status: submission.status,
            result: submission.result.as_deref(),
            error: submission.error.as_deref(),
            artifacts: submission.artifacts.iter().map(ArtifactBody::from).collect(),
        };
        let travel = Duration::from_secs(submission.weight() as u64 / SLOW);
        let request = self.request(Method::POST, &["tasks", id, "result"])?;
        request.body(&body).waits(travel).json().await
    }

    /// Downloads an artifact that the server stored for a task, chunk by chunk.
    pub async fn artifact(&self, id: &str, name: &str) -> Result<Download, Error> {
        let response = self.request(Method::GET, &["artifacts", id, name])?.answer(None).await?;
        Ok(Download { response })
    }
}
