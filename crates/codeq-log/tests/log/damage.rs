//! Bytes that change behind the log's back: it opens completely, or is refused and unchanged.

use codeq_log::{FrameIndex, Log, LogError, SEGMENT_HEADER_BYTES};

use crate::disk::{Image, MemDisk};
use crate::support::*;

/// Opens with all `count` frames, or is refused.
fn assert_whole_or_refused(image: &Image, count: u64, what: &str) -> bool {
    match open_or_untouched(image) {
        Ok(log) => {
            assert_eq!(log.last_index().0, count, "{what}");
            assert_fed(&log, count);
            true
        }
        Err(LogError::Io { source, .. }) => panic!("{what}: {source}"),
        Err(_) => false,
    }
}

#[test]
fn a_flipped_bit_never_costs_an_acknowledged_frame() {
    let image = fed_image(14);
    assert!(used_segments(&image).len() >= 2);
    let mut refused = 0;
    for path in image.keys() {
        for bit in 0..image[path].len() * 8 {
            let mut image = image.clone();
            image.get_mut(path).unwrap()[bit / 8] ^= 1 << (bit % 8);
            let what = format!("bit {bit} of {}", path.display());
            refused += usize::from(!assert_whole_or_refused(&image, 14, &what));
        }
    }
    assert!(refused > 8 * 1000);
}

#[test]
fn a_flipped_bit_never_costs_an_acknowledged_frame_after_a_purge() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    // The oldest remaining segment holds a single frame: nothing follows in its own segment.
    feed(&mut log, 1..=10);
    let big = vec![(0, vec![7; 850])];
    append(&mut log, &big).unwrap();
    log.sync().unwrap();
    prepare(&mut log);
    append(&mut log, &big).unwrap();
    log.sync().unwrap();
    log.purge(FrameIndex(10));
    prepare(&mut log);
    assert_eq!((log.first_index().0, log.last_index().0), (11, 12));
    drop(log);
    let image = disk.image();
    for path in segments(&image) {
        for bit in 0..image[&path].len() * 8 {
            let mut image = image.clone();
            image.get_mut(&path).unwrap()[bit / 8] ^= 1 << (bit % 8);
            if let Ok(log) = open_or_untouched(&image) {
                assert_eq!((log.first_index().0, log.last_index().0), (11, 12), "bit {bit}");
            }
        }
    }
}

#[test]
fn a_zeroed_page_is_refused() {
    let options = codeq_log::Options { segment_bytes: 64 * 1024 };
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), options, NEW).unwrap();
    feed(&mut log, 1..=300);
    drop(log);
    let image = disk.image();
    let path = &segments(&image)[0];
    for page in 0..4 {
        let mut image = image.clone();
        image.get_mut(path).unwrap()[page * 4096..(page + 1) * 4096].fill(0);
        assert!(matches!(open_or_untouched(&image), Err(LogError::Corrupt { .. })), "page {page}");
    }
}

#[test]
fn an_intact_frame_after_damage_is_found_at_any_offset() {
    // Frames 1 and 2 are damaged and the watermark is old: only frame 3 can tell. It is placed around the boundary
    // between two chunks of the search.
    const PIECE: usize = 1024 * 1024;
    let options = codeq_log::Options { segment_bytes: 3 * PIECE as u64 };
    for back in 0..60 {
        let disk = MemDisk::default();
        let mut log = Log::create(shared(&disk), &dir(), options, NEW).unwrap();
        let old_mark = disk.image()[&dir().join("watermark")].clone();
        let filler = vec![3; PIECE - 2 * 46 - 10 - back];
        for body in [&[1; 10][..], &filler, &[2; 10]] {
            log.append(&[(0, body)]).unwrap();
            log.sync().unwrap();
        }
        drop(log);
        let mut image = disk.image();
        let path = segments(&image)[0].clone();
        let bytes = image.get_mut(&path).unwrap();
        let offsets = frame_offsets(bytes, 3);
        assert_eq!(offsets[2].0, 64 + PIECE - back);
        bytes[offsets[0].0 + 50] ^= 1;
        bytes[offsets[1].0 + 50] ^= 1;
        image.insert(dir().join("watermark"), old_mark);
        assert!(matches!(open_or_untouched(&image), Err(LogError::Corrupt { .. })), "{back}");
    }
}

