//! What happens when the wall clock is set or the machine restarts: the table of `docs/reliability.md`, checked row by
//! row on a real engine with a fake clock.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::{Millis, NewTask};
use codeq_core::id::TaskId;
use codeq_core::place::Place;
use codeq_disk::RealDisk;
use codeq_engine::Engine;
use codeq_engine::clock::Clock;
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::harness::{TENANT, block, claim, claimed, created, enqueue, new_task, put, small, take};

const MINUTE: Millis = 60_000;
const HOUR: Millis = 60 * MINUTE;
const START: Millis = 1_700_000_000_000;

/// A machine's clocks.
#[derive(Default)]
struct Machine(Mutex<Times>);

#[derive(Default)]
struct Times {
    /// True time since the test began.
    real: Millis,
    up: Millis,
    boots: u64,
    ahead: i64,
}

impl Machine {
    fn pass(&self, time: Millis) {
        let mut now = self.0.lock();
        now.real += time;
        now.up += time;
    }

    fn real(&self) -> Millis {
        self.0.lock().real
    }

    fn set(&self, ahead: i64) {
        self.0.lock().ahead = ahead;
    }

    fn reboot(&self, off: Millis) {
        let mut now = self.0.lock();
        now.real += off;
        // This machine has been up for longer than the previous one, which must not matter.
        now.up = 1_000 * HOUR;
        now.boots += 1;
    }
}

impl Clock for Machine {
    fn wall(&self) -> Millis {
        let now = self.0.lock();
        (START + now.real).saturating_add_signed(now.ahead)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.lock().up)
    }

    fn boot(&self) -> Option<u64> {
        Some(self.0.lock().boots)
    }
}

/// An event.
#[derive(Debug, Clone, Copy)]
enum Step {
    Pass(Millis),
    SetClock(i64),
    /// Time passes while the machine sleeps: its boot clock continues.
    Sleep(Millis),
    Stop,
    Start,
    Reboot(Millis),
    /// No event, but a check: by the wall clock the task's date has passed, so it is claimable.
    DateHasPassed,
}
use Step::*;

/// A row of the table: the events, and after how much true time a lease, a delay and a date of one hour end.
struct Row {
    name: &'static str,
    steps: &'static [Step],
    lease: Millis,
    delay: Millis,
    date: Millis,
}

const TEN: i64 = 10 * HOUR as i64;

const TABLE: &[Row] = &[
    Row {
        name: "set ahead while running",
        steps: &[Pass(10 * MINUTE), SetClock(TEN)],
        lease: HOUR,
        delay: HOUR,
        date: 10 * MINUTE,
    },
    Row {
        name: "set back while running",
        steps: &[Pass(10 * MINUTE), SetClock(-TEN)],
        lease: HOUR,
        delay: HOUR,
        date: 11 * HOUR,
    },
    Row {
        name: "ahead when the server starts",
        steps: &[Pass(10 * MINUTE), Stop, SetClock(TEN), Start],
        lease: HOUR,
        delay: HOUR,
        date: 10 * MINUTE,
    },
    Row {
        name: "behind when the server starts",
        steps: &[Pass(10 * MINUTE), Stop, SetClock(-TEN), Start],
        lease: HOUR,
        delay: HOUR,
        date: 11 * HOUR,
    },
    Row {
        name: "wrong, and corrected later",
        steps: &[
            Stop,
            SetClock(TEN),
            Start,
            DateHasPassed,
            Pass(20 * MINUTE),
            SetClock(0),
            Pass(10 * MINUTE),
        ],
        lease: HOUR,
        delay: HOUR,
        date: HOUR,
    },
    Row {
        name: "right; the process is restarted",
        steps: &[Pass(10 * MINUTE), Stop, Pass(20 * MINUTE), Start],
        lease: HOUR,
        delay: HOUR,
        date: HOUR,
    },
    Row {
        name: "right; the machine is rebooted",
        steps: &[Pass(10 * MINUTE), Stop, Reboot(30 * MINUTE), Start],
        lease: HOUR + 30 * MINUTE,
        delay: HOUR + 30 * MINUTE,
        date: HOUR,
    },
    Row {
        name: "right; the machine sleeps",
        steps: &[Pass(10 * MINUTE), Sleep(20 * MINUTE)],
        lease: HOUR,
        delay: HOUR,
        date: HOUR,
    },
];

struct World {
    machine: Arc<Machine>,
    dir: TempDir,
    seed: u64,
    engine: Option<Engine>,
    leased: TaskId,
    delayed: TaskId,
    dated: TaskId,
}

impl World {
    fn new() -> World {
        World::with_seed(1)
    }

