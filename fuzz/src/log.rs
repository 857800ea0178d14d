//! Segments and the watermark of a log.

use std::path::Path;

use codeq_log::{FRAME_HEADER_BYTES, Log, LogError, Options, SEGMENT_HEADER_BYTES, verify};
use codeq_sim::disk::SimDisk;

const OPTIONS: Options = Options { segment_bytes: 1024 };

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../../crates/codeq-log/tests/fixtures/v1/", $name)))),*]
    };
}

/// A log with a torn end: the fixture of the first version.
const SEGMENTS: [(&str, &[u8; 1024]); 8] = files![
    "0000000000000001.spare",
    "0000000000000003.seg",
    "0000000000000004.seg",
    "0000000000000005.seg",
    "0000000000000006.seg",
    "0000000000000007.seg",
    "0000000000000008.seg",
    "0000000000000009.seg"
];
const WATERMARK: [(&str, &[u8; 8192]); 1] = files!["watermark"];

/// The first byte chooses a file, the next two a position in it, and the fourth says whether to correct the checksums. The
/// other bytes are written at that position. Opening the changed log and verifying it must reach the same verdict.
pub fn run(data: &[u8]) {
    let Some(([file, low, high, mend], patch)) = data.split_first_chunk::<4>() else { return };
    let mut files: Vec<(&str, Vec<u8>)> =
        SEGMENTS.iter().map(|(name, bytes)| (*name, bytes.to_vec())).collect();
    files.extend(WATERMARK.iter().map(|(name, bytes)| (*name, bytes.to_vec())));
    let changed = usize::from(*file) % files.len();
    let bytes = &mut files[changed].1;
    let at = usize::from(u16::from_le_bytes([*low, *high])) % bytes.len();
    bytes[at..].iter_mut().zip(patch).for_each(|(to, from)| *to = *from);
    if mend % 2 == 1 && changed < SEGMENTS.len() {
        mend_checksums(bytes);
    }
    let dir = Path::new("/log");
    let disk = SimDisk::new(1).shared();
    disk.create_dir_all(dir).expect("a directory");
    for (name, bytes) in files {
        let file = disk.create(&dir.join(name)).expect("a file");
        file.write_all_at(&bytes, 0).and_then(|()| file.sync_data()).expect("bytes");
    }
    disk.sync_dir(dir).expect("a directory");
    let verdict = verify(&*disk, dir);
    match Log::open(disk, dir, OPTIONS) {
        Ok(log) => {
            let last = verdict.map(|report| report.last_index);
            assert_eq!(last.ok(), Some(log.last_index()));
            let _ = log.replay(log.first_index(), |_, _, _| Ok::<_, LogError>(()));
        }
        Err(error) => assert_eq!(Some(error.to_string()), verdict.err().map(|e| e.to_string())),
    }
}

/// Gives every frame of a segment a checksum that fits, in its own header and in that of the next.
fn mend_checksums(segment: &mut [u8]) {
    let (mut at, mut before) = (SEGMENT_HEADER_BYTES as usize, None::<[u8; 4]>);
    while let Some((payload, _)) = segment.get(at + 4..).and_then(<[u8]>::split_first_chunk) {
        let length = FRAME_HEADER_BYTES as usize + u32::from_le_bytes(*payload) as usize;
        let Some(frame) = at.checked_add(length).and_then(|end| segment.get_mut(at..end)) else {
            return;
        };
        if let Some(before) = before {
            frame[32..36].copy_from_slice(&before);
        }
        let crc = crc32c::crc32c(&frame[4..]).to_le_bytes();
        frame[..4].copy_from_slice(&crc);
        before = Some(crc);
        at += length;
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let header = SEGMENT_HEADER_BYTES as u8;
    vec![
        vec![1, 0, 0, 0],
        vec![2, header + 4, 0, 1, 0, 0],
        vec![3, header + 36, 0, 1, 9],
        vec![4, header + 40, 0, 1, 0, 0, 255, 255],
        vec![7, header + 16, 0, 1, 0],
        vec![8, 0, 0, 0, 1, 2, 3],
    ]
}
