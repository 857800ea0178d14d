//! Damaged stores and manifests, and files that are missing or belong elsewhere: every start must either show
//! everything that was acknowledged, and hand it out, or fail and name the problem.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use codeq_core::command::{Claim, Selector};
use codeq_core::effect::Effect;
use codeq_core::id::ShardId;
use codeq_core::reply::Reply;
use codeq_engine::options::SCRUB_EVERY;
use codeq_engine::{Engine, EngineError, Observer, Options, SharedObserver, layout};
use codeq_sim::rng::Rng;

use crate::client::runtime;
use crate::log_damage::flip;
use crate::setup::TENANTS;
use crate::small::{Copies, SmallClient, copy_anew, copy_dir, options};

/// Number of shards of the damaged directory.
const SHARDS: u16 = 3;
/// Number of tasks in it: enough for B-trees of several levels.
const TASKS: u64 = 900;
const SECTOR: u64 = 512;

/// Settings of a campaign.
#[derive(Debug, Args)]
pub struct Damage {
    /// Number of damaged stores, alternating between flipped bits and zeroed sectors.
    #[arg(long, default_value_t = 4_000)]
    pub stores: u64,
    /// Number of damaged manifests.
    #[arg(long, default_value_t = 400)]
    pub manifests: u64,
    /// Where to make the copies, and the seed for their damage.
    #[command(flatten)]
    pub copies: Copies,
}

/// Outcomes of opening the damaged copies.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Copies that were opened.
    pub tried: u64,
    /// Refused to open, and named the directory or file.
    pub refused: u64,
    /// Opened, but later a read or the engine's own verification stopped the engine and named the file.
    pub stopped: u64,
    /// Opened with a store rebuilt from the log, and showed everything.
    pub rebuilt: u64,
    /// Opened and showed everything.
    pub whole: u64,
    /// Anything else: the damage, and what was observed.
    pub silent: Vec<String>,
}

/// Runs the campaign and prints a summary.
pub fn run(damage: &Damage) -> anyhow::Result<()> {
    let (stores, manifests, seed) = (damage.stores, damage.manifests, damage.copies.seed);
    let running = stores / 8;
    let purged = Image::make(&damage.copies.root, true)?;
    let complete = Image::make(&damage.copies.root, false)?;
    let stores = [
        // A start that verifies the stores, and one that leaves that to the reads, as with large stores.
        purged.stores(stores / 2, seed, true)?,
        purged.stores(stores / 4, seed + 1, false)?,
        // The log still has everything: a damaged store can be rebuilt.
        complete.stores(stores - stores / 2 - stores / 4, seed + 2, true)?,
    ];
    // In a running engine: found by a read, or by the engine itself.
    let running =
        [purged.running(running, seed + 3, false)?, purged.running(running, seed + 4, true)?];
    let manifests = purged.manifests(manifests, seed)?;
    let files = [purged.files(&complete)?, complete.files(&purged)?];
    println!(
        "damage: stores={stores:?} running={running:?} manifests={manifests:?} files={files:?} seed={seed}"
    );
    let all = stores.iter().chain(&running).chain([&manifests]).chain(&files);
    let silent: Vec<&String> = all.flat_map(|tally| &tally.silent).collect();
    if !silent.is_empty() {
        bail!("{} cases of damage went unnoticed: {silent:#?}", silent.len());
    }
    Ok(())
}

/// A directory as a crash leaves it, and what was acknowledged by then.
pub struct Image {
    dir: tempfile::TempDir,
    client: SmallClient,
    unfinished: usize,
}

