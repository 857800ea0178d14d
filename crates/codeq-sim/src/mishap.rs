//! What goes wrong in a run, how the run recovers, and how time passes.

use codeq_core::command::Millis;
use codeq_engine::Durability;

use crate::disk::{Class, Faults};
use crate::invariants::Violation;
use crate::server::{Server, Stopped};
use crate::simulator::{Run, mark_applied};

/// Maximum number of consecutive crashes during a restart.
const RESTARTS_MAX: u64 = 4;
/// Maximum number of deadlines that are visited one by one when much time passes at once.
const DEADLINES_MAX: usize = 40;

impl Run {
    /// Perhaps lets something go wrong now.
    pub(crate) fn mishap(&mut self) {
        if self.fault_left > 0 {
            self.fault_left -= 1;
            if self.fault_left == 0 {
                self.disk.plan(Faults::default());
            }
        }
        let mishaps = self.plan.mishaps.clone();
        if self.rng.chance(mishaps.kill) {
            self.crash_and_restart(false);
        }
        if self.rng.chance(mishaps.power_cut) {
            if self.rng.chance(50) {
                self.crash_and_restart(true);
            } else {
                let at = self.rng.between(1, 6);
                self.fault(Faults { cut_at_sync: Some(at), ..Faults::default() });
            }
        }
        if self.rng.chance(mishaps.io_error) {
            let class = if self.rng.chance(50) { Class::Log } else { Class::Store };
            let nth = Some((class, self.rng.between(1, 8)));
            let faults = match self.rng.chance(50) {
                true => Faults { fail_write: nth, ..Faults::default() },
                false => Faults { fail_sync: nth, ..Faults::default() },
            };
            self.fault(faults);
        }
        if self.rng.chance(mishaps.full) {
            let capacity = Some(self.disk.used() + self.rng.below(256 << 10));
            self.fault(Faults { capacity, ..Faults::default() });
        }
        if self.rng.chance(mishaps.slow) {
            let sync_cost = self.rng.between(1, 3_000);
            self.fault(Faults { sync_cost, ..Faults::default() });
        }
        if self.rng.chance(mishaps.jump) {
            self.set_clock();
        }
    }

    /// Sets the wall clock: to the right time, up to an hour off, or ten hours off.
    fn set_clock(&mut self) {
        const HOUR: i64 = 3_600_000;
        let ahead = match self.rng.below(6) {
            0 | 1 => 0,
            2 => 10 * HOUR,
            3 => -10 * HOUR,
            _ => self.rng.between(0, 2 * HOUR as u64) as i64 - HOUR,
        };
        self.clock.set(ahead);
    }

    fn fault(&mut self, faults: Faults) {
        self.fault_left = self.rng.between(1, 12);
        self.disk.plan(faults);
    }

    /// Kills the process, with or without a power cut, and restarts it; perhaps more than once.
    pub(crate) fn crash_and_restart(&mut self, power_cut: bool) {
        let mut power_cut = power_cut;
        for attempt in 0.. {
            self.crash(power_cut);
            let may_cut = self.plan.durability == Durability::Fsync && attempt < RESTARTS_MAX;
            if may_cut && self.rng.chance(20) {
                let at = self.rng.between(1, 12);
                self.disk.plan(Faults { cut_at_sync: Some(at), ..Faults::default() });
            }
            let rng = self.rng.fork("server");
            let opened = Server::open(&self.disk, &self.clock, &self.engine, rng, &self.saboteur);
            self.rng.draw();
            let died = self.disk.is_dead();
            match opened {
                Ok(server) if !died => {
                    self.disk.plan(Faults::default());
                    self.server = Some(server);
                    break;
                }
                Err(error) if !died => {
                    let text = format!("the server does not start after a crash: {error}");
                    self.report.violations.push(Violation::new(1, text));
                    return;
                }
                _ => power_cut = true,
            }
        }
        self.check_restart();
    }

