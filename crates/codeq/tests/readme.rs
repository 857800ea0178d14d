//! The README's example is a program that runs.

#[path = "../../codeq-engine/examples/first_task.rs"]
#[allow(dead_code, reason = "its main is for cargo")]
mod first_task;

#[test]
fn the_first_task_of_the_readme_runs() {
    let dir = tempfile::tempdir().unwrap();
    // Twice: the second time in a directory that exists.
    first_task::first_task(&dir.path().join("data")).unwrap();
    first_task::first_task(&dir.path().join("data")).unwrap();
}

#[test]
fn the_readme_shows_the_program_as_it_is() {
    let readme = include_str!("../../../README.md");
    let program = include_str!("../../codeq-engine/examples/first_task.rs");
    let code = program.split_once("\n\n").map(|(_, code)| code.trim()).unwrap();
    assert!(readme.contains(code), "README.md shows another program than first_task.rs");
}
