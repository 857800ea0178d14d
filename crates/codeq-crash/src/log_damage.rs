//! Damages a log: opening it must either fail or show everything that was acknowledged. [`crate::damage`] covers stores
//! and everything else.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use codeq_disk::RealDisk;
use codeq_engine::{Engine, Options, layout};
use codeq_sim::rng::Rng;

use crate::small::{Contents, Copies, SmallClient, copy_anew, copy_dir, missing, options};

/// Number of frames at the end of the log that are cut at every byte.
const LAST_FRAMES: usize = 3;

/// Settings of a campaign.
#[derive(Debug, Args)]
pub struct LogDamage {
    /// Bits to flip in the log; 0 means every bit.
    #[arg(long, default_value_t = 2_000)]
    pub flips: u64,
    /// Where to make the copies, and the seed for their damage.
    #[command(flatten)]
    pub copies: Copies,
}

/// Outcomes of opening the damaged copies.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Copies that were opened.
    pub tried: u64,
    /// Refused to open.
    pub refused: u64,
    /// Opened and showed everything.
    pub whole: u64,
    /// Opened, but a later read failed.
    pub failed_later: u64,
    /// Opened with data missing, and nothing reported it.
    pub silent: Vec<String>,
}

/// A directory as a crash leaves it, and what was acknowledged by then.
pub struct Image {
    dir: tempfile::TempDir,
    /// What was acknowledged.
    pub acked: Contents,
    /// What was acknowledged, and the used bytes of the newest segment: before each of the last frames, and after them.
    pub steps: Vec<(Contents, u64)>,
}

/// Outcome of opening one copy.
enum Opened {
    /// The open failed with this reason.
    Refused(String),
    /// A later read failed with this error.
    FailedLater(String),
    Shows(Contents),
}

fn look(dir: &Path) -> anyhow::Result<Opened> {
    let engine = match Engine::open(dir, options()) {
        Ok(engine) => engine,
        Err(error) => return Ok(Opened::Refused(error.to_string())),
    };
    Ok(match SmallClient::new(0)?.contents(&engine) {
        Ok(contents) => Opened::Shows(contents),
        Err(error) => Opened::FailedLater(error.to_string()),
    })
}

/// Runs the campaign and prints a summary.
pub fn run(damage: &LogDamage) -> anyhow::Result<()> {
    let image = Image::make(&damage.copies.root)?;
    let cuts = truncations(&image)?;
    let log = log_flips(&image, damage.flips, damage.copies.seed)?;
    println!("log-damage: cuts={cuts} log={log:?} seed={}", damage.copies.seed);
    if !log.silent.is_empty() {
        bail!(
            "damage went unnoticed; replay: codeq-crash log-damage --flips {} --seed {}",
            damage.flips,
            damage.copies.seed
        );
    }
    Ok(())
}

impl Image {
    /// Works for a while, with a checkpoint in the middle, and takes a copy while the engine runs.
    pub fn make(root: &Path) -> anyhow::Result<Image> {
        let dir = tempfile::tempdir_in(root)?;
        let live = dir.path().join("live");
        // No checkpoint except the requested one. If another one covered the last frames, every cut below it would make a
        // log that ends before its store: no crash leaves that, and no open accepts it.
        let unhurried =
            Options { memtable_bytes: 1 << 30, checkpoint_log_bytes: u64::MAX, ..options() };
        let engine = Engine::open(&live, unhurried).context("make the image")?;
        let mut client = SmallClient::new(0)?;
        for round in 0..120 {
            client.enqueue(&engine)?;
            if round % 3 == 0 {
                client.finish_one(&engine)?;
            }
            if round == 60 {
                engine.checkpoint()?;
            }
        }
        let mut steps = Vec::new();
        for step in 0..=LAST_FRAMES {
            let copy = dir.path().join(format!("step-{step}"));
            copy_dir(&live, &copy)?;
            steps.push((client.acked.clone(), newest_segment(&copy)?.1));
            if step < LAST_FRAMES {
                client.enqueue(&engine)?;
            }
        }
        Ok(Image { dir, acked: client.acked, steps })
    }

    /// The directory after the first `step` of the last frames; 0 is before all of them.
    pub fn step(&self, step: usize) -> PathBuf {
        self.dir.path().join(format!("step-{step}"))
    }

    /// The directory at the end.
    pub fn path(&self) -> PathBuf {
        self.step(LAST_FRAMES)
    }