    fn crash(&mut self, power_cut: bool) {
        self.collect();
        self.report.crashes += 1;
        self.fault_left = 0;
        // The disk first: a dead process writes nothing more, whatever its destructors try.
        if power_cut {
            self.disk.power_cut();
            let off = self.rng.between(0, 7_200_000);
            self.clock.reboot(off);
            self.report.simulated += off;
        } else {
            self.disk.kill();
        }
        // At a start, a wrong clock does the most harm.
        if self.plan.mishaps.jump > 0 && self.rng.chance(20) {
            self.set_clock();
        }
        self.server = None;
        self.lose_in_flight();
        self.saboteur.crashed();
    }

    fn check_restart(&mut self) {
        let Some(server) = &self.server else { return };
        let (engine, real) = (server.now().now, self.clock.real());
        if engine > real {
            let text = format!(
                "after a restart engine time is {engine}, but the true time is {real}: leases and delays \
                 would end early"
            );
            self.report.violations.push(Violation::new(8, text));
        }
        let last = server.node.log.last_index();
        self.trace(last.0);
        match self.model.recovered(last) {
            Ok(None) => self.check_rows("after a restart"),
            Ok(Some(violation)) => {
                self.report.violations.push(violation);
                // From here on, the model and the server differ for good.
                self.server = None;
            }
            Err(error) => {
                let text = format!("the log cannot be applied: {error}");
                self.report.violations.push(Violation::new(14, text));
                self.server = None;
            }
        }
    }

    /// Lets time pass between two steps.
    pub(crate) fn pass_time(&mut self) -> Result<(), Stopped> {
        let total = self.plan.pace.iter().sum();
        let mut draw = self.rng.below(total);
        let mut kind = 0;
        for weight in self.plan.pace {
            if draw < weight {
                break;
            }
            draw -= weight;
            kind += 1;
        }
        let by = match kind {
            0 => 0,
            1 => self.rng.between(1, 50),
            2 => self.rng.between(1, 30_000),
            3 => self.until_a_deadline(),
            4 => self.rng.between(60_000, 1_800_000),
            _ => self.rng.between(3_600_000, 21_600_000),
        };
        let outcome = match by > 1_000 && self.rng.chance(70) {
            true => self.pass_awake(by),
            false => {
                self.advance(by);
                Ok(())
            }
        };
        self.look_for_callbacks();
        outcome
    }

    fn advance(&mut self, by: Millis) {
        self.clock.advance(by);
        self.report.simulated += by;
    }

    /// Time until a moment near a deadline: the deadline itself, or one millisecond before or after.
    fn until_a_deadline(&mut self) -> Millis {
        let Some(server) = &self.server else { return 0 };
        let now = server.now().now;
        let mut waits: Vec<Millis> = server.wait().into_iter().collect();
        waits.extend(self.workload.lease_ends().map(|end| end.saturating_sub(now)));
        waits.retain(|wait| *wait > 0);
        waits.sort_unstable();
        waits.truncate(4);
        let wait = self.rng.pick(&waits).copied().unwrap_or(0);
        (wait + self.rng.between(0, 2)).saturating_sub(1)
    }

    /// Lets much time pass; the server wakes up for every deadline on the way.
    fn pass_awake(&mut self, by: Millis) -> Result<(), Stopped> {
        let mut left = by;
        for _ in 0..DEADLINES_MAX {
            let Some(server) = &self.server else { break };
            let wait = server.wait().map_or(left, |wait| wait.max(1));
            if wait >= left {
                break;
            }
            left -= wait;
            self.advance(wait);
            self.run_all_shards()?;
        }
        self.advance(left);
        Ok(())
    }

    /// Runs every shard and answers everything.
    pub(crate) fn run_all_shards(&mut self) -> Result<(), Stopped> {
        let shards = self.server.as_ref().map_or(0, Server::shards);
        for number in 0..shards {
            if let Some(server) = &mut self.server {
                let at = server.run_shard(number, &mut self.saboteur)?;
                mark_applied(self, number, at);
            }
        }
        if let Some(server) = &mut self.server {
            server.prepare();
            server.commit(&mut self.model)?;
        }
        self.collect();
        Ok(())
    }
}
