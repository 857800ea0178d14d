//! A cluster that begins with the directory of a single node.

use std::path::Path;

use codeq_engine::{Engine, Options};

use crate::harness::{TENANT, block, put, small, submit, take};
use crate::start::start;

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-r").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// The log of a killed node is ahead of its stores. What only the log has must not be left behind.
#[test]
fn a_cluster_begins_with_everything_that_a_killed_single_node_acknowledged() {
    for shards in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let (running, killed) = (dir.path().join("running"), dir.path().join("killed"));
        let options = Options { shards: Some(shards), ..small() };
        let engine = Engine::open(&running, options.clone()).unwrap();
        let made: Vec<_> = (0..300).map(|n| put(&engine, "q", &n.to_string()).id).collect();
        engine.checkpoint().unwrap();
        let finished = take(&engine, "q", 1)[0].id;
        submit(&engine, finished, "1").unwrap();
        let late: Vec<_> = (0..20).map(|n| put(&engine, "late", &n.to_string()).id).collect();
        // What a killed process leaves: the files as the operating system has them.
        copy(&running, &killed);
        drop(engine);
        for round in 0..2 {
            // The first start makes a cluster of it, the second one finds it.
            let cluster = start(&killed, options.clone()).unwrap();
            for id in made.iter().chain(&late) {
                assert!(block(cluster.task(TENANT, *id)).unwrap().is_some(), "round {round}: {id}");
            }
            let (_, result) = block(cluster.result(TENANT, finished)).unwrap().unwrap();
            assert!(result.is_some());
            assert_eq!(take(&cluster, "late", 5).len(), 5, "and work goes on");
        }
        let refused = Engine::open(&killed, options).err().unwrap().to_string();
        assert!(refused.contains("member of a cluster"), "{refused}");
    }
}
