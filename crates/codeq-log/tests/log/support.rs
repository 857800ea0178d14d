//! Helpers to create, fill and compare logs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_disk::{Disk, RealDisk, SharedDisk};
use codeq_log::{FrameIndex, Log, LogError, NewLog, Options, frame_len};

use crate::disk::{Image, MemDisk};

pub const SMALL: Options = Options { segment_bytes: 1024 };
pub const NEW: NewLog = NewLog { first_index: FrameIndex(1), log_id: 0x1dea_f00d_5eed_c0de };

/// The records of one frame.
pub type Frame = Vec<(u16, Vec<u8>)>;

pub fn shared(disk: &MemDisk) -> SharedDisk {
    Arc::new(disk.clone())
}

pub fn real() -> SharedDisk {
    Arc::new(RealDisk)
}

pub fn dir() -> PathBuf {
    PathBuf::from("/data/log")
}

/// A frame with content that depends on its number, of two records.
pub fn frame(n: u64) -> Frame {
    let len = (n * 37 % 150) as usize;
    let bytes = (0..len).map(|i| (n as usize * 31 + i * 7) as u8).collect();
    vec![(n as u16 % 4, bytes), (9, n.to_le_bytes().to_vec())]
}

pub fn borrow(frame: &Frame) -> Vec<(u16, &[u8])> {
    frame.iter().map(|(shard, bytes)| (*shard, bytes.as_slice())).collect()
}

pub fn append(log: &mut Log, frame: &Frame) -> Result<u64, LogError> {
    log.append(&borrow(frame)).map(|position| position.index.0)
}

pub fn len(frame: &Frame) -> u64 {
    frame_len(&borrow(frame))
}

/// Runs all jobs of the log.
pub fn prepare(log: &mut Log) {
    while let Some(job) = log.next_job() {
        log.provide(job.run().unwrap());
    }
}

/// Appends and syncs the frames with these numbers, one by one.
pub fn feed(log: &mut Log, numbers: std::ops::RangeInclusive<u64>) {
    for n in numbers {
        if log.room() < len(&frame(n)) {
            prepare(log);
        }
        assert_eq!(append(log, &frame(n)).unwrap(), n);
        log.sync().unwrap();
    }
    prepare(log);
}

/// All frames from `from` on, as records by frame.
pub fn read(log: &Log, from: u64) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    log.replay(FrameIndex(from), |position, shard, bytes| {
        frames.resize((position.index.0 - from + 1) as usize, Vec::new());
        frames.last_mut().unwrap().push((shard, bytes.to_vec()));
        Ok::<_, LogError>(())
    })
    .unwrap();
    frames
}

/// Checks that the log holds exactly the frames that [`feed`] wrote up to `last`.
pub fn assert_fed(log: &Log, last: u64) {
    assert_eq!(log.last_index().0, last);
    let first = log.first_index().0;
    assert_eq!(read(log, first), (first..=last).map(frame).collect::<Vec<_>>());
}

/// A closed log in memory with `count` synced frames.
pub fn fed_image(count: u64) -> Image {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=count);
    drop(log);
    disk.image()
}

pub fn open(image: &Image) -> Result<Log, LogError> {
    Log::open(shared(&MemDisk::from_image(image)), &dir(), SMALL)
}

/// Opens the log; if that fails, checks that nothing was changed.
pub fn open_or_untouched(image: &Image) -> Result<Log, LogError> {
    let disk = MemDisk::from_image(image);
    let result = Log::open(shared(&disk), &dir(), SMALL);
    if result.is_err() {
        assert_eq!(disk.image(), *image, "a refused log was changed");
    }
    result
}

/// The segments of an image, oldest first.
pub fn segments(image: &Image) -> Vec<PathBuf> {
    image.keys().filter(|path| path.extension().is_some_and(|e| e == "seg")).cloned().collect()
}

/// The segments that hold frames.
pub fn used_segments(image: &Image) -> Vec<PathBuf> {
    let disk = MemDisk::from_image(image);
    let report = codeq_log::verify(&disk, &dir()).unwrap();
    report.segments.into_iter().filter(|s| s.first_index.is_some()).map(|s| s.file).collect()
}

/// Where the frames of a segment are, according to their own lengths.
pub fn frame_offsets(segment: &[u8], frames: usize) -> Vec<(usize, usize)> {
    let mut at = codeq_log::SEGMENT_HEADER_BYTES as usize;
    let mut offsets = Vec::new();
    for _ in 0..frames {
        let payload = u32::from_le_bytes(segment[at + 4..at + 8].try_into().unwrap()) as usize;
        offsets.push((at, at + 40 + payload));
        at += 40 + payload;
    }
    offsets
}

pub fn names(disk: &dyn Disk, dir: &Path, ends: &str) -> usize {
    disk.list(dir).unwrap().iter().filter(|name| name.ends_with(ends)).count()
}
