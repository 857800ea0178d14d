//! TLS certificates from files, reloaded when the files change.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// How often to check the files for changes.
const POLL: Duration = Duration::from_secs(10);
/// Maximum file size. A certificate chain is a few KiB.
const MAX_FILE: u64 = 1024 * 1024;
/// Mode bit: readable by all users.
const OTHERS_READ: u32 = 0o004;

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The unreadable file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file is far larger than any certificate or key.
    #[error("{} is larger than {MAX_FILE} bytes", .0.display())]
    TooLarge(PathBuf),
    /// All users on the machine can read the private key.
    #[error("everybody can read the private key {} (mode {mode:04o}): run chmod 600 or 640 on it", path.display())]
    KeyIsPublic {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file has no certificate, or one that cannot be decoded.
    #[error("no readable PEM certificates in {}", .0.display())]
    Certificates(PathBuf),
    /// The file has no private key, or one that cannot be decoded.
    #[error("no readable PEM private key in {}", .0.display())]
    Key(PathBuf),
    /// The key type is not supported, or the key does not match the certificate.
    #[error("the certificate and the key cannot be used together")]
    Pair(#[source] rustls::Error),
    /// The cryptographic library rejected its settings.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
}

/// A certificate chain and its key, kept up to date.
///
/// Clones share the certificate: pass one to `serve` and use another to reload on a signal.
#[derive(Clone)]
pub struct TlsFiles {
    files: Arc<Files>,
    every: Duration,
}

struct Files {
    cert: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    config: Arc<ServerConfig>,
    current: Arc<Current>,
    /// Hash of the contents last tried, valid or not, so that a bad pair is reported once.
    tried: Mutex<[u8; 32]>,
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = &self.files;
        f.debug_struct("TlsFiles").field("cert", &files.cert).field("key", &files.key).finish()
    }
}

impl TlsFiles {
    /// Reads a PEM chain, server certificate first, and its PEM private key.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read or decoded, if the key does not match the certificate, or if
    /// all users may read the key.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let contents = Contents::read(cert, key)?;
        let pair = contents.pair(cert, key, &provider)?;
        let current = Arc::new(Current(ArcSwap::from_pointee(pair)));
        let config = config(&provider, Arc::clone(&current))?;
        let files = Files {
            cert: cert.to_owned(),
            key: key.to_owned(),
            provider,
            config: Arc::new(config),
            current,
            tried: Mutex::new(contents.hash()),
        };
        Ok(Self { files: Arc::new(files), every: POLL })
    }

    /// Sets how often `serve` checks the files for changes. The default is 10 seconds.
    #[must_use]
    pub fn poll_every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Reads the files again. New handshakes use the new certificate, or the old one after an
    /// error.
    ///
    /// Blocks on disk I/O.
    ///
    /// # Errors
    ///
    /// Same as [`TlsFiles::load`]; the current certificate stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.files.refresh(true)
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.files.config)
    }

    /// Reloads the files when they change, until `stop` turns true.
    pub(crate) async fn watch(self, mut stop: watch::Receiver<bool>) {
        // `interval` panics on zero.
        let mut ticks = interval(self.every.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            let files = Arc::clone(&self.files);
            let looked = tokio::task::spawn_blocking(move || files.refresh(false)).await;
            if let Ok(Err(error)) = looked {
                let reason = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(
                    target: "codeq::net",
                    %error,
                    reason,
                    "cannot use the new TLS certificate, keeping the old one"
                );
            }
        }
    }
}

impl Files {
    /// Reads the files and starts using them if they changed or `always` is set.
    fn refresh(&self, always: bool) -> Result<(), TlsError> {
        let contents = Contents::read(&self.cert, &self.key);
        let hash = contents.as_ref().map_or([0; 32], Contents::hash);
        // Held until the end, so that `tried` and the certificate in use change together. Of two
        // concurrent reloads, the last to take the lock wins; if it had read the older files, the
        // next check of the files corrects that.
        let mut tried = self.tried.lock();
        if *tried == hash && !always {
            return Ok(());
        }
        *tried = hash;
        let pair = contents?.pair(&self.cert, &self.key, &self.provider)?;
        self.current.0.store(Arc::new(pair));
        tracing::info!(target: "codeq::net", cert = %self.cert.display(), "TLS certificate loaded");
        Ok(())
    }
}

fn config(provider: &Arc<CryptoProvider>, current: Arc<Current>) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(TlsError::Setup)?
        .with_no_client_auth()
        .with_cert_resolver(current);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificate in use.
#[derive(Debug)]
struct Current(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// The raw contents of both files.
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl Contents {
    fn read(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self { cert: read(cert, false)?, key: read(key, true)? })
    }

    fn hash(&self) -> [u8; 32] {
        let hash = Sha256::new().chain_update(Sha256::digest(&self.cert));
        hash.chain_update(Sha256::digest(&self.key)).finalize().into()
    }

    /// Hides the decoder's own errors, which can quote the file.
    fn pair(
        &self,
        cert: &Path,
        key: &Path,
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, TlsError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.cert)
            .collect::<Result<_, _>>()
            .map_err(|_| TlsError::Certificates(cert.to_owned()))?;
        if chain.is_empty() {
            return Err(TlsError::Certificates(cert.to_owned()));
        }
        let key =
            PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| TlsError::Key(key.to_owned()))?;
        CertifiedKey::from_der(chain, key, provider).map_err(TlsError::Pair)
    }
}

fn read(path: &Path, secret: bool) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    // Check the open file, not its path: the path may point to a different file a moment later.
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if secret && mode & OTHERS_READ != 0 {
        return Err(TlsError::KeyIsPublic { path: path.to_owned(), mode });
    }
    let mut contents = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut contents).map_err(failed)?;
    if contents.len() as u64 > MAX_FILE {
        return Err(TlsError::TooLarge(path.to_owned()));
    }
    Ok(contents)
}
