//! The object store: a local directory or a cloud bucket.
//!
//! A cloud's credentials, region and endpoint come from the environment variables its own tools use.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    GetResultPayload, MultipartUpload as _, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload,
    Result,
};
use parking_lot::Mutex;
use url::Url;

use crate::config::{Config, Durability};

/// Chunk size for reading files.
const READ_BYTES: usize = 256 << 10;
const UNKNOWN_SCHEME: &str = "unknown scheme: use file, s3, gs or az";

/// An object store for artifacts and backups.
#[derive(Debug)]
pub struct Store {
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    Cloud(Arc<dyn ObjectStore>),
    Local(Local),
}

/// A local directory, created on first write.
#[derive(Debug)]
struct Local {
    dir: PathBuf,
    fsync: bool,
    opened: Mutex<Option<Arc<dyn ObjectStore>>>,
}

impl Store {
    /// Opens the configured store without I/O. The error describes a bad address.
    pub fn open(config: &Config) -> std::result::Result<Store, String> {
        let fsync = config.durability == Durability::Fsync;
        match &config.artifacts.url {
            Some(url) => Store::at(url, fsync),
            None => Ok(Store::local(config.data_dir.join("artifacts"), fsync)),
        }
    }

    /// Opens the store at an address without I/O. The error describes a bad address.
    pub fn at(url: &str, fsync: bool) -> std::result::Result<Store, String> {
        let url = Url::parse(url).map_err(|error| error.to_string())?;
        if url.scheme() == "file" {
            let dir = url.to_file_path().map_err(|()| "not a directory on this machine")?;
            return Ok(Store::local(dir, fsync));
        }
        let bucket = cloud(&url).map_err(|error| error.to_string())?;
        let prefix = Path::from_url_path(url.path()).map_err(|error| error.to_string())?;
        Ok(Store { backend: Backend::Cloud(Arc::new(PrefixStore::new(bucket, prefix))) })
    }

    fn local(dir: PathBuf, fsync: bool) -> Store {
        Store { backend: Backend::Local(Local { dir, fsync, opened: Mutex::default() }) }
    }

    /// The local directory, unless the store is a bucket.
    pub fn dir(&self) -> Option<&std::path::Path> {
        match &self.backend {
            Backend::Local(local) => Some(&local.dir),
            Backend::Cloud(_) => None,
        }
    }

    /// Writes an object in parts: `next` returns the next one, and an empty one at the end. An object smaller than one
    /// part is written at once; any other appears only once complete.
    pub async fn put(
        &self,
        key: &Path,
        part_bytes: usize,
        mut next: impl FnMut() -> Result<Bytes>,
    ) -> Result<()> {
        let store = self.writable().await?;
        let mut part = next()?;
        if part.len() < part_bytes {
            return store.put(key, PutPayload::from_bytes(part)).await.map(|_| ());
        }
        let mut writing = store.put_multipart(key).await?;
        let written = async {
            while !part.is_empty() {
                writing.put_part(part.into()).await?;
                part = next()?;
            }
            writing.complete().await.map(|_| ())
        };
        let written = written.await;
        if written.is_err() {
            // A cloud charges for uploaded parts until the upload is aborted.
            let _ = writing.abort().await;
        }
        written
    }

    /// Opens an object: its length and its bytes. `None` if it does not exist.
    pub async fn get(
        &self,
        key: &Path,
    ) -> Result<Option<(u64, BoxStream<'static, Result<Bytes>>)>> {
        let Some(store) = self.readable().await? else { return Ok(None) };
        let found = match store.get(key).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = found.meta.size;
        let body = match found.payload {
            GetResultPayload::File(_, path) => pieces(path, length),
            GetResultPayload::Stream(body) => body,
        };
        Ok(Some((length, body)))
    }

