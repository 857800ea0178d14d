//! How these tests start an engine. `codeq-raft` runs the same tests with another version of this file, over a cluster
//! of one.

use std::path::Path;
use std::sync::Arc;

use codeq_disk::SharedDisk;
use codeq_engine::clock::Clock;
use codeq_engine::{Engine, OpenError, Options};

pub fn start(dir: &Path, options: Options) -> Result<Engine, OpenError> {
    Engine::open(dir, options)
}

pub fn start_with(
    disk: SharedDisk,
    dir: &Path,
    options: Options,
    clock: Arc<dyn Clock>,
    seed: u64,
) -> Result<Engine, OpenError> {
    Engine::open_with(disk, dir, options, clock, seed)
}