    /// Directories differ by the seed they are created with.
    fn with_seed(seed: u64) -> World {
        let (machine, dir) = (Arc::new(Machine::default()), tempfile::tempdir().unwrap());
        let engine = open(&dir, &machine, seed);
        let add = |task: NewTask| {
            created(engine.propose_blocking(enqueue(vec![task], 7)).unwrap()).remove(0).id
        };
        let leased = add(new_task("leased", "1"));
        let delayed = add(NewTask { delay: Some(HOUR), ..new_task("delayed", "1") });
        let dated = add(NewTask { run_at: Some(START + HOUR), ..new_task("dated", "1") });
        let hour = codeq_core::command::Claim { lease: HOUR, ..claim("leased", 1) };
        assert_eq!(claimed(block(engine.claim(hour, 0)).unwrap()).len(), 1);
        World { machine, dir, seed, engine: Some(engine), leased, delayed, dated }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn step(&mut self, step: Step) {
        match step {
            Pass(time) | Sleep(time) => self.machine.pass(time),
            SetClock(ahead) => self.machine.set(ahead),
            Stop => self.engine = None,
            Start => self.engine = Some(open(&self.dir, &self.machine, self.seed)),
            Reboot(off) => self.machine.reboot(off),
            DateHasPassed => {
                self.look();
                assert_eq!(self.place(self.dated), Place::Pending);
            }
        }
    }

    /// A claim that finds nothing, but handles whatever is due.
    fn look(&self) {
        assert!(take(self.engine(), "nothing", 1).is_empty());
    }

    fn place(&self, id: TaskId) -> Place {
        block(self.engine().task(TENANT, id)).unwrap().unwrap().place
    }

    /// Whether the lease has ended, or the task can be claimed.
    fn is_over(&self, id: TaskId) -> bool {
        self.look();
        match self.place(id) {
            Place::InProgress => false,
            Place::Delayed => id == self.leased,
            Place::Pending => true,
            other => panic!("{other:?}"),
        }
    }

    /// Lets time pass until this much has passed in total; `None` if it already has.
    fn pass_until(&self, real: Millis) -> Option<()> {
        let left = real.checked_sub(self.machine.real())?;
        self.machine.pass(left);
        Some(())
    }
}

fn open(dir: &TempDir, machine: &Arc<Machine>, seed: u64) -> Engine {
    let clock = Arc::clone(machine) as Arc<dyn Clock>;
    Engine::open_with(Arc::new(RealDisk), dir.path(), small(), clock, seed).unwrap()
}

#[test]
fn the_documented_clock_behaviour_holds() {
    for row in TABLE {
        let mut world = World::new();
        row.steps.iter().for_each(|step| world.step(*step));
        // Dates are shown by the clock as it is set now.
        let wall = world.machine.wall();
        assert_eq!(put(world.engine(), "new", "1").created_at, wall, "{}", row.name);
        let task = block(world.engine().task(TENANT, world.leased)).unwrap().unwrap();
        let left = row.lease - world.machine.real();
        assert_eq!(task.lease_until, Some(wall + left), "{}", row.name);
        // A lease lasts to the end of its last millisecond.
        let mut ends = [
            ("lease", world.leased, row.lease + 1),
            ("delay", world.delayed, row.delay),
            ("date", world.dated, row.date),
        ];
        ends.sort_by_key(|(_, _, end)| *end);
        for (what, id, end) in ends {
            if world.pass_until(end - 1).is_some() {
                assert!(!world.is_over(id), "{}: the {what} ends early", row.name);
            }
            let _ = world.pass_until(end);
            assert!(world.is_over(id), "{}: the {what} ends late", row.name);
        }
        assert_eq!(take(world.engine(), "dated", 2).len(), 1, "{}", row.name);
    }
}

#[test]
fn the_documentation_has_the_same_rows() {
    let manual = include_str!("../../../../docs/reliability.md");
    let section = manual.split("\n## Clocks\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let names: Vec<&str> = rows.skip(1).filter_map(|row| row.split(" | ").next()).collect();
    assert_eq!(names, TABLE.iter().map(|row| row.name).collect::<Vec<_>>());
}

/// Without any request, the shard itself notices that the wall clock was set.
#[test]
fn a_waiting_claim_is_served_soon_after_the_wall_clock_is_set() {
    let world = World::new();
    let (engine, machine) = (world.engine(), Arc::clone(&world.machine));
    let served = block(async {
        let waiting = engine.claim(claim("dated", 1), HOUR);
        let set = async {
            while engine.waiting_claims() == 0 {
                tokio::task::yield_now().await;
            }
            machine.set(TEN);
        };
        let (served, ()) = tokio::join!(waiting, set);
        served
    });
    assert_eq!(claimed(served.unwrap())[0].id, world.dated);
}

/// After a power cut the file is up to a minute old, and what it misses makes nothing early.
#[test]
fn a_lost_clock_reading_makes_deadlines_late_and_never_early() {
    for damage in ["gone", "cut", "flipped", "another directory's"] {
        let mut world = World::new();
        world.step(Pass(10 * MINUTE));
        world.step(Stop);
        let path = world.dir.path().join("CLOCK");
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            "gone" => std::fs::remove_file(&path).unwrap(),
            "cut" => std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap(),
            "flipped" => {
                let at = bytes.len() - 20;
                bytes[at] ^= 1;
                std::fs::write(&path, &bytes).unwrap();
            }
            _ => {
                let mut other = World::with_seed(2);
                other.step(Pass(500 * HOUR));
                other.step(Stop);
                std::fs::copy(other.dir.path().join("CLOCK"), &path).unwrap();
            }
        }
        world.step(SetClock(TEN));
        world.step(Start);
        // Engine time continues from the last logged command, which was at the very beginning.
        world.pass_until(HOUR + 10 * MINUTE - 1).unwrap();
        assert!(!world.is_over(world.delayed), "{damage}");
        world.step(Pass(1));
        assert!(world.is_over(world.delayed), "{damage}");
    }
}
