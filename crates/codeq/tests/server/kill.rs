//! SIGKILL at random moments, repeatedly on one directory: everything that was answered is still there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::server::check::after_restart;
use crate::server::finish::finish;
use crate::server::ledger::Ledger;
use crate::server::load;
use crate::server::node::{Node, codeq};
use crate::server::random::Random;

/// Cycles of one test run; `make campaign` asks for more.
const KILLS: u64 = 6;

#[test]
fn what_was_answered_survives_sigkill() {
    let kills = std::env::var("CODEQ_HTTP_KILLS").ok();
    let kills = kills.map_or(KILLS, |text| text.parse().expect("CODEQ_HTTP_KILLS is a number"));
    let mut random = Random::of_this_run();
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let ledger = Mutex::new(Ledger::default());
    let begin = Instant::now();
    for cycle in 1..=kills {
        let node = Node::dev(&dir, &["--shards", "3"]);
        after_restart(node.addr, &ledger, &mut random);
        let (addr, life) = (node.addr, Duration::from_millis(50 + random.below(451)));
        let stopping = AtomicBool::new(false);
        load::run(addr, &ledger, &mut random, &stopping, || {
            std::thread::sleep(life);
            stopping.store(true, Ordering::SeqCst);
            node.kill();
        });
        let count = ledger.lock().count();
        println!("kill {cycle} after {} ms: {count:?}", life.as_millis());
    }
    let node = Node::dev(&dir, &[]);
    let count = finish(node.addr, &ledger, &mut random);
    println!("{kills} kills in {} s: {count:?}", begin.elapsed().as_secs());
    node.kill();
    let found = codeq(&["fsck", dir.to_str().unwrap()]).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
    assert!(count.completed > 0 && count.cancelled > 0 && count.keys > 0, "{count:?}");
}
