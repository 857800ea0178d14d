//! `codeq probe`, which supervisors call.

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
