//! Settings: messages about invalid or pointless ones.

use std::os::unix::fs::PermissionsExt;

use crate::cli::harness::{codeq, text};

#[test]
fn an_address_without_a_host_is_refused_with_an_example() {
    for (args, example) in [
        (["dev", "--http-addr", "8125"], "127.0.0.1:8125"),
        (["serve", "--http-addr", ":8125"], "127.0.0.1:8125"),
        (["serve", "--metrics-addr", "localhost"], "127.0.0.1:8080"),
    ] {
        let said = codeq(&args);
        assert_eq!(said.code, 2, "{}", said.err);
        let expected = format!("expected an address and a port, such as {example}\n");
        assert!(said.err.contains(&expected), "{}", said.err);
    }
}

#[test]
fn a_check_warns_who_can_do_nothing() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("codeq.yaml");
    let yaml = "workerAuth:\n  staticTokens:\n    - token: t\n      subject: w\n      tenant: a\n";
    std::fs::write(&path, yaml).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let said = codeq(&["config", "check", "--config", text(&path)]);
    assert_eq!(said.code, 0, "{}", said.err);
    let warnings: Vec<&str> =
        said.out.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(
        warnings,
        [
            "warning: producerAuth has no jwt and no staticTokens: nobody can enqueue",
            "warning: workerAuth.staticTokens[0] has no scopes: it may not claim or finish tasks",
            "warning: workerAuth.staticTokens[0] has no eventTypes: it may claim no task ('*' allows all)",
        ]
    );
}
