//! The command-line layer.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::de::{DeserializeOwned, IntoDeserializer};

use super::model::{Config, Durability, LogFormat};
use super::problem::{Problem, Source, Sources};

macro_rules! flags {
    ($($flag:ident: $type:ty, $name:literal => $($field:ident).+, $key:literal;)*) => {
        /// Command-line flags. Each is named like its field, with dashes.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct Flags {$(
            #[doc = concat!("`", $key, "`")]
            pub $flag: Option<$type>,
        )*}

        impl Flags {
            /// Applies the flags. The command line has parsed them, and a path need not be UTF-8.
            pub(crate) fn apply(&self, config: &mut Config, sources: &mut Sources) {$(
                if let Some(value) = &self.$flag {
                    config.$($field).+ = value.clone().into();
                    sources.set($key, Source::Flag($name));
                }
            )*}
        }
    };
}

flags! {
    data_dir: PathBuf, "--data-dir" => data_dir, "dataDir";
    http_addr: SocketAddr, "--http-addr" => http_addr, "httpAddr";
    producer_addr: SocketAddr, "--producer-addr" => producer_addr, "producerAddr";
    worker_addr: SocketAddr, "--worker-addr" => worker_addr, "workerAddr";
    shards: u16, "--shards" => shards, "shards";
    durability: Durability, "--durability" => durability, "durability";
    log_level: String, "--log-level" => log_level, "logLevel";
    log_format: LogFormat, "--log-format" => log_format, "logFormat";
    metrics_addr: SocketAddr, "--metrics-addr" => metrics.addr, "metrics.addr";
    tls_cert_file: PathBuf, "--tls-cert-file" => tls.cert_file, "tls.certFile";
    tls_key_file: PathBuf, "--tls-key-file" => tls.key_file, "tls.keyFile";
}

/// Reads a choice, such as [`Durability`], from the command line.
pub fn choice<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let choice = T::deserialize(text.into_deserializer());
    choice.map_err(|problem: Problem| format!("expected {}", problem.text))
}
