//! Frames read by position, while the log is written, purged, recycled and cut short.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use codeq_disk::SharedDisk;
use codeq_log::{FrameIndex, Log, LogError, LogReader, Position};

use crate::disk::{MemDisk, Rng};
use crate::support::*;

/// Appends and syncs a frame; a segment is always ready.
fn write(log: &mut Log, n: u64) -> Position {
    prepare(log);
    let position = log.append(&borrow(&frame(n))).unwrap();
    log.sync().unwrap();
    position
}

fn records(reader: &mut LogReader, position: Position) -> Result<Frame, LogError> {
    let frame = reader.read(position)?;
    assert_eq!(frame.index(), position.index);
    Ok(frame.records().map(|(shard, bytes)| (shard, bytes.to_vec())).collect())
}

fn positions(log: &Log) -> BTreeMap<u64, Position> {
    let mut positions = BTreeMap::new();
    log.replay(log.first_index(), |position, _, _| {
        positions.insert(position.index.0, position);
        Ok::<_, LogError>(())
    })
    .unwrap();
    positions
}

#[test]
fn every_frame_is_read_from_where_it_was_written() {
    let tmp = tempfile::tempdir().unwrap();
    let disks: [(SharedDisk, _); 2] =
        [(shared(&MemDisk::default()), dir()), (real(), tmp.path().to_owned())];
    for (disk, dir) in disks {
        let mut log = Log::create(disk.clone(), &dir, SMALL, NEW).unwrap();
        let mut reader = log.reader();
        let mut written = BTreeMap::new();
        for n in 1..=60 {
            prepare(&mut log);
            let position = log.append(&borrow(&frame(n))).unwrap();
            assert_eq!(position.frame_bytes(), len(&frame(n)));
            // Readable at once: a follower may be sent what this node has not synced.
            assert_eq!(records(&mut reader, position).unwrap(), frame(n));
            written.insert(n, position);
        }
        log.sync().unwrap();
        let mut rng = Rng(1);
        for _ in 0..300 {
            let n = 1 + rng.below(60);
            assert_eq!(records(&mut reader, written[&n]).unwrap(), frame(n));
        }
        assert_eq!(positions(&log), written);
        drop(log);
        let log = Log::open(disk, &dir, SMALL).unwrap();
        assert_eq!(positions(&log), written);
    }
}

#[test]
fn a_frame_of_a_recycled_segment_is_gone_and_never_another_one() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    let mut reader = log.reader();
    // All frames have one length, so that old and new ones lie at the same offsets of a recycled file.
    let body = |n: u64| vec![(0, [n.to_le_bytes(), [7; 8]].concat())];
    let mut written = Vec::new();
    for n in 1..=200 {
        prepare(&mut log);
        written.push(log.append(&borrow(&body(n))).unwrap());
        log.sync().unwrap();
        // The reader keeps the file of the first frame open, whatever becomes of it.
        match records(&mut reader, written[0]) {
            Ok(read) => assert_eq!(read, body(1)),
            Err(error) => assert!(matches!(error, LogError::Gone { index: FrameIndex(1) })),
        }
        log.purge(FrameIndex(n.saturating_sub(20)));
    }
    prepare(&mut log);
    let first = log.first_index().0;
    let mut other = reader.clone();
    for (n, position) in (1..=200).zip(&written) {
        match records(&mut other, *position) {
            Ok(read) => assert_eq!(read, body(n)),
            Err(LogError::Gone { index }) => assert!(index.0 == n && n < first),
            Err(error) => panic!("frame {n}: {error}"),
        }
    }
    let error = records(&mut reader, written[0]).unwrap_err();
    assert_eq!(error.to_string(), "frame 1 was purged from the log");
}