#[test]
fn swapped_blocks_are_refused() {
    let image = fed_image(30);
    let used = used_segments(&image);
    for (a, b) in [(0, 256), (256, 512), (512, 768)] {
        let mut image = image.clone();
        let bytes = image.get_mut(&used[1]).unwrap();
        for i in 0..256 {
            bytes.swap(a + i, b + i);
        }
        assert!(open_or_untouched(&image).is_err(), "{a} {b}");
    }
    for offset in [0, 256, 512] {
        let mut image = image.clone();
        let first = image[&used[0]][offset..offset + 256].to_vec();
        let second = image[&used[1]][offset..offset + 256].to_vec();
        image.get_mut(&used[0]).unwrap()[offset..offset + 256].copy_from_slice(&second);
        image.get_mut(&used[1]).unwrap()[offset..offset + 256].copy_from_slice(&first);
        assert!(open_or_untouched(&image).is_err(), "{offset}");
    }
}

#[test]
fn swapped_frames_of_equal_length_are_refused() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    for n in 0..5 {
        log.append(&[(0, &[n; 50])]).unwrap();
        log.sync().unwrap();
    }
    drop(log);
    let mut image = disk.image();
    let path = segments(&image)[0].clone();
    let bytes = image.get_mut(&path).unwrap();
    let at = SEGMENT_HEADER_BYTES as usize;
    for i in 0..96 {
        bytes.swap(at + 96 + i, at + 192 + i);
    }
    assert!(matches!(open_or_untouched(&image), Err(LogError::Corrupt { .. })));
}

#[test]
fn a_frame_of_another_history_is_refused() {
    // The same log, split and continued in two ways: frame 5 of one does not follow frame 4 of the other, though index,
    // place and checksum are right.
    let start = fed_image(3);
    let continued = |byte: u8| {
        let disk = MemDisk::from_image(&start);
        let mut log = Log::open(shared(&disk), &dir(), SMALL).unwrap();
        for _ in 0..2 {
            log.append(&[(0, &[byte; 50])]).unwrap();
            log.sync().unwrap();
        }
        disk.image()
    };
    let (mut image, other) = (continued(1), continued(2));
    let path = segments(&image)[0].clone();
    let (at, end) = frame_offsets(&image[&path], 5)[4];
    image.get_mut(&path).unwrap()[at..end].copy_from_slice(&other[&path][at..end]);
    assert!(open_or_untouched(&image).is_err());
}

#[test]
fn a_wiped_segment_is_refused() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=40);
    log.purge(FrameIndex(15));
    prepare(&mut log);
    drop(log);
    let image = disk.image();
    for path in used_segments(&image) {
        for from in [0, 64] {
            let mut image = image.clone();
            image.get_mut(&path).unwrap()[from..].fill(0);
            let result = open_or_untouched(&image);
            assert!(result.is_err(), "{} from {from}", path.display());
        }
    }
}

#[test]
fn a_missing_segment_is_refused() {
    let image = fed_image(40);
    let used = used_segments(&image);
    assert!(used.len() >= 4);
    for path in &used[1..used.len() - 1] {
        let mut image = image.clone();
        image.remove(path);
        let result = open_or_untouched(&image);
        assert!(matches!(result, Err(LogError::Corrupt { .. })), "{}", path.display());
    }
    let mut without_last = image.clone();
    without_last.remove(&used[used.len() - 1]);
    assert!(matches!(
        open_or_untouched(&without_last),
        Err(LogError::ShorterThanAcknowledged { acknowledged: FrameIndex(40), .. })
    ));
    // The oldest one may have been purged; a reader that still needs it gets an error.
    let mut without_first = image.clone();
    without_first.remove(&used[0]);
    let log = open(&without_first).unwrap();
    assert!(matches!(
        log.replay(FrameIndex(1), |_, _, _| Ok::<_, LogError>(())),
        Err(LogError::Purged { .. })
    ));
    let mut without_any = image;
    without_any.retain(|path, _| path.extension().is_none_or(|e| e != "seg"));
    assert!(matches!(open_or_untouched(&without_any), Err(LogError::Corrupt { .. })));
}

