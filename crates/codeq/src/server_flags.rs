//! Flags that `dev` and `serve` share.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use codeq_server::config::{Durability, Flags, LogFormat};

/// What the command line says about a server.
#[derive(clap::Args, Debug)]
pub struct ServerFlags {
    /// Where the data lies
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where HTTP is served
    #[arg(long, value_name = "HOST:PORT")]
    pub http_addr: Option<SocketAddr>,
    /// Shards of a new data directory (an existing one keeps its number)
    #[arg(long, value_name = "N")]
    pub shards: Option<u16>,
    /// When a write is acknowledged: on the disk, or with the operating system
    #[arg(long, value_enum, value_name = "WHEN")]
    pub durability: Option<DurabilityFlag>,
    /// error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// How log lines look
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormatFlag>,
}

/// When a write is acknowledged.
#[derive(ValueEnum, Debug, Clone, Copy)]
pub enum DurabilityFlag {
    /// after fdatasync: survives a power cut
    Fsync,
    /// when the operating system has it: survives a crash of the process only
    Os,
}

/// How log lines look.
#[derive(ValueEnum, Debug, Clone, Copy)]
pub enum LogFormatFlag {
    /// one JSON object a line
    Json,
    /// for people
    Text,
}

impl ServerFlags {
    /// The same for the configuration.
    pub fn flags(&self) -> Flags {
        Flags {
            data_dir: self.data_dir.clone(),
            http_addr: self.http_addr,
            shards: self.shards,
            durability: self.durability.map(|durability| match durability {
                DurabilityFlag::Fsync => Durability::Fsync,
                DurabilityFlag::Os => Durability::Os,
            }),
            log_level: self.log_level.clone(),
            log_format: self.log_format.map(|format| match format {
                LogFormatFlag::Json => LogFormat::Json,
                LogFormatFlag::Text => LogFormat::Text,
            }),
            ..Flags::default()
        }
    }
}
