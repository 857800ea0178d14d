//! Help that helps: every command says what it does and shows an example.

use crate::cli::harness::codeq;

#[test]
fn every_command_has_help_with_an_example() {
    let top = codeq(&["--help"]);
    assert_eq!(top.code, 0);
    for (command, part) in [
        ("fsck", "The directory is not changed"),
        ("fsck", "Exit code: 0 no problems, 1 problems found, 2"),
        ("backup", "must not be in use"),
        ("restore", "The backup is verified"),
        ("probe", "Exits with 0 if the server answers that it is ready"),
        ("sim", "codeq sim --seed 42"),
        ("bench", "codeq bench --http-url "),
        ("bench", "Exit code: 0 success, 1 "),
    ] {
        assert!(
            top.out.contains(&format!("  {command} ")),
            "{command} is not listed:\n{}",
            top.out
        );
        let help = codeq(&[command, "--help"]);
        assert_eq!(help.code, 0);
        assert!(help.out.contains(part), "{part:?} is not in the help of {command}:\n{}", help.out);
        assert!(help.out.contains(&format!("\n  codeq {command} ")), "no example:\n{}", help.out);
    }
}

#[test]
fn the_version_is_printed() {
    let said = codeq(&["--version"]);
    assert_eq!(said.out.trim(), format!("codeq {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn no_command_is_a_usage_error() {
    let said = codeq(&[]);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("Usage: codeq"), "{}", said.err);
}
