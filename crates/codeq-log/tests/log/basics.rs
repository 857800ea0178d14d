//! What a log does when nothing goes wrong.

use codeq_log::{
    FRAME_HEADER_BYTES, FrameIndex, Log, LogError, MAX_SPARE_SEGMENTS, NewLog, Options,
    PREPARED_SEGMENTS, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, verify,
};

use crate::disk::MemDisk;
use crate::support::*;

#[test]
fn records_come_back_in_order_after_a_reopen() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("log");
    let mut log = Log::create(real(), &dir, SMALL, NEW).unwrap();
    assert_eq!((log.first_index().0, log.last_index().0, log.synced_index().0), (1, 0, 0));
    assert_eq!(log.append(&[(1, b"a"), (2, b""), (1, b"bc")]).unwrap().index, FrameIndex(1));
    assert_eq!(log.append(&[]).unwrap().index, FrameIndex(2));
    assert_eq!(log.append(&[(65535, b"d")]).unwrap().index, FrameIndex(3));
    assert_eq!(log.synced_index().0, 0);
    log.sync().unwrap();
    assert_eq!(log.synced_index().0, 3);
    drop(log);

    let log = Log::open(real(), &dir, SMALL).unwrap();
    let expected: Vec<Frame> = vec![
        vec![(1, b"a".to_vec()), (2, vec![]), (1, b"bc".to_vec())],
        vec![],
        vec![(65535, b"d".to_vec())],
    ];
    assert_eq!(read(&log, 1), expected);
    assert_eq!(read(&log, 3), expected[2..]);
    assert_eq!(read(&log, 4), Vec::<Frame>::new());
    assert_eq!(log.log_id(), NEW.log_id);
}

#[test]
fn many_frames_rotate_through_segments_on_a_real_disk() {
    let tmp = tempfile::tempdir().unwrap();
    let mut log = Log::create(real(), tmp.path(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=60);
    assert_fed(&log, 60);
    drop(log);
    let mut log = Log::open(real(), tmp.path(), SMALL).unwrap();
    assert_fed(&log, 60);
    feed(&mut log, 61..=90);
    assert_fed(&log, 90);
    drop(log);
    let report = verify(&*real(), tmp.path()).unwrap();
    assert_eq!((report.first_index.0, report.last_index.0, report.watermark.0), (1, 90, 90));
    assert_eq!(report.torn_bytes, 0);
    let unused = report.segments.iter().filter(|s| s.first_index.is_none()).count();
    assert_eq!(unused, PREPARED_SEGMENTS);
}

#[test]
fn purged_segments_are_recycled_and_their_old_frames_stay_gone() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    let mut most_files = 0;
    for n in 1..=400 {
        feed(&mut log, n..=n);
        log.purge(FrameIndex(n.saturating_sub(10)));
        prepare(&mut log);
        assert!(log.first_index().0 <= n.saturating_sub(10) + 1);
        most_files = most_files.max(disk.image().len());
        if n % 7 == 0 {
            drop(log);
            log = Log::open(shared(&disk), &dir(), SMALL).unwrap();
            assert_fed(&log, n);
        }
    }
    assert!(log.first_index().0 > 370, "{}", log.first_index().0);
    // 10 frames take at most 3 segments; then there are the watermark and the files kept ready.
    assert!(most_files <= 3 + 1 + PREPARED_SEGMENTS + MAX_SPARE_SEGMENTS, "{most_files}");
}

#[test]
fn a_large_purge_frees_disk_space() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=300);
    log.purge(FrameIndex(300));
    prepare(&mut log);
    assert!(names(&disk, &dir(), ".spare") <= MAX_SPARE_SEGMENTS);
    assert_eq!(names(&disk, &dir(), ".seg"), 1 + PREPARED_SEGMENTS);
    assert_eq!(names(&disk, &dir(), ".new"), 0);
    assert_fed(&log, 300);
}

#[test]
fn purge_keeps_what_is_needed() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=40);
    log.purge(FrameIndex(0));
    assert_eq!(log.first_index().0, 1);
    log.purge(FrameIndex(20));
    let first = log.first_index().0;
    assert!(first > 1 && first <= 21, "{first}");
    assert!(matches!(
        log.replay(FrameIndex(first - 1), |_, _, _| Ok::<_, LogError>(())),
        Err(LogError::Purged { .. })
    ));
    // Not yet removed from the directory: part of the log again, and harmless.
    let again = open(&disk.image()).unwrap();
    assert_eq!(again.first_index().0, 1);
    assert_fed(&again, 40);
    prepare(&mut log);
    let again = open(&disk.image()).unwrap();
    assert_eq!(again.first_index().0, first);
    assert_fed(&again, 40);
    log.purge(FrameIndex(u64::MAX));
    assert!(log.first_index().0 <= 40);
    assert_fed(&log, 40);
}

#[test]
fn purge_waits_until_the_next_segment_is_durable() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    prepare(&mut log);
    let big = vec![(0, vec![7; 700])];
    append(&mut log, &big).unwrap();
    append(&mut log, &big).unwrap();
    assert_eq!(log.synced_index().0, 1, "a rotation syncs");
    log.purge(FrameIndex(2));
    assert_eq!(log.first_index().0, 1);
    log.sync().unwrap();
    log.purge(FrameIndex(2));
    assert_eq!(log.first_index().0, 2);
}

