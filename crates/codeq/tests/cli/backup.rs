//! `codeq backup` and `codeq restore`.

use std::process::Command;

use codeq_engine::dir_lock::lock;
use codeq_engine::{Engine, Options};

use crate::cli::client::fails;
use crate::cli::harness::{RETENTION, codeq, contents, crashed, filled, options, put, ready, text};

#[test]
fn a_backup_restores_to_the_same_tasks() {
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name);
    filled(&at("data"), 2);
    let made = codeq(&["backup", text(&at("data")), text(&at("backup"))]);
    assert_eq!(made.code, 0, "{}", made.err);
    let found: serde_json::Value = serde_json::from_str(&made.out).unwrap();
    assert_eq!((&found["shards"], &found["tasks"]), (&2.into(), &60.into()), "{found}");
    assert_eq!(found["location"], text(&at("backup")));
    let restored = codeq(&["restore", text(&at("backup")), text(&at("restored"))]);
    assert_eq!(restored.code, 0, "{}", restored.err);
    for name in ["data", "backup", "restored"] {
        let checked = codeq(&["fsck", text(&at(name))]);
        assert_eq!(checked.code, 0, "{name}: {}{}", checked.out, checked.err);
    }
    let engine = Engine::open(&at("restored"), options()).unwrap();
    assert_eq!(ready(&engine), (59, 1));
    put(&engine, 61);
    assert_eq!(ready(&engine), (60, 1));
}

#[test]
fn a_backup_of_a_crashed_directory_holds_what_the_log_holds() {
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name);
    crashed(&at("data"), 1);
    let made = codeq(&["backup", text(&at("data")), text(&at("backup"))]);
    assert_eq!(made.code, 0, "{}", made.err);
    let engine = Engine::open(&at("backup"), options()).unwrap();
    assert_eq!(ready(&engine), (60, 0));
}

#[test]
fn a_backup_keeps_the_settings() {
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name);
    filled(&at("data"), 1);
    assert_eq!(codeq(&["backup", text(&at("data")), text(&at("backup"))]).code, 0);
    for name in ["data", "backup"] {
        let disk: codeq_disk::SharedDisk = std::sync::Arc::new(codeq_disk::RealDisk);
        let opened =
            codeq_engine::recover::OpenedDir::open(&disk, &at(name), &Options::default(), 1);
        let node = opened.unwrap();
        let settings = node.shards[0].data().read().state.settings().clone();
        assert_eq!(settings.retention, RETENTION, "{name}");
    }
}

/// Every command refuses an unfinished backup or restore.
#[test]
fn what_was_interrupted_is_refused_by_every_command() {
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name);
    filled(&at("data"), 1);
    assert_eq!(codeq(&["backup", text(&at("data")), text(&at("half"))]).code, 0);
    // As the backup was before its last rename.
    std::fs::remove_file(at("half").join("MANIFEST")).unwrap();
    std::fs::write(at("half").join("INCOMPLETE"), "unfinished backup\n").unwrap();
    let before = contents(&at("half"));
    for args in [
        vec!["fsck", text(&at("half"))],
        vec!["backup", text(&at("half")), text(&at("new"))],
        vec!["backup", text(&at("data")), text(&at("half"))],
        vec!["restore", text(&at("half")), text(&at("new"))],
        vec!["restore", text(&at("data")), text(&at("half"))],
    ] {
        let said = codeq(&args);
        assert_eq!(said.code, 1, "{args:?}: {}{}", said.out, said.err);
        let all = said.out + &said.err;
        assert!(all.contains("holds an unfinished backup"), "{args:?}: {all}");
        assert!(all.contains("remove the directory and run the backup again"), "{args:?}: {all}");
    }
    let opened = Engine::open(&at("half"), options()).err().unwrap().to_string();
    assert!(opened.contains("holds an unfinished backup"), "{opened}");
    std::fs::remove_file(at("half").join("LOCK")).unwrap();
    assert_eq!(contents(&at("half")), before);
}

