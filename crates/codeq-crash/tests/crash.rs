//! Short campaigns; run the long ones from the command line.
#![allow(clippy::unwrap_used, reason = "a helper of tests may fail like a test")]

use std::path::Path;
use std::process::{Command, Output};

use codeq_crash::faulty::{EIO, ENOSPC};
use codeq_crash::mount::MountUnavailable;
use codeq_crash::power::SKIPPED;
use codeq_crash::{fault, full, log_damage};

const MEMORY: &str = "/dev/shm";

fn campaign(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_codeq-crash")).args(args).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn skipped(output: &Output) -> bool {
    let skipped = output.status.code() == Some(i32::from(SKIPPED));
    if skipped {
        println!("SKIPPED: no loop mounts here, no power was cut");
    }
    skipped
}

#[test]
fn killed_processes_lose_nothing() {
    let args = ["kill", "--cycles", "8", "--seed", "3", "--max-ms", "500"];
    assert!(campaign(&args).status.success());
}

#[test]
fn power_cuts_lose_nothing_that_was_synced() {
    // A seed with which the last cycle would also kill the process before it cuts the power.
    let args = ["power", "--cycles", "6", "--seed", "7", "--max-ms", "400"];
    let output = campaign(&args);
    if !skipped(&output) {
        assert!(output.status.success());
        // The process after such a kill would be a seventh cycle, and nothing would drain it.
        assert!(String::from_utf8_lossy(&output.stdout).contains(" cycles=6 "));
    }
}

/// Without syncs the same harness must find losses at once, which proves that it can.
#[test]
fn power_cuts_without_syncs_are_noticed() {
    let args = ["power", "--cycles", "6", "--seed", "5", "--max-ms", "400", "--durability", "os"];
    let output = campaign(&args);
    if !skipped(&output) {
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("violations"));
    }
}

#[test]
fn a_cut_log_is_refused_or_holds_every_whole_frame() {
    let image = log_damage::Image::make(Path::new(MEMORY)).unwrap();
    assert!(log_damage::truncations(&image).unwrap() > 100);
}

#[test]
fn a_flipped_bit_never_costs_an_acknowledged_task() {
    let image = log_damage::Image::make(Path::new(MEMORY)).unwrap();
    let log = log_damage::log_flips(&image, 300, 1).unwrap();
    assert!(log.silent.is_empty() && log.refused > 0, "{log:?}");
}

#[test]
fn damaged_stores_and_manifests_and_missing_files_are_noticed() {
    let output = campaign(&["damage", "--stores", "100", "--manifests", "60", "--seed", "7"]);
    assert!(output.status.success());
}

#[test]
fn any_disk_operation_may_fail() {
    for errno in [EIO, ENOSPC] {
        let tally = fault::sweep(Path::new(MEMORY), errno, 3).unwrap();
        assert!(tally.runs > 20 && tally.stopped > 0, "{tally:?}");
    }
}

#[test]
fn no_proposal_of_a_group_whose_sync_failed_is_acknowledged() {
    assert_eq!(fault::crowd(Path::new(MEMORY)).unwrap(), 64);
}

#[test]
fn a_full_disk_refuses_writes_and_recovers() {
    full::run_pretended(Path::new(MEMORY)).unwrap();
}

#[test]
fn a_full_filesystem_refuses_writes_and_recovers() {
    match full::run(&full::Full { image_root: "/tmp".into() }) {
        Ok(text) => println!("{text}"),
        Err(error) if error.is::<MountUnavailable>() => println!("SKIPPED: {error}"),
        Err(error) => panic!("{error:#}"),
    }
}
