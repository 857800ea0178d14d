//! The example of the engine that docs show, and the attack suite.

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

/// The attacks themselves take minutes and root (`make attack`). This only checks that they load.
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
