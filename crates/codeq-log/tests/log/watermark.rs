//! The watermark: what it protects, and what it survives.

use codeq_log::{FrameIndex, Log, LogError, verify};

use crate::disk::{Image, MemDisk};
use crate::support::*;

fn mark(image: &mut Image) -> &mut Vec<u8> {
    image.get_mut(&dir().join("watermark")).unwrap()
}

/// Removes the last frames from the log, like a disk that lied about its syncs.
fn without_last_frames(image: &Image, count: usize) -> Image {
    let mut image = image.clone();
    let report = verify(&MemDisk::from_image(&image), &dir()).unwrap();
    let last = report.segments.iter().rfind(|s| s.first_index.is_some()).unwrap();
    let frames = (report.last_index.0 + 1 - last.first_index.unwrap().0) as usize;
    let bytes = image.get_mut(&last.file).unwrap();
    let (at, _) = frame_offsets(bytes, frames)[frames - count];
    bytes[at..].fill(0xff);
    image
}

#[test]
fn a_log_shorter_than_acknowledged_is_refused_with_the_numbers() {
    let image = without_last_frames(&fed_image(14), 1);
    let Err(error) = open_or_untouched(&image) else { panic!("opened") };
    assert!(matches!(
        error,
        LogError::ShorterThanAcknowledged {
            last: FrameIndex(13),
            acknowledged: FrameIndex(14),
            ..
        }
    ));
    let message = error.to_string();
    for part in ["frame 13", "frame 14", ".seg", "restore", "nothing was changed"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn one_intact_slot_is_enough() {
    let image = fed_image(14);
    for slot in [0, 4096] {
        for byte in 0..32 {
            let mut image = image.clone();
            mark(&mut image)[slot + byte] ^= 0x10;
            let disk = MemDisk::from_image(&image);
            assert!(verify(&disk, &dir()).unwrap().watermark.0 >= 13);
            assert_fed(&Log::open(shared(&disk), &dir(), SMALL).unwrap(), 14);
            assert_eq!(verify(&disk, &dir()).unwrap().watermark.0, 14);
            // Both slots are valid again, or the next sync would be the second fault.
            assert_fed(&open(&disk.image()).unwrap(), 14);
        }
    }
    // Without its newest slot, the watermark still covers all but the newest frame.
    let mut image = without_last_frames(&image, 2);
    let newest = usize::from(mark(&mut image)[4096 + 20] == 14) * 4096;
    mark(&mut image)[newest] ^= 1;
    assert!(matches!(
        open_or_untouched(&image),
        Err(LogError::ShorterThanAcknowledged {
            last: FrameIndex(12),
            acknowledged: FrameIndex(13),
            ..
        })
    ));
}

#[test]
fn the_older_slot_is_written_next() {
    let slots = |disk: &MemDisk| {
        let bytes = mark(&mut disk.image()).clone();
        let mut slots = [bytes[20], bytes[4096 + 20]];
        slots.sort_unstable();
        slots
    };
    for count in [13, 14] {
        let disk = MemDisk::from_image(&fed_image(count));
        let mut log = Log::open(shared(&disk), &dir(), SMALL).unwrap();
        feed(&mut log, count + 1..=count + 3);
        let last = count as u8 + 3;
        assert_eq!(slots(&disk), [last - 1, last]);
        append(&mut log, &frame(count + 4)).unwrap();
        drop(log);
        drop(Log::open(shared(&disk), &dir(), SMALL).unwrap());
        assert_eq!(slots(&disk), [last, last + 1]);
    }
}

#[test]
fn without_a_watermark_nothing_opens() {
    let image = fed_image(14);
    let mut zeros = image.clone();
    mark(&mut zeros).fill(0);
    let mut short = image.clone();
    mark(&mut short).truncate(10);
    let mut absent = image.clone();
    absent.remove(&dir().join("watermark"));
    for image in [zeros, short, absent] {
        let Err(error) = open_or_untouched(&image) else { panic!("opened") };
        assert!(matches!(error, LogError::NoWatermark { .. }), "{error}");
        let disk = MemDisk::from_image(&image);
        let created = Log::create(shared(&disk), &dir(), SMALL, NEW);
        assert!(matches!(created, Err(LogError::AlreadyExists { .. })));
        assert_eq!(disk.image(), image);
    }
}

#[test]
fn a_watermark_of_another_log_is_refused() {
    let disk = MemDisk::default();
    let other = codeq_log::NewLog { log_id: 5, ..NEW };
    drop(Log::create(shared(&disk), &dir(), SMALL, other).unwrap());
    let other = mark(&mut disk.image()).clone();
    let mut image = fed_image(14);
    let own = mark(&mut image).clone();
    *mark(&mut image) = other.clone();
    assert!(matches!(open_or_untouched(&image), Err(LogError::Foreign { .. })));
    mark(&mut image)[..4096].copy_from_slice(&own[..4096]);
    assert!(matches!(open_or_untouched(&image), Err(LogError::Foreign { .. })));
}

#[test]
fn an_old_watermark_does_no_harm() {
    let mut image = fed_image(14);
    *mark(&mut image) = mark(&mut fed_image(3)).clone();
    assert_fed(&open(&image).unwrap(), 14);
}