    /// Removes objects and reports the outcome of each.
    pub async fn delete(&self, keys: Vec<Path>) -> Result<BoxStream<'static, Result<Path>>> {
        let Some(store) = self.readable().await? else { return Ok(stream::empty().boxed()) };
        Ok(store.delete_stream(stream::iter(keys.into_iter().map(Ok)).boxed()))
    }

    /// Lists all objects, page by page as the stream is consumed.
    pub async fn list(&self) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        Ok(match self.readable().await? {
            Some(store) => store.list(None),
            None => stream::empty().boxed(),
        })
    }

    /// The store for writing; creates a local directory if needed.
    async fn writable(&self) -> Result<Arc<dyn ObjectStore>> {
        match &self.backend {
            Backend::Cloud(store) => Ok(Arc::clone(store)),
            Backend::Local(local) => local.open(true).await?.ok_or_else(|| missing(&local.dir)),
        }
    }

    /// The store for reading; `None` if the local directory does not exist yet.
    async fn readable(&self) -> Result<Option<Arc<dyn ObjectStore>>> {
        match &self.backend {
            Backend::Cloud(store) => Ok(Some(Arc::clone(store))),
            Backend::Local(local) => local.open(false).await,
        }
    }
}

impl Local {
    async fn open(&self, make: bool) -> Result<Option<Arc<dyn ObjectStore>>> {
        if let Some(store) = &*self.opened.lock() {
            return Ok(Some(Arc::clone(store)));
        }
        let (dir, fsync) = (self.dir.clone(), self.fsync);
        let opened = tokio::task::spawn_blocking(move || -> Result<_> {
            if make {
                codeq_disk::private_dir(&dir).map_err(generic)?;
            } else if !dir.try_exists().map_err(generic)? {
                return Ok(None);
            }
            let store = LocalFileSystem::new_with_prefix(&dir)?.with_fsync(fsync);
            Ok(Some(Arc::new(store.with_automatic_cleanup(true)) as Arc<dyn ObjectStore>))
        });
        let store = opened.await??;
        self.opened.lock().clone_from(&store);
        Ok(store)
    }
}

#[cfg(feature = "cloud")]
fn cloud(url: &Url) -> Result<Arc<dyn ObjectStore>> {
    use object_store::RetryConfig;
    use object_store::aws::AmazonS3Builder;
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::gcp::GoogleCloudStorageBuilder;

    // A worker waits for this while its lease runs down, so fail early and let it retry.
    let retry = RetryConfig {
        max_retries: 3,
        retry_timeout: std::time::Duration::from_secs(30),
        ..RetryConfig::default()
    };
    let text = url.as_str();
    Ok(match url.scheme() {
        "s3" => Arc::new(AmazonS3Builder::from_env().with_url(text).with_retry(retry).build()?),
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env();
            Arc::new(builder.with_url(text).with_retry(retry).build()?)
        }
        "az" => {
            Arc::new(MicrosoftAzureBuilder::from_env().with_url(text).with_retry(retry).build()?)
        }
        _ => return Err(generic(UNKNOWN_SCHEME)),
    })
}

#[cfg(not(feature = "cloud"))]
fn cloud(url: &Url) -> Result<Arc<dyn ObjectStore>> {
    Err(generic(match url.scheme() {
        "s3" | "gs" | "az" => {
            "this build does not support buckets: build codeq with `--features cloud`"
        }
        _ => UNKNOWN_SCHEME,
    }))
}

/// Streams a file in large chunks: the library's own are so small that a download spends most of
/// its time passing them between threads. Opens the file for each chunk, so a slow client holds no descriptor.
fn pieces(path: PathBuf, length: u64) -> BoxStream<'static, Result<Bytes>> {
    stream::try_unfold((path, 0), move |(path, done)| async move {
        if done >= length {
            return Ok(None);
        }
        let read = tokio::task::spawn_blocking(move || {
            let most = (length - done).min(READ_BYTES as u64);
            let mut piece = vec![0; most as usize];
            std::fs::File::open(&path)?.read_exact_at(&mut piece, done)?;
            Ok((Bytes::from(piece), (path, done + most)))
        });
        read.await?.map(Some).map_err(|error: std::io::Error| generic(error))
    })
    .boxed()
}

fn missing(dir: &std::path::Path) -> object_store::Error {
    generic(format!("{} is gone", dir.display()))
}

pub(crate) fn generic(
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> object_store::Error {
    object_store::Error::Generic { store: "artifacts", source: source.into() }
}
