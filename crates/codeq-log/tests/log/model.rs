//! Random histories of a log, compared with a list.

use codeq_log::{FrameIndex, Log, LogError};
use proptest::prelude::*;

use crate::disk::{Fuse, MemDisk, Rng};
use crate::support::*;

#[derive(Debug, Clone)]
enum Step {
    Append(Vec<u16>),
    Sync,
    Prepare,
    Purge(u8),
    Reopen,
    PowerCut(u64),
    /// The process dies at the n-th operation from here, then the power fails.
    Die(u8, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => prop::collection::vec(0..200_u16, 1..4).prop_map(Step::Append),
        6 => Just(Step::Sync),
        4 => Just(Step::Prepare),
        2 => any::<u8>().prop_map(Step::Purge),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(Step::PowerCut),
        2 => (0..30_u8, any::<u64>()).prop_map(|(n, seed)| Step::Die(n, seed)),
    ]
}

struct Model {
    disk: MemDisk,
    log: Log,
    /// Starts with frame 1; never shortened at the front.
    frames: Vec<Frame>,
    synced: u64,
    purged: u64,
    written: u64,
}

impl Model {
    fn new() -> Self {
        let disk = MemDisk::default();
        let log = Log::create(shared(&disk), &dir(), SMALL, NEW).unwrap();
        Self { disk, log, frames: Vec::new(), synced: 0, purged: 0, written: 0 }
    }

    /// Takes one step; fails only if the disk is failing.
    fn step(&mut self, step: &Step) -> Result<(), LogError> {
        match step {
            Step::Append(lens) => {
                self.written += 1;
                let body = |len: &u16| vec![self.written as u8; usize::from(*len)];
                let frame: Frame = lens.iter().map(|len| (*len, body(len))).collect();
                let room = self.log.room();
                match append(&mut self.log, &frame) {
                    Ok(index) => {
                        self.frames.push(frame);
                        assert_eq!(index, self.frames.len() as u64);
                        self.synced = self.log.synced_index().0;
                    }
                    Err(LogError::NoSegment { .. }) => assert!(room < len(&frame)),
                    Err(error) => return Err(error),
                }
            }
            Step::Sync => {
                self.log.sync()?;
                self.synced = self.frames.len() as u64;
            }
            Step::Prepare => {
                if let Some(Ok(prepared)) = self.log.next_job().map(|job| job.run()) {
                    self.log.provide(prepared);
                }
            }
            Step::Purge(part) => {
                let up_to = self.synced * u64::from(*part) / 255;
                self.log.purge(FrameIndex(up_to));
                self.purged = self.purged.max(up_to);
            }
            Step::Reopen => self.reopen(self.disk.clone()),
            Step::PowerCut(seed) => self.reopen(self.disk.power_cut(&mut Rng(*seed))),
            Step::Die(..) => {}
        }
        Ok(())
    }

    /// Opens what is left and compares it with the list.
    fn reopen(&mut self, disk: MemDisk) {
        self.log = Log::open(shared(&disk), &dir(), SMALL).unwrap();
        self.disk = disk;
        let (first, last) = (self.log.first_index().0, self.log.last_index().0);
        assert!(last >= self.synced, "{last} of {}", self.synced);
        assert!(first <= self.purged + 1, "{first} but purged {}", self.purged);
        let read = read(&self.log, first);
        assert_eq!(read.len() as u64, last + 1 - first);
        // The append that failed may have succeeded after all; then it is not in the list.
        let known = (self.frames.len() as u64).min(last);
        assert!(last <= self.frames.len() as u64 + 1);
        assert_eq!(
            read[..(known + 1 - first) as usize],
            self.frames[first as usize - 1..known as usize]
        );
        self.frames.truncate(last as usize);
        self.frames.extend(read.into_iter().skip((known + 1 - first) as usize));
        self.synced = last;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn only_unsynced_frames_are_ever_lost(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut model = Model::new();
        let mut dying = None;
        for step in &steps {
            if let (Step::Die(left, seed), None) = (step, dying) {
                model.disk.light(Fuse { op: None, left: u64::from(*left), dead: true });
                dying = Some(*seed);
                continue;
            }
            // No reopen while the disk is failing: it would have to succeed.
            let restarts = matches!(step, Step::Reopen | Step::PowerCut(_));
            if !(dying.is_some() && restarts) && model.step(step).is_ok() {
                continue;
            }
            let seed = dying.take().unwrap();
            model.disk.extinguish();
            model.reopen(model.disk.power_cut(&mut Rng(seed)));
        }
        model.disk.extinguish();
        model.reopen(model.disk.clone());
    }
}