impl Image {
    /// Works for a while, with checkpoints, and takes a copy while the engine runs. If `purged`, the log no longer
    /// starts at its first frame.
    pub fn make(root: &Path, purged: bool) -> anyhow::Result<Image> {
        let dir = tempfile::tempdir_in(root)?;
        let (live, image) = (dir.path().join("live"), dir.path().join("image"));
        let segment_bytes = if purged { 64 << 10 } else { 4 << 20 };
        let engine = Engine::open(&live, Options { segment_bytes, ..engine_options() })?;
        let mut client = SmallClient::new(0)?;
        for round in 0..TASKS {
            client.enqueue(&engine)?;
            if round % 5 == 0 {
                client.finish_one(&engine)?;
            }
            // After two checkpoints, the log drops what came before the first.
            if round % (TASKS / 4) == 1 {
                engine.checkpoint()?;
            }
        }
        let wanted = |first| (first > codeq_log::FrameIndex(1)) == purged;
        for _ in 0..100 {
            copy_dir(&live, &image)?;
            let log = codeq_log::verify(&codeq_disk::RealDisk, &layout::log_dir(&image))?;
            if wanted(log.first_index) {
                let ended = client.acked.values().filter(|(_, result)| result.is_some()).count();
                let unfinished = client.acked.len() - ended;
                return Ok(Image { dir, client, unfinished });
            }
            // Segments leave the directory in the background.
            fs::remove_dir_all(&image)?;
            client.enqueue(&engine)?;
        }
        bail!("the log never reached the required state (purged: {purged})")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// A copy of it.
    fn copy(&self) -> anyhow::Result<PathBuf> {
        let copy = self.dir.path().join("copy");
        copy_anew(&self.image(), &copy)?;
        Ok(copy)
    }

    /// Opens a copy after applying `damage` to it.
    fn try_one(
        &self,
        tally: &mut Tally,
        what: String,
        verify: bool,
        damage: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let copy = self.copy()?;
        damage(&copy).with_context(|| what.clone())?;
        tally.tried += 1;
        let verify_bytes_max = if verify { u64::MAX } else { 0 };
        let options = Options { verify_bytes_max, shards: None, ..engine_options() };
        let named = |text: &str| text.contains(&*copy.to_string_lossy());
        let engine = match Engine::open(&copy, options) {
            Ok(engine) => engine,
            Err(error) if named(&error.to_string()) => {
                tally.refused += 1;
                return Ok(());
            }
            Err(error) => {
                tally.silent.push(format!("{what}: refused without naming a file: {error}"));
                return Ok(());
            }
        };
        self.judge(tally, what, &copy, &engine);
        Ok(())
    }

    /// Reads everything from an engine and counts the outcome.
    fn judge(&self, tally: &mut Tally, what: String, dir: &Path, engine: &Engine) {
        let named = |text: &str| text.contains(&*dir.to_string_lossy());
        match self.lost(engine) {
            Ok(lost) if lost.is_empty() && engine.rebuilt().is_empty() => tally.whole += 1,
            Ok(lost) if lost.is_empty() => tally.rebuilt += 1,
            Ok(lost) => {
                let first = lost.first().cloned().unwrap_or_default();
                tally.silent.push(format!("{what}: {} lost, {first}", lost.len()));
            }
            Err(error) if named(&error.to_string()) => tally.stopped += 1,
            Err(error) => {
                tally.silent.push(format!("{what}: stopped without naming a file: {error}"))
            }
        }
    }

    /// What was acknowledged but is missing, or cannot be claimed.
    fn lost(&self, engine: &Engine) -> Result<Vec<String>, EngineError> {
        let mut lost = self.client.missing(engine)?;
        let mut claimed = 0;
        loop {
            let claim = Claim {
                tenant: TENANTS[0].into(),
                worker: "drain".into(),
                from: Selector::Any,
                lease: 600_000,
                count: 100,
            };
            let runtime =
                runtime().map_err(|error| EngineError::Failed(error.to_string().into()))?;
            match runtime.block_on(engine.claim(claim, 0))? {
                Reply::Claimed(tasks) if tasks.is_empty() => break,
                Reply::Claimed(tasks) => claimed += tasks.len(),
                other => lost.push(format!("a claim gave {other:?}")),
            }
        }
        if claimed != self.unfinished {
            lost.push(format!(
                "{claimed} tasks can be claimed, {} were acknowledged",
                self.unfinished
            ));
        }
        Ok(lost)
    }

    /// Flips bits and zeroes sectors of stores, alternating.
    pub fn stores(&self, count: u64, seed: u64, verify: bool) -> anyhow::Result<Tally> {
        let mut rng = Rng::new(seed).fork("stores");
        let mut tally = Tally::default();
        for number in 0..count {
            let spot = Spot::pick(&mut rng, &self.image(), number)?;
            self.try_one(&mut tally, spot.to_string(), verify, |copy| spot.damage(copy))?;
        }
        Ok(tally)
    }

    /// The same in a running engine. With `scrub`, the engine has to find the damage itself.
    pub fn running(&self, count: u64, seed: u64, scrub: bool) -> anyhow::Result<Tally> {
        let mut rng = Rng::new(seed).fork("running");
        let mut tally = Tally::default();
        let passes = Arc::new(Passes::default());
        let options = Options {
            shards: None,
            // Hardly any cache, so that reads reach the files.
            store: codeq_store::Options { cache_bytes: 16 << 10, ..Default::default() },
            scrub_every: if scrub { Duration::from_millis(1) } else { SCRUB_EVERY },
            observer: SharedObserver(Some(Arc::clone(&passes) as Arc<dyn Observer>)),
            ..engine_options()
        };
        for number in 0..count {
            let copy = self.copy()?;
            tally.tried += 1;
            let engine = Engine::open(&copy, options.clone())?;
            let spot = Spot::pick(&mut rng, &copy, number)?;
            spot.damage(&copy)?;
            if scrub {
                // The current pass may be past the damage, so wait for a second one.
                let wanted = passes.0.load(Ordering::Relaxed) + 2;
                let end = Instant::now() + Duration::from_secs(60);
                while engine.failure().is_none() && passes.0.load(Ordering::Relaxed) < wanted {
                    if Instant::now() > end {
                        bail!("{spot}: the stores were not verified within a minute");
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            let found = engine.failure().is_some();
            let stopped = tally.stopped;
            self.judge(&mut tally, spot.to_string(), &copy, &engine);
            if scrub && !found && tally.stopped > stopped {
                tally
                    .silent
                    .push(format!("{spot}: a read stopped at something that was just verified"));
            }
        }
        Ok(tally)
    }

    /// Damages the manifest in many ways; every fourth one is as the previous version wrote it.
    pub fn manifests(&self, count: u64, seed: u64) -> anyhow::Result<Tally> {
        let text = fs::read_to_string(self.image().join("MANIFEST"))?;
        let (fields, _) = text.split_once("checksum").context("a manifest without checksum")?;
        let old = fields.replace("codeq-format: 2", "codeq-format: 1");
        let mut rng = Rng::new(seed).fork("manifests");
        let mut tally = Tally::default();
        for number in 0..count {
            let mut bytes =
                if number.is_multiple_of(4) { &old } else { &text }.clone().into_bytes();
            let at = rng.below(bytes.len() as u64) as usize;
            let kind = rng.below(5);
            match kind {
                0 => bytes.truncate(at),
                1 => bytes.get_mut(at..).into_iter().for_each(|rest| rest.fill(0)),
                2 => bytes.insert(at, rng.pick(b"0123456789\n ").copied().unwrap_or_default()),
                3 => drop(bytes.remove(at)),
                _ => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << rng.below(8)),
            }
            let what = format!("manifest {:?}", String::from_utf8_lossy(&bytes));
            self.try_one(&mut tally, what, true, |copy| {
                Ok(fs::write(copy.join("MANIFEST"), bytes)?)
            })?;
        }
        Ok(tally)
    }

    /// Removes and empties every file, swaps it with every other of the same kind, and replaces it with the other image's.
    /// Removes and replaces whole directories, and adds a shard.
    pub fn files(&self, other: &Image) -> anyhow::Result<Tally> {
        let mut tally = Tally::default();
        let files = files(&self.image())?;
        for file in &files {
            let name = file.display();
            self.try_one(&mut tally, format!("{name} removed"), true, |copy| {
                Ok(fs::remove_file(copy.join(file))?)
            })?;
            self.try_one(&mut tally, format!("{name} emptied"), true, |copy| {
                Ok(fs::write(copy.join(file), "")?)
            })?;
            let alike = |other: &&PathBuf| other.extension() == file.extension() && *other > file;
            for second in files.iter().filter(alike) {
                self.try_one(
                    &mut tally,
                    format!("{name} and {} swapped", second.display()),
                    true,
                    |copy| {
                        let held = copy.join("held");
                        fs::rename(copy.join(file), &held)?;
                        fs::rename(copy.join(second), copy.join(file))?;
                        Ok(fs::rename(&held, copy.join(second))?)
                    },
                )?;
            }
            let foreign = other.image().join(file);
            if foreign.exists() && !file.ends_with("LOCK") {
                self.try_one(&mut tally, format!("{name} of another directory"), true, |copy| {
                    fs::copy(&foreign, copy.join(file))?;
                    Ok(())
                })?;
            }
        }
        let dirs = ShardId::all(SHARDS).map(|shard| layout::shard_dir(Path::new(""), shard));
        for dir in dirs.chain([layout::log_dir(Path::new(""))]) {
            let name = dir.display();
            self.try_one(&mut tally, format!("{name} removed"), true, |copy| {
                Ok(fs::remove_dir_all(copy.join(&dir))?)
            })?;
            self.try_one(&mut tally, format!("{name} of another directory"), true, |copy| {
                fs::remove_dir_all(copy.join(&dir))?;
                copy_dir(&other.image().join(&dir), &copy.join(&dir))
            })?;
        }
        self.try_one(&mut tally, "one more shard".to_owned(), true, |copy| {
            copy_dir(&copy.join("shard-000"), &copy.join("shard-003"))
        })?;
        Ok(tally)
    }
}

/// A place in a store, and how to damage it.
struct Spot {
    shard: ShardId,
    bit: u64,
    /// Zero the whole sector instead of flipping the bit.
    sector: bool,
}

impl Spot {
    fn pick(rng: &mut Rng, dir: &Path, number: u64) -> anyhow::Result<Spot> {
        let shard = ShardId(rng.below(u64::from(SHARDS)) as u16);
        let len = fs::metadata(layout::store_path(dir, shard))?.len();
        Ok(Spot { shard, bit: rng.below(len * 8), sector: number.is_multiple_of(2) })
    }

    fn damage(&self, dir: &Path) -> anyhow::Result<()> {
        let path = layout::store_path(dir, self.shard);
        if self.sector {
            zero(&path, self.bit / 8 / SECTOR * SECTOR)
        } else {
            flip(&path, self.bit)
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.sector { "sector of bit" } else { "bit" };
        write!(f, "shard {} {kind} {}", self.shard, self.bit)
    }
}

/// Counts complete verifications of all rows.
#[derive(Default)]
struct Passes(AtomicU64);

impl Observer for Passes {
    fn committed(&self, _: ShardId, _: &[Effect]) {}

    fn scrubbed(&self, _: u64, _: Duration) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn engine_options() -> Options {
    Options {
        shards: Some(SHARDS),
        memtable_bytes: 16 << 20,
        checkpoint_log_bytes: u64::MAX,
        ..options()
    }
}

/// The files of a directory, by their names in it.
fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = PathBuf::from(entry.file_name());
        if entry.file_type()?.is_dir() {
            found.extend(files(&entry.path())?.into_iter().map(|inner| name.join(inner)));
        } else {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

fn zero(path: &Path, at: u64) -> anyhow::Result<()> {
    let file = fs::File::options().write(true).open(path)?;
    let len = file.metadata()?.len().saturating_sub(at).min(SECTOR);
    file.write_all_at(&vec![0; len as usize], at)?;
    Ok(())
}