    /// Opens a copy after applying `damage` to it.
    fn open_damaged(
        &self,
        damage: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Opened> {
        let copy = self.dir.path().join("copy");
        copy_anew(&self.path(), &copy)?;
        damage(&copy)?;
        look(&copy)
    }
}

/// Cuts the newest segment at every byte of its last frames. With the final watermark, a cut that loses a frame must be
/// refused; with the earlier one, as a power cut leaves it, exactly the complete frames count.
pub fn truncations(image: &Image) -> anyhow::Result<u64> {
    let segment = newest_segment(&image.path())?.0;
    let (first, last) = match (image.steps.first(), image.steps.last()) {
        (Some((_, first)), Some((_, last))) if first < last => (*first, *last),
        _ => bail!("the last frames are not in one segment"),
    };
    let mut cuts = 0;
    for at in first..last {
        let cut = |copy: &Path| -> anyhow::Result<()> {
            let file = fs::File::options().write(true).open(copy.join("log").join(&segment))?;
            Ok(file.set_len(at)?)
        };
        match image.open_damaged(cut)? {
            Opened::Refused(_) => {}
            _ => bail!("a cut at byte {at}, below the watermark, was not noticed"),
        }
        let lagging = image.open_damaged(|copy| {
            cut(copy)?;
            fs::copy(image.step(0).join("log/watermark"), copy.join("log/watermark"))?;
            Ok(())
        })?;
        let whole = image.steps.iter().rev().find(|(_, used)| *used <= at);
        let expected = whole.map(|(contents, _)| contents);
        match lagging {
            Opened::Shows(contents) if Some(&contents) == expected => {}
            Opened::Shows(contents) => bail!(
                "cut at byte {at}: {} tasks, {:?} expected",
                contents.len(),
                expected.map(Contents::len)
            ),
            Opened::Refused(reason) | Opened::FailedLater(reason) => {
                bail!("cut at byte {at}, above the watermark, but the open failed: {reason}")
            }
        }
        cuts += 1;
    }
    Ok(cuts)
}

/// Flips single bits in the used part of the log's files.
pub fn log_flips(image: &Image, flips: u64, seed: u64) -> anyhow::Result<Tally> {
    let dir = layout::log_dir(&image.path());
    let report = codeq_log::verify(&RealDisk, &dir)?;
    let mut files: Vec<(PathBuf, u64)> = Vec::new();
    for segment in report.segments.iter().filter(|segment| segment.first_index.is_some()) {
        let name = segment.file.file_name().context("a segment without a name")?;
        files.push((Path::new("log").join(name), segment.used));
    }
    files.push((PathBuf::from("log/watermark"), fs::metadata(dir.join("watermark"))?.len()));
    let bits: u64 = files.iter().map(|(_, len)| len * 8).sum();
    let mut rng = Rng::new(seed).fork("flips");
    let mut tally = Tally::default();
    for number in 0..if flips == 0 { bits } else { flips } {
        let mut bit = if flips == 0 { number } else { rng.below(bits) };
        let Some((name, _)) = files.iter().find(|(_, len)| {
            let here = bit < len * 8;
            if !here {
                bit -= len * 8;
            }
            here
        }) else {
            break;
        };
        tally.tried += 1;
        match image.open_damaged(|copy| flip(&copy.join(name), bit))? {
            Opened::Refused(_) => tally.refused += 1,
            Opened::FailedLater(_) => tally.failed_later += 1,
            Opened::Shows(contents) => {
                let lost = missing(&image.acked, &contents);
                if lost.is_empty() {
                    tally.whole += 1;
                    continue;
                }
                tally.silent.push(format!("{} bit {bit}: {}", name.display(), lost.join("; ")));
            }
        }
    }
    Ok(tally)
}

/// Flips one bit of a file.
pub fn flip(path: &Path, bit: u64) -> anyhow::Result<()> {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit / 8)?;
    file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], bit / 8)?;
    Ok(())
}

/// Name of the segment being written, and its used bytes.
fn newest_segment(dir: &Path) -> anyhow::Result<(PathBuf, u64)> {
    let report = codeq_log::verify(&RealDisk, &layout::log_dir(dir))?;
    let used = report.segments.iter().filter(|segment| segment.first_index.is_some());
    let newest = used.max_by_key(|segment| segment.epoch).context("the log has no segment")?;
    let name = newest.file.file_name().context("a segment without a name")?;
    Ok((PathBuf::from(name), newest.used))
}
