//! Torn tails as a crash leaves them: they are cut, and nothing else is lost.

use codeq_log::{Log, Options, verify};

use crate::disk::{Image, MemDisk};
use crate::support::*;

/// Large enough for all frames of a test, because a rotation would sync.
const ROOMY: Options = Options { segment_bytes: 4096 };

/// A log of `count` frames of which only the first `synced` are known to be synced, as after a power cut before the
/// watermark reached the disk.
fn image(count: u64, synced: u64) -> Image {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), ROOMY, NEW).unwrap();
    prepare(&mut log);
    for n in 1..=count {
        append(&mut log, &frame(n)).unwrap();
        if n == synced {
            log.sync().unwrap();
        }
        prepare(&mut log);
    }
    drop(log);
    disk.image()
}

#[test]
fn a_tail_cut_at_any_byte_gives_exactly_the_frames_before() {
    let image = image(6, 3);
    let path = segments(&image)[0].clone();
    let offsets = frame_offsets(&image[&path], 6);
    for cut in offsets[3].0..=offsets[5].1 {
        let expected = offsets.iter().filter(|(_, end)| *end <= cut).count() as u64;
        for zeroed in [false, true] {
            let mut image = image.clone();
            let bytes = image.get_mut(&path).unwrap();
            if zeroed {
                bytes[cut..].fill(0);
            } else {
                bytes.truncate(cut);
            }
            let disk = MemDisk::from_image(&image);
            let mut log = Log::open(shared(&disk), &dir(), SMALL).unwrap();
            // Trailing zeros of a frame may be its own.
            assert!(log.last_index().0 == expected || zeroed && log.last_index().0 == expected + 1);
            let last = log.last_index().0;
            assert_fed(&log, last);
            feed(&mut log, last + 1..=20);
            assert_fed(&open(&disk.image()).unwrap(), 20);
        }
    }
}

#[test]
fn a_cut_tail_on_a_real_disk_gives_exactly_the_frames_before() {
    let tmp = tempfile::tempdir().unwrap();
    let mut log = Log::create(real(), tmp.path(), ROOMY, NEW).unwrap();
    for n in 1..=6 {
        append(&mut log, &frame(n)).unwrap();
    }
    drop(log);
    let path = tmp.path().join("0000000000000001.seg");
    let whole = std::fs::read(&path).unwrap();
    let mark = std::fs::read(tmp.path().join("watermark")).unwrap();
    let offsets = frame_offsets(&whole, 6);
    for cut in (offsets[3].0..=offsets[5].1).step_by(5) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        std::fs::write(tmp.path().join("watermark"), &mark).unwrap();
        let expected = offsets.iter().filter(|(_, end)| *end <= cut).count() as u64;
        assert_fed(&Log::open(real(), tmp.path(), SMALL).unwrap(), expected);
    }
}

#[test]
fn any_damage_to_unsynced_frames_costs_only_those() {
    // Every subset of the last four frames lost, as with writes that were never synced.
    let image = image(8, 4);
    let path = segments(&image)[0].clone();
    let offsets = frame_offsets(&image[&path], 8);
    for lost in 0..16_u32 {
        let mut image = image.clone();
        let bytes = image.get_mut(&path).unwrap();
        for (i, (at, end)) in offsets[4..].iter().enumerate() {
            if lost & (1 << i) != 0 {
                bytes[*at..*end].fill(0);
            }
        }
        let expected = 4 + u64::from(lost.trailing_zeros().min(4));
        let disk = MemDisk::from_image(&image);
        let report = verify(&disk, &dir()).unwrap();
        assert_eq!(report.last_index.0, expected);
        let mut log = Log::open(shared(&disk), &dir(), SMALL).unwrap();
        assert_fed(&log, expected);
        assert_eq!(verify(&disk, &dir()).unwrap().torn_bytes, 0);
        // Writing the same bytes again must not bring back the frames behind them.
        if expected < 8 {
            append(&mut log, &frame(expected + 1)).unwrap();
            log.sync().unwrap();
            assert_fed(&open(&disk.image()).unwrap(), expected + 1);
        }
    }
}

#[test]
fn a_later_sync_turns_the_same_damage_into_corruption() {
    let image = image(8, 6);
    let path = segments(&image)[0].clone();
    let offsets = frame_offsets(&image[&path], 8);
    for (n, (at, _)) in offsets.iter().enumerate() {
        let mut image = image.clone();
        // The watermark does not help: it is as old as a power cut may leave it.
        image.insert(dir().join("watermark"), fed_image(0)[&dir().join("watermark")].clone());
        image.get_mut(&path).unwrap()[at + 20] ^= 1;
        let result = open_or_untouched(&image);
        assert_eq!(result.is_err(), n < 6, "frame {}", n + 1);
    }
}

#[test]
fn a_torn_first_frame_of_the_next_segment_is_cut_too() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    prepare(&mut log);
    let big = vec![(0, vec![7; 600])];
    let small = vec![(1, vec![8; 40])];
    for frame in [&big, &big, &small, &small] {
        append(&mut log, frame).unwrap();
    }
    drop(log);
    let mut image = disk.image();
    let second = segments(&image)[1].clone();
    for at in [70, 110, 500] {
        image.get_mut(&second).unwrap()[at] ^= 1;
        let disk = MemDisk::from_image(&image);
        assert!(verify(&disk, &dir()).unwrap().torn_bytes > 0);
        let mut log = Log::open(shared(&disk), &dir(), SMALL).unwrap();
        assert_eq!(read(&log, 1), std::slice::from_ref(&big));
        for frame in [&big, &small] {
            append(&mut log, frame).unwrap();
            log.sync().unwrap();
        }
        let log = open(&disk.image()).unwrap();
        assert_eq!(read(&log, 1), [big.clone(), big.clone(), small.clone()]);
    }
}

#[test]
fn verify_changes_nothing() {
    let mut image = image(8, 4);
    let path = segments(&image)[0].clone();
    let (at, end) = frame_offsets(&image[&path], 8)[6];
    image.get_mut(&path).unwrap()[end - 1] ^= 1;
    let disk = MemDisk::from_image(&image);
    let report = verify(&disk, &dir()).unwrap();
    assert_eq!((report.first_index.0, report.last_index.0, report.watermark.0), (1, 6, 4));
    let last = frame_offsets(&image[&path], 8)[7].1;
    assert_eq!(report.torn_bytes, (last - at) as u64);
    assert_eq!(disk.image(), image);
}
