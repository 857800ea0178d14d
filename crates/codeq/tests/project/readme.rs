//! What the documents show runs as it stands there.

#[path = "../../../codeq-engine/examples/first_task.rs"]
#[allow(dead_code, reason = "its main is for cargo")]
mod first_task;

#[test]
fn the_program_of_the_library_page_runs() {
    let dir = tempfile::tempdir().unwrap();
    // Twice: the second time in a directory that exists.
    first_task::first_task(&dir.path().join("data")).unwrap();
    first_task::first_task(&dir.path().join("data")).unwrap();
}

#[test]
fn the_library_page_shows_the_program_as_it_is() {
    let page = include_str!("../../../../docs/library.md");
    let program = include_str!("../../../codeq-engine/examples/first_task.rs");
    let code = program.split_once("\n\n").map(|(_, code)| code.trim()).unwrap();
    assert!(page.contains(code), "docs/library.md shows another program than first_task.rs");
}

/// A server of this test, killed at its end.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The shell lines of the README, against a server on another port.
#[test]
fn the_first_task_of_the_readme_is_done() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    let dir = tempfile::tempdir().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_codeq"))
        .args(["dev", "--http-addr", "127.0.0.1:0", "--data-dir"])
        .arg(dir.path().join("data"))
        .stdout(Stdio::piped())
        .spawn()
        .map(Server)
        .unwrap();
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let api = lines.find_map(|line| line.unwrap().trim().strip_prefix("API").map(str::to_owned));
    let api = api.unwrap();
    let readme = include_str!("../../../../README.md");
    // The first task, and the dead letters.
    let blocks = readme.split("```sh\n").skip(1).take(2);
    let script: String = blocks.filter_map(|rest| rest.split("```").next()).collect();
    assert!(script.contains("api=http://127.0.0.1:8080/v1/codeq"));
    let script = script.replace("http://127.0.0.1:8080/v1/codeq", api.trim());
    let done = Command::new("sh").args(["-e", "-c", &script]).output().unwrap();
    let out = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{out} {}", String::from_utf8_lossy(&done.stderr));
    for part in [
        "IN_PROGRESS",
        "\"ok\":true",
        "COMPLETED",
        "\"width\":640",
        "\"payload\":\"{\\\"image\\\":7}\"",
        "\"status\":\"dlq\"",
        "\"matched\":1",
        "\"replayed\":1",
    ] {
        assert!(out.contains(part), "{part} is not in {out}");
    }
    assert!(!out.contains("problem"), "{out}");
}

/// The attacks themselves take minutes and root (`make attack`); that they load is seen here.
#[test]
fn the_attack_suite_loads_and_its_document_has_a_place_for_the_tables() {
    let suite = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/attack");
    let list = std::process::Command::new("python3")
        .args(["-B", "run.py", "--list"])
        .current_dir(&suite)
        .output()
        .unwrap();
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list = String::from_utf8(list.stdout).unwrap();
    for attack in "0 a b c d e f g h i j1 j2 j3 j4 k l m n".split(' ') {
        let listed = list.lines().any(|line| line.starts_with(&format!("{attack}  ")));
        assert!(listed, "no attack {attack}: {list}");
    }
    let page = include_str!("../../../../docs/security.md");
    let script = std::fs::read_to_string(suite.join("table.py")).unwrap();
    for marker in ["BEGIN = \"", "END = \""] {
        let marker =
            script.split_once(marker).and_then(|(_, rest)| rest.split_once('"')).unwrap().0;
        assert!(page.contains(marker), "docs/security.md lacks {marker}");
    }
}
