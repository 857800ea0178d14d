//! `codeq sim`.

use crate::cli::harness::codeq;

#[test]
fn a_seed_gives_the_same_run() {
    let run = || codeq(&["sim", "--seed", "3", "--steps", "60"]);
    let (first, second) = (run(), run());
    assert_eq!(first.code, 0, "{}{}", first.out, first.err);
    // Everything but the time that the run took.
    let counted = |out: &str| out.split(" hours simulated").next().map(str::to_owned);
    assert_eq!(counted(&first.out), counted(&second.out));
    assert!(first.out.starts_with("1 run(s), "), "{}", first.out);
}

#[test]
fn a_range_of_seeds_runs_and_hours_add_more() {
    let some = codeq(&["sim", "--seeds", "5..8", "--steps", "20"]);
    assert!(some.code == 0 && some.out.starts_with("3 run(s), "), "{}{}", some.out, some.err);
    let more = codeq(&["sim", "--seeds", "5..8", "--steps", "20", "--hours", "1"]);
    let runs: u64 = more.out.split(' ').next().unwrap().parse().unwrap();
    let hours = more.out.split(" hours simulated").next().unwrap().rsplit(' ').next().unwrap();
    let hours: f64 = hours.parse().unwrap();
    assert!(more.code == 0 && runs >= 3 && hours >= 1.0, "{}", more.out);
}

#[test]
fn invalid_arguments_are_refused() {
    let nonsense: [&[&str]; 8] = [
        &["sim", "--seed", "x"],
        &["sim", "--seeds", "9..1"],
        &["sim", "--seed", "1", "--seeds", "1..3"],
        &["sim", "--seed", "1", "--hours", "3"],
        // A planted bug has its own seeds, and ends with the first that notices it.
        &["sim", "--cluster", "--sabotage", "all", "--seed", "1"],
        &["sim", "--cluster", "--sabotage", "all", "--seeds", "1..3"],
        &["sim", "--cluster", "--sabotage", "all", "--keep-going"],
        &["sim", "--cluster", "--sabotage", "all", "--ledger"],
    ];
    for args in nonsense {
        assert_eq!(codeq(args).code, 2, "{args:?}");
    }
}

#[test]
fn a_closed_stdout_is_not_an_error() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_codeq"));
    command.args(["sim", "--seed", "1", "--steps", "5"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let said = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&said.stderr);
    assert_eq!((said.status.code(), err.contains("panicked")), (Some(0), false), "{err}");
}
