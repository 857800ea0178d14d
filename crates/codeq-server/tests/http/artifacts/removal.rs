//! Objects are removed with their task, and so are objects that no task names.

use std::time::Duration;

use codeq_core::id::TaskId;
use codeq_core::keys::Seq;
use codeq_server::artifacts::sweep::Swept;
use serde_json::json;

use super::{LARGE, bytes, content, download, emptied, files, finish};
use crate::http::harness::{ADMIN, Harness, LATER, PRODUCER};

#[tokio::test]
async fn cleanup_and_retention_remove_what_was_stored() {
    let h = Harness::start().await;
    let artifacts =
        json!([content("n", b"1"), content("m", &bytes(LARGE)), {"name": "u", "url": "u"}]);
    finish(&h, &h.running("c").await, artifacts.clone()).await;
    finish(&h, &h.running("c").await, artifacts.clone()).await;
    assert_eq!(files(&h).len(), 4);
    let cleanup = json!({"before": LATER});
    h.post(ADMIN, "admin/tasks/cleanup", cleanup).await.expect(200);
    emptied(&h.dir().join("artifacts")).await;

    h.put(ADMIN, "admin/topics/short", json!({"retentionSeconds": 1})).await.expect(201);
    let id = h.running("short").await;
    let url = finish(&h, &id, artifacts).await.remove(0);
    download(&h, PRODUCER, &url).await.expect(200);
    emptied(&h.dir().join("artifacts")).await;
    download(&h, PRODUCER, &url).await.refused(404, "artifact not found");
}

#[tokio::test]
async fn a_sweep_finds_what_nobody_names() {
    let h = Harness::start().await;
    let (id, running) = (h.running("c").await, h.running("c").await);
    let url = finish(&h, &id, json!([content("n", b"1")])).await.remove(0);
    let dir = h.dir().join("artifacts");
    let gone = TaskId::new(Seq(77), 88).to_string();
    let upload = format!("{:032x}", 5);
    let orphans = [
        format!("{gone}/{upload}/0"),
        format!("{running}/{upload}/0"),
        format!("{id}/{upload}/0"),
        // A part of an upload that a crash cut short.
        format!("{id}/{}/1#1", "f".repeat(32)),
    ];
    let foreign = ["README", "a/b", &format!("{gone}/{upload}/0/1"), &format!("{gone}/note")];
    for path in orphans.iter().map(String::as_str).chain(foreign) {
        let path = dir.join(path.replace("/0/1", "x/0"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "left over").unwrap();
    }
    let hour = Duration::from_secs(3_600);
    let young = h.server().sweep_artifacts(hour).await.unwrap();
    assert_eq!(young, Swept { looked_at: 8, removed: 0 });
    let swept = h.server().sweep_artifacts(Duration::ZERO).await.unwrap();
    assert_eq!(swept, Swept { looked_at: 8, removed: 4 });
    for orphan in orphans {
        assert!(!dir.join(&orphan).exists(), "{orphan}");
    }
    assert_eq!(files(&h).len(), 5, "not what is named, nor what is not ours");
    assert_eq!(download(&h, PRODUCER, &url).await.expect(200).text(), "1");
    assert!(!dir.join(&running).exists(), "nor empty directories");
    finish(&h, &running, json!([content("n", b"2")])).await;
}

#[tokio::test]
async fn a_sweep_where_nothing_was_ever_stored() {
    let h = Harness::start().await;
    let swept = h.server().sweep_artifacts(Duration::ZERO).await.unwrap();
    assert_eq!(swept, Swept::default());
    assert!(!h.dir().join("artifacts").exists());
}
