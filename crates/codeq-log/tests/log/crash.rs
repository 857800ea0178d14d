//! Failures and crashes at every single operation.

use codeq_log::{FrameIndex, Log, LogError};

use crate::disk::{Fuse, MemDisk, OPS, Op, Rng};
use crate::support::*;

/// A log's history with everything in it: create, rotate, recycle, purge, reopen. Returns how many frames were
/// acknowledged before the first error.
fn live(disk: &MemDisk) -> (u64, Option<LogError>) {
    let mut acknowledged = 0;
    let error = try_live(disk, &mut acknowledged).err();
    (acknowledged, error)
}

fn try_live(disk: &MemDisk, acknowledged: &mut u64) -> Result<(), LogError> {
    let mut log = Log::create(shared(disk), &dir(), SMALL, NEW)?;
    for round in 0..3 {
        for n in round * 20 + 1..=round * 20 + 20 {
            while let Some(job) = log.next_job() {
                match job.run() {
                    Ok(prepared) => log.provide(prepared),
                    Err(_) => break,
                }
            }
            append(&mut log, &frame(n))?;
            if n % 3 == 0 {
                continue;
            }
            log.sync()?;
            *acknowledged = n;
            if n % 10 == 0 {
                log.purge(FrameIndex(n - 8));
            }
        }
        log.sync()?;
        *acknowledged = log.last_index().0;
        log = Log::open(shared(disk), &dir(), SMALL)?;
    }
    Ok(())
}

/// Acknowledged frames are there, and the log is usable.
fn assert_survives(disk: &MemDisk, acknowledged: u64, what: &str) {
    let mut log = match Log::open(shared(disk), &dir(), SMALL) {
        Ok(log) => log,
        Err(LogError::NotFound { .. }) if acknowledged == 0 => {
            Log::create(shared(disk), &dir(), SMALL, NEW).unwrap()
        }
        Err(error) => panic!("{what}: {error}"),
    };
    let last = log.last_index().0;
    assert!(last >= acknowledged, "{what}: {last} of {acknowledged}");
    assert!(log.first_index().0 <= acknowledged.saturating_sub(7).max(1), "{what}");
    assert_fed(&log, last);
    feed(&mut log, last + 1..=last + 15);
    drop(log);
    // What an open log has shown stays true, even after a power cut.
    let disk = disk.power_cut(&mut Rng(1));
    assert_fed(&Log::open(shared(&disk), &dir(), SMALL).unwrap(), last + 15);
}

#[test]
fn without_a_failure_every_frame_is_acknowledged() {
    let disk = MemDisk::default();
    let (acknowledged, error) = live(&disk);
    assert!(error.is_none() && acknowledged == 60);
    assert_survives(&disk, 60, "clean");
}

#[test]
fn any_one_operation_failing_costs_nothing_acknowledged() {
    for op in OPS {
        let mut runs = 0;
        for left in 0.. {
            let disk = MemDisk::default();
            disk.light(Fuse { op: Some(op), left, dead: false });
            let (acknowledged, error) = live(&disk);
            if !disk.extinguish() {
                break;
            }
            runs += 1;
            let what = format!("{op:?} {left}: {error:?}");
            assert_survives(&disk.power_cut(&mut Rng(left)), acknowledged, &what);
            assert_survives(&disk, acknowledged, &what);
        }
        assert!(runs >= 4, "{op:?} failed {runs} times only");
    }
}

#[test]
fn the_process_dying_at_any_operation_costs_nothing_acknowledged() {
    for left in 0.. {
        let disk = MemDisk::default();
        disk.light(Fuse { op: None, left, dead: true });
        let (acknowledged, _) = live(&disk);
        if !disk.extinguish() {
            break;
        }
        for seed in 0..12 {
            // A power cut consumes what was pending, so each one needs its own run.
            let disk = MemDisk::default();
            disk.light(Fuse { op: None, left, dead: true });
            assert_eq!(live(&disk).0, acknowledged);
            disk.extinguish();
            let what = format!("operation {left}, power cut {seed}");
            assert_survives(&disk.power_cut(&mut Rng(seed)), acknowledged, &what);
        }
        assert_survives(&disk, acknowledged, &format!("operation {left}"));
    }
}

#[test]
fn after_a_failed_write_or_sync_nothing_more_is_written() {
    for op in [Op::Write, Op::Sync] {
        let disk = MemDisk::default();
        let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
        feed(&mut log, 1..=5);
        append(&mut log, &frame(6)).unwrap();
        disk.light(Fuse { op: Some(op), left: 0, dead: false });
        assert!(matches!(log.sync(), Err(LogError::Io { .. })), "{op:?}");
        let image = disk.image();
        assert!(matches!(log.sync(), Err(LogError::Poisoned { .. })));
        assert!(matches!(append(&mut log, &frame(7)), Err(LogError::Poisoned { .. })));
        assert!(log.next_job().is_none());
        assert_eq!(log.room(), 0);
        assert_eq!(disk.image(), image);
        assert!(open(&image).unwrap().last_index().0 >= 5);
    }
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=5);
    disk.light(Fuse { op: Some(Op::Write), left: 0, dead: false });
    assert!(matches!(append(&mut log, &frame(6)), Err(LogError::Io { .. })));
    assert!(matches!(append(&mut log, &frame(6)), Err(LogError::Poisoned { .. })));
    assert_fed(&open(&disk.image()).unwrap(), 5);
}

#[test]
fn a_segment_that_cannot_be_made_poisons_the_log() {
    for op in [Op::Create, Op::Write, Op::Sync, Op::Rename, Op::SyncDir] {
        let disk = MemDisk::default();
        let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
        disk.light(Fuse { op: Some(op), left: 0, dead: false });
        let error = log.next_job().unwrap().run().err().unwrap();
        assert_eq!(error.shortage(), None, "{op:?}: {error}");
        assert!(matches!(append(&mut log, &frame(1)), Err(LogError::Poisoned { .. })), "{op:?}");
    }
}

#[test]
fn frames_whose_sync_failed_are_written_again_when_the_log_opens() {
    // The failed sync left them in memory only. The next process reads them there and shows them, and a plain sync
    // would succeed without writing them.
    let disk = MemDisk::default();
    let mut log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
    feed(&mut log, 1..=5);
    append(&mut log, &frame(6)).unwrap();
    append(&mut log, &frame(7)).unwrap();
    disk.light(Fuse { op: Some(Op::Sync), left: 0, dead: false });
    assert!(log.sync().is_err());
    drop(log);
    assert_fed(&Log::open(shared(&disk), &dir(), SMALL).unwrap(), 7);
    let disk = disk.power_cut(&mut Rng(0));
    assert_fed(&Log::open(shared(&disk), &dir(), SMALL).unwrap(), 7);
}