#[test]
fn readers_on_other_threads_see_the_right_frame_or_none() {
    const LAST: u64 = 3_000;
    let tmp = tempfile::tempdir().unwrap();
    let mut log = Log::create(real(), tmp.path(), SMALL, NEW).unwrap();
    let reader = log.reader();
    let written = Mutex::new(Vec::new());
    let done = AtomicBool::new(false);
    let found = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (mut reader, written, done, found) = (reader.clone(), &written, &done, &found);
            scope.spawn(move || {
                let mut rng = Rng(seed);
                while !done.load(Ordering::Acquire) {
                    let positions: std::sync::MutexGuard<'_, Vec<Position>> =
                        written.lock().unwrap();
                    let count = positions.len() as u64;
                    // Around the oldest frames of the log, which are about to be recycled.
                    let back = rng.below(60);
                    let picked = positions.get(count.saturating_sub(back) as usize).copied();
                    drop(positions);
                    let Some(position) = picked else { continue };
                    match records(&mut reader, position) {
                        Ok(read) => {
                            assert_eq!(read, frame(position.index.0));
                            found.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(LogError::Gone { index }) => assert_eq!(index, position.index),
                        Err(error) => panic!("frame {}: {error}", position.index),
                    }
                }
            });
        }
        for n in 1..=LAST {
            prepare(&mut log);
            let position = log.append(&borrow(&frame(n))).unwrap();
            written.lock().unwrap().push(position);
            if n % 8 == 0 {
                log.sync().unwrap();
                log.purge(FrameIndex(n.saturating_sub(30)));
            }
        }
        done.store(true, Ordering::Release);
    });
    assert!(found.into_inner() > 0);
    let mut reader = log.reader();
    let written = written.into_inner().unwrap();
    assert!(matches!(records(&mut reader, written[0]), Err(LogError::Gone { .. })));
    let last = records(&mut reader, written[LAST as usize - 1]).unwrap();
    assert_eq!(last, frame(LAST));
}

#[test]
fn a_frame_that_a_power_cut_took_is_not_confused_with_its_successor() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    let kept: Vec<Position> = (1..=9).map(|n| write(&mut log, n)).collect();
    prepare(&mut log);
    let old = log.append(&[(0, b"taken")]).unwrap();
    drop(log);
    for seed in 0..40 {
        let disk = disk.power_cut(&mut Rng(seed));
        let mut log = Log::open(shared(&disk), &dir(), SMALL).unwrap();
        let mut reader = log.reader();
        for (n, position) in (1..).zip(&kept) {
            assert_eq!(records(&mut reader, *position).unwrap(), frame(n));
        }
        if log.last_index() == old.index {
            assert_eq!(records(&mut reader, old).unwrap(), [(0, b"taken".to_vec())]);
            continue;
        }
        assert!(matches!(reader.read(old), Err(LogError::Corrupt { .. })));
        // Same index, place and length.
        let new = log.append(&[(0, b"fresh")]).unwrap();
        assert_eq!((new.index, new.frame_bytes()), (old.index, old.frame_bytes()));
        assert!(matches!(reader.read(old), Err(LogError::Corrupt { .. })));
        assert_eq!(records(&mut reader, new).unwrap(), [(0, b"fresh".to_vec())]);
    }
}

#[test]
fn any_flipped_bit_of_a_frame_is_refused() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    let written: Vec<Position> = (1..=5).map(|n| write(&mut log, n)).collect();
    drop(log);
    let image = disk.image();
    let path = segments(&image)[0].clone();
    let (at, end) = frame_offsets(&image[&path], 5)[2];
    for bit in at * 8..end * 8 {
        // The damage appears under an open log.
        let disk = MemDisk::from_image(&image);
        let mut reader = Log::open(shared(&disk), &dir(), SMALL).unwrap().reader();
        let file = codeq_disk::Disk::open(&disk, &path).unwrap();
        let byte = image[&path][bit / 8] ^ (1 << (bit % 8));
        file.write_all_at(&[byte], (bit / 8) as u64).unwrap();
        let error = reader.read(written[2]).unwrap_err();
        assert!(error.to_string().contains("frame 3 is not there any more"), "{error}");
        assert_eq!(records(&mut reader, written[3]).unwrap(), frame(4));
    }
}
