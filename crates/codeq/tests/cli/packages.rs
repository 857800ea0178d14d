//! Commands that supervisors and packages call.

use crate::cli::harness::codeq;
use crate::server::node::Node;

#[test]
fn a_probe_says_whether_the_server_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::dev(&dir.path().join("data"), &[]);
    let url = format!("http://{}", node.addr);
    let ready = codeq(&["probe", "--url", &url]);
    assert_eq!((ready.code, ready.out.as_str(), ready.err.as_str()), (0, "", ""));
    drop(node);
    let gone = codeq(&["probe", "--url", &url]);
    assert_eq!(gone.code, 1);
    assert!(gone.err.contains("cannot reach the server"), "{}", gone.err);
}

#[test]
fn every_listed_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let said = codeq(&["man", dir.path().to_str().unwrap()]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let top = std::fs::read_to_string(dir.path().join("codeq.1")).unwrap();
    assert!(top.contains("codeq\\-serve(1)"), "{top}");
    let page = std::fs::read_to_string(dir.path().join("codeq-serve.1")).unwrap();
    assert!(page.contains("Run a server for production"), "{page}");
    let missing = codeq(&["man", "/no/such/directory"]);
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("cannot write manual pages to /no/such/directory"));
}
