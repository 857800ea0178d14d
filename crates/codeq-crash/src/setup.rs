//! What a run consists of: the engine's options, drawn for every cycle, and the tasks' contents.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use clap::ValueEnum;
use codeq_core::settings::Settings;
use codeq_core::task_backoff::{Backoff, Growth};
use codeq_engine::{Durability, Options};
use codeq_sim::rng::{Rng, text_hash};
use serde::{Deserialize, Serialize};

/// Tenants of every run.
pub const TENANTS: [&str; 2] = ["red", "blue"];
/// Commands of every run; two of them are the same queue.
pub const COMMANDS: [&str; 4] = ["resize", "Resize", "index", "mail"];
/// Target of webhooks; nothing delivers them.
pub const WEBHOOK: &str = "https://receiver.example/hook";
/// Leases of the workers, so short that those of killed workers end within a few cycles.
pub const LEASE_MS: (u64, u64) = (1_000, 2_000);

/// When the engine acknowledges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Durable {
    /// After the sync.
    #[default]
    Fsync,
    /// After the write: a power cut loses acknowledged work, and the harness must notice.
    Os,
}

impl fmt::Display for Durable {
    /// The name on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durable::Fsync => "fsync",
            Durable::Os => "os",
        })
    }
}

/// The engine of one run, passed to a child process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Setup {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The ledger's directory, on another file system.
    pub ledger_dir: PathBuf,
    /// The cycle's number: names the clients' files and their tasks.
    pub cycle: u64,
    /// Seed for the clients.
    pub seed: u64,
    /// Number of shards of a new directory.
    pub shards: Option<u16>,
    /// Memory of a shard's rows that triggers a checkpoint.
    pub memtable_bytes: usize,
    /// Length of a log segment.
    pub segment_bytes: u64,
    /// Growth of the log that triggers a checkpoint.
    pub checkpoint_log_bytes: u64,
    /// When an operation is acknowledged.
    pub durability: Durable,
    /// Open the engine and do nothing, for a crash during the start.
    pub start_only: bool,
}

impl Setup {
    /// Draws what changes from cycle to cycle; sizes are spread evenly over their magnitudes.
    pub fn draw(&mut self, rng: &mut Rng) {
        let mut size = |low: u64, high: u64| low << rng.below(u64::from((high / low).ilog2()) + 1);
        self.memtable_bytes = size(64 << 10, 8 << 20) as usize;
        self.segment_bytes = size(256 << 10, 16 << 20);
        self.checkpoint_log_bytes = size(256 << 10, 16 << 20);
        self.seed = rng.draw();
    }

    /// The engine's options.
    pub fn options(&self) -> Options {
        Options {
            shards: self.shards,
            durability: match self.durability {
                Durable::Fsync => Durability::Fsync,
                Durable::Os => Durability::Os,
            },
            settings: settings(),
            segment_bytes: self.segment_bytes,
            memtable_bytes: self.memtable_bytes,
            checkpoint_log_bytes: self.checkpoint_log_bytes,
            ..Options::default()
        }
    }

    /// Directory of this cycle's ledger files.
    pub fn cycle_dir(&self) -> PathBuf {
        self.ledger_dir.join(format!("cycle-{:05}", self.cycle))
    }
}

/// Settings whose delays are short enough for a drain.
pub fn settings() -> Settings {
    Settings {
        backoff: Backoff { growth: Growth::ExponentialFullJitter, base: 20, max: 200 },
        ..Settings::default()
    }
}

/// The payload that belongs to a label: always the same, so that whoever knows the label of an idempotency key can repeat
/// the enqueue. Most are short, some are large.
pub fn payload(label: &str) -> Bytes {
    let draw = text_hash(label);
    let length = match draw % 100 {
        0 => 40_000 + (draw >> 8) % 100_000,
        1..=5 => 2_000 + (draw >> 8) % 20_000,
        _ => (draw >> 8) % 400,
    };
    let pad = "x".repeat(length as usize);
    Bytes::from(format!("{{\"label\":\"{label}\",\"pad\":\"{pad}\"}}"))
}

/// The command of a label.
pub fn command(label: &str) -> Arc<str> {
    let at = (text_hash(label) >> 40) as usize % COMMANDS.len();
    Arc::from(COMMANDS.get(at).copied().unwrap_or("index"))
}