#[test]
fn a_log_can_start_anywhere() {
    let disk = MemDisk::default();
    let new = NewLog { first_index: FrameIndex(1000), ..NEW };
    let mut log = Log::create(shared(&disk), &dir(), SMALL, new).unwrap();
    assert_eq!((log.first_index().0, log.last_index().0), (1000, 999));
    let log2 = open(&disk.image()).unwrap();
    assert_eq!((log2.first_index().0, log2.last_index().0), (1000, 999));
    feed(&mut log, 1000..=1030);
    assert_fed(&open(&disk.image()).unwrap(), 1030);
    assert!(matches!(
        log.replay(FrameIndex(1032), |_, _, _| Ok::<_, LogError>(())),
        Err(LogError::BeyondEnd { from: FrameIndex(1032), last: FrameIndex(1030) })
    ));
}

#[test]
fn a_log_is_not_created_over_another_nor_opened_where_none_is() {
    let tmp = tempfile::tempdir().unwrap();
    let absent = tmp.path().join("absent");
    assert!(matches!(Log::open(real(), &absent, SMALL), Err(LogError::NotFound { .. })));
    assert!(matches!(Log::open(real(), tmp.path(), SMALL), Err(LogError::NotFound { .. })));
    drop(Log::create(real(), tmp.path(), SMALL, NEW).unwrap());
    assert!(matches!(
        Log::create(real(), tmp.path(), SMALL, NEW),
        Err(LogError::AlreadyExists { .. })
    ));
    let tiny = Options { segment_bytes: 100 };
    assert!(matches!(Log::open(real(), tmp.path(), tiny), Err(LogError::SegmentTooSmall { .. })));
}

#[test]
fn the_longest_frame_fits_and_a_longer_one_is_refused() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    let overhead = SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES + RECORD_HEADER_BYTES;
    let longest = vec![7; (SMALL.segment_bytes - overhead) as usize];
    let longer = [longest.as_slice(), &[0]].concat();
    assert!(matches!(log.append(&[(0, &longer)]), Err(LogError::FrameTooLarge { .. })));
    log.append(&[(0, &longest)]).unwrap();
    assert_eq!(log.room(), 0);
    assert!(matches!(log.append(&[]), Err(LogError::NoSegment { needed: 40 })));
    prepare(&mut log);
    assert_eq!(log.append(&[(0, &longest)]).unwrap().index, FrameIndex(2));
    assert_eq!(log.synced_index().0, 1);
    log.sync().unwrap();
    assert_eq!(open(&disk.image()).unwrap().last_index().0, 2);
}

#[test]
fn segments_may_change_their_length_between_runs() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=20);
    drop(log);
    for (step, segment_bytes) in [4096, 512, 2048].into_iter().enumerate() {
        let mut log = Log::open(shared(&disk), &dir(), Options { segment_bytes }).unwrap();
        let last = 20 + 40 * step as u64;
        feed(&mut log, last + 1..=last + 40);
        log.purge(FrameIndex(last));
        prepare(&mut log);
        assert_fed(&log, last + 40);
    }
}

#[test]
fn prepared_segments_of_another_length_do_not_count_as_room() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=20);
    drop(log);
    let longer = Options { segment_bytes: 4096 };
    let mut log = Log::open(shared(&disk), &dir(), longer).unwrap();
    assert!(log.room() < SMALL.segment_bytes);
    let body = [7; 2000];
    assert!(matches!(log.append(&[(0, &body)]), Err(LogError::NoSegment { .. })));
    prepare(&mut log);
    assert!(log.room() >= 4096 - SEGMENT_HEADER_BYTES);
    log.append(&[(0, &body)]).unwrap();
}

#[test]
fn promised_room_can_always_be_used() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    let mut rng = crate::disk::Rng(7);
    for _ in 0..300 {
        for _ in 0..rng.below(3) {
            if let Some(job) = log.next_job() {
                log.provide(job.run().unwrap());
            }
        }
        let mut room = log.room();
        loop {
            let body = vec![1; rng.below(1024 - 64 - 46) as usize];
            let records: [(u16, &[u8]); 1] = [(0, &body)];
            let len = codeq_log::frame_len(&records);
            if len > room {
                break;
            }
            log.append(&records).unwrap();
            room -= len;
        }
        log.purge(log.synced_index());
    }
    assert!(log.last_index().0 > 300);
}

#[test]
fn one_job_at_a_time_and_a_dropped_one_is_repeated() {
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    let job = log.next_job().unwrap();
    assert!(log.next_job().is_none());
    let prepared = job.run().unwrap();
    assert!(log.next_job().is_none());
    drop(prepared);
    feed(&mut log, 1..=40);
    log.purge(FrameIndex(40));
    prepare(&mut log);
    assert!(log.next_job().is_none());
    assert_eq!(names(&disk, &dir(), ".seg"), 1 + PREPARED_SEGMENTS);
    assert_fed(&open(&disk.image()).unwrap(), 40);
}

#[test]
fn segments_are_prepared_on_another_thread_while_the_log_is_written() {
    let tmp = tempfile::tempdir().unwrap();
    let mut log = Log::create(real(), tmp.path(), SMALL, NEW).unwrap();
    let mut job = None;
    for n in 1..=200 {
        loop {
            if job.is_none() {
                job = log.next_job().map(|job| std::thread::spawn(move || job.run().unwrap()));
            }
            let enough = log.room() >= len(&frame(n));
            if let Some(done) = job.take_if(|job| !enough || job.is_finished()) {
                log.provide(done.join().unwrap());
            }
            if enough {
                break;
            }
        }
        append(&mut log, &frame(n)).unwrap();
        log.sync().unwrap();
        log.purge(FrameIndex(n.saturating_sub(20)));
    }
    drop(job.map(|job| job.join()));
    drop(log);
    assert_fed(&Log::open(real(), tmp.path(), SMALL).unwrap(), 200);
}

/// The owner may be another thread than the one that opened the log.
const _: fn() = || {
    fn assert_send<T: Send>() {}
    assert_send::<Log>();
};
