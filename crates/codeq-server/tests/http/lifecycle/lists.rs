//! Pages of a list while the list grows.

use crate::http::harness::{Harness, PRODUCER};

/// Reads all pages and creates a task of `noise` after each. Returns the ids in the order of the pages.
async fn walk(h: &Harness, query: &str, noise: &str) -> Vec<String> {
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    // Bounded: the list must not grow as fast as it is read.
    for _ in 0..100 {
        let page = h.get(PRODUCER, &format!("tasks?{query}{cursor}")).await.expect(200).json();
        let items = page["items"].as_array().unwrap();
        seen.extend(items.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["nextCursor"].as_str() else { return seen };
        assert!(!items.is_empty(), "nothing was made that no list shows");
        cursor = format!("&cursor={next}");
        h.task(noise).await;
    }
    panic!("the list does not end");
}

#[tokio::test]
async fn pages_neither_skip_nor_repeat() {
    let h = Harness::start().await;
    let (mut all, mut even) = (Vec::new(), Vec::new());
    for n in 0..25 {
        let command = if n % 2 == 0 { "even" } else { "odd" };
        let id = h.task(command).await;
        all.insert(0, id.clone());
        if n % 2 == 0 {
            even.insert(0, id);
        }
    }
    assert_eq!(walk(&h, "limit=4&command=even", "even").await, even);
    let now = walk(&h, "limit=1000", "").await;
    assert_eq!(now[3..], all, "three were made meanwhile");
    assert_eq!(walk(&h, "limit=3", "odd").await, now);
    let filter = "limit=7&status=PENDING&filter=created%3E2001-01-01T00:00:00Z";
    assert_eq!(walk(&h, filter, "odd").await.len(), now.len() + 9);
}

#[tokio::test]
async fn pages_neither_skip_nor_repeat_over_several_shards() {
    let h = Harness::with(|config| config.shards = Some(3)).await;
    let mut all = Vec::new();
    for _ in 0..25 {
        all.push(h.task("c").await);
    }
    // Each shard's tasks are in order; the order among shards is not defined.
    let mut seen = walk(&h, "limit=4", "c").await;
    seen.sort_unstable();
    all.sort_unstable();
    assert_eq!(seen, all);
}