#[test]
fn impossible_requests_are_refused_and_change_nothing() {
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name);
    filled(&at("data"), 1);
    std::fs::create_dir(at("taken")).unwrap();
    std::fs::write(at("taken").join("file"), "mine").unwrap();
    let before = contents(&at("taken"));

    let missing = codeq(&["backup", text(&at("missing")), text(&at("backup"))]);
    fails(&missing, 3, "not a codeQ data directory");
    assert!(!at("missing").exists() && !at("backup").exists());
    for args in [["backup", "data", "taken"], ["restore", "data", "taken"]] {
        let said = codeq(&[args[0], text(&at(args[1])), text(&at(args[2]))]);
        fails(&said, 1, &format!("{} is not empty: it holds 'file'", at("taken").display()));
    }
    assert_eq!(contents(&at("taken")), before);

    let engine = Engine::open(&at("data"), options()).unwrap();
    let used = codeq(&["backup", text(&at("data")), text(&at("backup"))]);
    fails(&used, 4, "in use");
    drop(engine);
    let backup = codeq(&["backup", text(&at("data")), text(&at("backup"))]);
    assert_eq!(backup.code, 0, "{}", backup.err);
    let kept = contents(&at("data"));
    let over = codeq(&["restore", text(&at("backup")), text(&at("data"))]);
    fails(&over, 1, "is not empty: it holds '");
    assert_eq!(contents(&at("data")), kept);
    let none = codeq(&["restore", text(&at("taken")), text(&at("new"))]);
    fails(&none, 1, "not a complete backup");
    let nowhere = codeq(&["restore", text(&at("nowhere")), text(&at("new"))]);
    fails(&nowhere, 3, "does not exist");
    let file = at("file");
    std::fs::write(&file, "").unwrap();
    fails(&codeq(&["restore", text(&file), text(&at("new"))]), 1, "Not a directory");
}

/// The largest file may have 4 MiB, so the stores are copied and the log does not fit.
#[test]
fn a_restore_without_room_says_what_it_leaves() {
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name);
    filled(&at("data"), 2);
    assert_eq!(codeq(&["backup", text(&at("data")), text(&at("backup"))]).code, 0);
    let script = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" restore \"$1\" \"$2\"";
    let failed = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_codeq"), text(&at("backup")), text(&at("new"))])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(
        said.contains("File too large") && said.contains("the copy is incomplete: remove "),
        "{said}"
    );
    let again = codeq(&["restore", text(&at("backup")), text(&at("new"))]);
    fails(&again, 1, "holds an unfinished restore");
    // While a restore into the directory is running, the hint must not say to remove it.
    let held = lock(&at("new")).unwrap();
    let meanwhile = codeq(&["restore", text(&at("backup")), text(&at("new"))]);
    fails(&meanwhile, 1, "is in use by another process");
    assert!(meanwhile.err.contains("neither directory was changed"), "{}", meanwhile.err);
    drop(held);
    std::fs::remove_dir_all(at("new")).unwrap();
    let restored = codeq(&["restore", text(&at("backup")), text(&at("new"))]);
    assert_eq!(restored.code, 0, "{}", restored.err);
}

#[test]
fn a_backup_on_a_read_only_mount_can_be_restored() {
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name);
    filled(&at("data"), 2);
    std::fs::create_dir(at("mount")).unwrap();
    let mount = |args: &[&str]| {
        let done = Command::new(args[0]).args(&args[1..]).arg(at("mount")).output();
        done.is_ok_and(|done| done.status.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "tmpfs"]) {
        eprintln!("skipped: this needs the right to mount");
        return;
    }
    let backup = at("mount").join("backup");
    let made = codeq(&["backup", text(&at("data")), text(&backup)]);
    assert!(mount(&["mount", "-o", "remount,ro"]));
    let restored = codeq(&["restore", text(&backup), text(&at("restored"))]);
    let checked = codeq(&["fsck", text(&backup)]);
    assert!(mount(&["umount"]));
    assert_eq!(made.code, 0, "{}", made.err);
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    let engine = Engine::open(&at("restored"), options()).unwrap();
    assert_eq!(ready(&engine), (59, 1));
}
