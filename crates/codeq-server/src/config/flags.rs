//! The command-line layer.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::model::{Config, Durability, LogFormat};
use super::problem::{Source, Sources};

/// Command-line flags. Each is named like its field, with dashes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flags {
    /// `dataDir`
    pub data_dir: Option<PathBuf>,
    /// `httpAddr`
    pub http_addr: Option<SocketAddr>,
    /// `producerAddr`
    pub producer_addr: Option<SocketAddr>,
    /// `workerAddr`
    pub worker_addr: Option<SocketAddr>,
    /// `shards`
    pub shards: Option<u16>,
    /// `durability`
    pub durability: Option<Durability>,
    /// `logLevel`
    pub log_level: Option<String>,
    /// `logFormat`
    pub log_format: Option<LogFormat>,
    /// `metrics.addr`
    pub metrics_addr: Option<SocketAddr>,
    /// `tls.certFile`
    pub tls_cert_file: Option<PathBuf>,
    /// `tls.keyFile`
    pub tls_key_file: Option<PathBuf>,
}

impl Flags {
    /// Applies the flags.
    pub(crate) fn apply(&self, config: &mut Config, sources: &mut Sources) {
        let mut said = |path: &str, flag: &'static str| sources.replace(path, Source::Flag(flag));
        if let Some(data_dir) = &self.data_dir {
            config.data_dir.clone_from(data_dir);
            said("dataDir", "--data-dir");
        }
        if let Some(http_addr) = self.http_addr {
            config.http_addr = http_addr;
            said("httpAddr", "--http-addr");
        }
        if self.producer_addr.is_some() {
            config.producer_addr = self.producer_addr;
            said("producerAddr", "--producer-addr");
        }
        if self.worker_addr.is_some() {
            config.worker_addr = self.worker_addr;
            said("workerAddr", "--worker-addr");
        }
        if self.shards.is_some() {
            config.shards = self.shards;
            said("shards", "--shards");
        }
        if let Some(durability) = self.durability {
            config.durability = durability;
            said("durability", "--durability");
        }
        if let Some(log_level) = &self.log_level {
            config.log_level.clone_from(log_level);
            said("logLevel", "--log-level");
        }
        if let Some(log_format) = self.log_format {
            config.log_format = log_format;
            said("logFormat", "--log-format");
        }
        if self.metrics_addr.is_some() {
            config.metrics.addr = self.metrics_addr;
            said("metrics.addr", "--metrics-addr");
        }
        if self.tls_cert_file.is_some() {
            config.tls.cert_file.clone_from(&self.tls_cert_file);
            said("tls.certFile", "--tls-cert-file");
        }
        if self.tls_key_file.is_some() {
            config.tls.key_file.clone_from(&self.tls_key_file);
            said("tls.keyFile", "--tls-key-file");
        }
    }
}
