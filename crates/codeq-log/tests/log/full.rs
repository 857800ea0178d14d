//! A full disk: refused before anything changes, usable again once there is space.

use codeq_disk::Shortage;
use codeq_log::{FrameIndex, Log, LogError};

use crate::disk::MemDisk;
use crate::support::*;

#[test]
fn a_full_disk_leaves_the_log_usable_and_its_room_right() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=10);
    disk.set_capacity(Some(disk.used() + 500));
    let mut next = 11;
    loop {
        let frame = frame(next);
        let room = log.room();
        if let Some(job) = log.next_job() {
            let before = disk.used();
            let error = job.run().err().expect("no space");
            assert_eq!(error.shortage(), Some(Shortage::Space));
            assert_eq!(disk.used(), before, "the failed segment gave its space back");
            assert_eq!(log.room(), room);
        }
        match append(&mut log, &frame) {
            Ok(_) => log.sync().unwrap(),
            Err(LogError::NoSegment { needed }) => {
                assert!(room < needed);
                break;
            }
            Err(error) => panic!("{error}"),
        }
        next += 1;
    }
    assert_fed(&log, next - 1);
    assert_fed(&open(&disk.image()).unwrap(), next - 1);

    // A purge alone makes room, without new space.
    log.purge(FrameIndex(next - 1));
    let job = log.next_job().unwrap();
    log.provide(job.run().unwrap());
    assert!(log.room() >= len(&frame(next)));
    assert_eq!(append(&mut log, &frame(next)).unwrap(), next);
    log.sync().unwrap();

    // With new space, the log is back to normal.
    disk.set_capacity(None);
    feed(&mut log, next + 1..=next + 40);
    assert_fed(&open(&disk.image()).unwrap(), next + 40);
}