#[test]
fn a_copied_or_foreign_segment_is_refused() {
    let image = fed_image(40);
    let used = used_segments(&image);
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
        let mut image = image.clone();
        image.insert(used[to].clone(), image[&used[from]].clone());
        assert!(matches!(open_or_untouched(&image), Err(LogError::Foreign { .. })));
    }
    let mut more = image.clone();
    more.insert(dir().join("00000000000000ff.seg"), image[&used[1]].clone());
    assert!(matches!(open_or_untouched(&more), Err(LogError::Foreign { .. })));

    let disk = MemDisk::default();
    let other = codeq_log::NewLog { log_id: 5, ..NEW };
    feed(&mut Log::create(shared(&disk), &dir(), SMALL, other).unwrap(), 1..=40);
    let other = disk.image();
    for path in &used {
        let mut image = image.clone();
        image.insert(path.clone(), other[path].clone());
        assert!(matches!(open_or_untouched(&image), Err(LogError::Foreign { .. })));
    }
    // Files that are not the log's are ignored.
    let mut beside = image.clone();
    beside.insert(dir().join("notes.txt"), b"hello".to_vec());
    beside.insert(dir().join("1.seg"), b"hello".to_vec());
    assert_fed(&open(&beside).unwrap(), 40);
}

#[test]
fn a_newer_format_is_refused_with_advice() {
    let image = fed_image(10);
    for path in image.keys() {
        let mut image = image.clone();
        let bytes = image.get_mut(path).unwrap();
        bytes[8..12].copy_from_slice(&2_u32.to_le_bytes());
        let crc_at = if path.ends_with("watermark") { 28 } else { 60 };
        let crc = crc32c::crc32c(&bytes[..crc_at]);
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        let Err(error) = open_or_untouched(&image) else { panic!("{}", path.display()) };
        assert!(matches!(error, LogError::NewerFormat { found: 2, supported: 1, .. }));
        assert!(error.to_string().contains("run the version that wrote it"), "{error}");
    }
}

#[test]
fn a_damaged_header_matters_in_a_used_segment_only() {
    let image = fed_image(20);
    let used = used_segments(&image);
    for path in segments(&image) {
        let mut image = image.clone();
        image.get_mut(&path).unwrap()[..64].fill(0xee);
        match open_or_untouched(&image) {
            Ok(mut log) => {
                assert!(!used.contains(&path));
                assert_fed(&log, 20);
                feed(&mut log, 21..=60);
                log.purge(FrameIndex(40));
                prepare(&mut log);
                assert_fed(&log, 60);
            }
            Err(LogError::Corrupt { file, offset: 0, .. }) => assert_eq!(file, path),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn the_message_of_a_corruption_names_file_and_offset() {
    let image = fed_image(14);
    let path = &used_segments(&image)[0];
    let (at, _) = frame_offsets(&image[path], 3)[2];
    let mut image = image.clone();
    image.get_mut(path).unwrap()[at + 41] ^= 4;
    let message = open(&image).err().unwrap().to_string();
    assert!(message.contains("0000000000000001.seg is corrupt at byte"), "{message}");
    assert!(message.contains(&at.to_string()), "{message}");
    assert!(message.contains("nothing was changed: restore"), "{message}");
}

#[test]
fn garbage_files_never_panic() {
    let mut rng = crate::disk::Rng(3);
    let image = fed_image(14);
    for round in 0..3000 {
        let mut image = image.clone();
        for path in segments(&image) {
            let bytes = image.get_mut(&path).unwrap();
            match rng.below(4) {
                0 => bytes.truncate(rng.below(1025) as usize),
                1 => {
                    let at = rng.below(bytes.len() as u64) as usize;
                    let to = (at + rng.below(64) as usize).min(bytes.len());
                    bytes[at..to].iter_mut().for_each(|b| *b = rng.next() as u8);
                }
                2 => bytes.resize(bytes.len() + rng.below(2000) as usize, 0xff),
                _ => {}
            }
        }
        assert_whole_or_refused(&image, 14, &format!("round {round}"));
    }
}
