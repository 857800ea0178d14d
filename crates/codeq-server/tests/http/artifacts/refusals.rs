//! Which artifacts are refused, in which order, and that they leave nothing behind.

use serde_json::{Value, json};

use super::{LARGE, bytes, completed, content, download, files, finish, submit};
use crate::http::harness::{Harness, PRODUCER, UNKNOWN_ID, WORKER, WORKER_2};

#[tokio::test]
async fn nothing_is_stored_before_all_is_checked() {
    let h = Harness::start().await;
    let (pending, running) = (h.task("p").await, h.running("r").await);
    let good = content("n", b"1");
    let mut bad = completed(json!([good, {"name": "m", "contentBase64": "?"}]));
    for body in [completed(json!([good])), bad.clone()] {
        submit(&h, WORKER, UNKNOWN_ID, body.clone()).await.refused(404, "task not found");
        submit(&h, WORKER, &pending, body.clone()).await.refused(409, "not-in-progress");
        submit(&h, WORKER_2, &running, body).await.refused(403, "not-owner");
    }
    let refused = submit(&h, WORKER, &running, bad.clone()).await.refused(400, "invalid artifacts");
    assert_eq!(refused["detail"], "artifact 1: contentBase64 is not base64");
    assert_eq!(refused["field"], "artifacts");
    bad["status"] = json!("NO");
    submit(&h, WORKER, &running, bad.clone()).await.refused(400, "invalid status");
    bad["status"] = json!("FAILED");
    submit(&h, WORKER, &running, bad).await.refused(400, "error required when status=FAILED");
    let mut large = completed(json!([good]));
    large["result"] = json!({"text": "x".repeat(1 << 20)});
    assert_eq!(
        submit(&h, WORKER, &running, large).await.expect(413).json()["code"],
        "invalid_result"
    );
    let mut wrong = completed(json!([good]));
    wrong["result"] = json!(1);
    let said = "invalid result (must be an object)";
    submit(&h, WORKER, &running, wrong).await.refused(400, said);
    assert!(!h.dir().join("artifacts").exists(), "not even the directory");
    finish(&h, &running, json!([good])).await;
    assert_eq!(files(&h).len(), 1);
}

#[tokio::test]
async fn invalid_artifacts_are_refused() {
    let h = Harness::with(|config| config.artifacts.max_bytes = 1_000).await;
    let id = h.running("c").await;
    let named = |name: &str| json!([content(name, b"1")]);
    let typed = |text: &str| json!([{"name": "n", "contentBase64": "", "contentType": text}]);
    let plain = |field: &str, value: Value| json!([{"name": "n", field: value}]);
    let bad: Vec<(Value, &str)> = vec![
        (named(""), "the name must be"),
        (named("."), "the name must be"),
        (named(".."), "the name must be"),
        (named("../../etc/passwd"), "the name must be"),
        (named("a\\b"), "the name must be"),
        (named("a\nb"), "the name must be"),
        (named("a\u{0}"), "the name must be"),
        (named("\u{85}"), "the name must be"),
        (named(&"x".repeat(256)), "the name must be"),
        (typed("html"), "content type"),
        (typed("text/html\r\nX: y"), "content type"),
        (typed(&format!("a/{}", "b".repeat(254))), "content type"),
        (json!([content("n", b"1"), content("n", b"2")]), "the same name"),
        (json!([content("n", b"1"), {"name": "n", "url": "u"}]), "the same name"),
        (json!([{"name": "n"}]), "exactly one of url and contentBase64"),
        (
            json!([{"name": "n", "url": "u", "contentBase64": ""}]),
            "exactly one of url and contentBase64",
        ),
        (json!([{"contentBase64": ""}]), "exactly one of url and contentBase64"),
        (json!([1]), "artifact 0: expected a JSON object"),
        (plain("contentBase64", json!(1)), "exactly one of url and contentBase64"),
        (plain("contentBase64", json!("A")), "not base64"),
        (plain("contentBase64", json!("QQ==QQ==")), "not base64"),
        (plain("contentBase64", json!("-_-_")), "not base64"),
        (plain("contentBase64", json!("QUFB\nQUFB")), "not base64"),
        (plain("contentBase64", json!("AAé=")), "not base64"),
        (json!([content("n", &bytes(1_001))]), "larger than 1000 bytes"),
        (json!(vec![content("n", b""); 65]), "at most 64"),
    ];
    for (artifacts, why) in bad {
        let refused = submit(&h, WORKER, &id, completed(artifacts.clone())).await;
        let refused = refused.refused(400, "invalid artifacts");
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains(why), "{artifacts}: {detail}");
        assert_eq!(refused["code"], "invalid_artifacts");
    }
    assert!(!h.dir().join("artifacts").exists());
    let many = (0..64).map(|at| content(&at.to_string(), &bytes(1_000))).collect::<Vec<_>>();
    assert_eq!(finish(&h, &id, json!(many)).await.len(), 64);
}

#[tokio::test]
async fn a_failed_upload_leaves_the_task_with_its_worker() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let dir = h.dir().join("artifacts");
    let body = completed(json!([content("n", b"1"), content("m", &bytes(LARGE))]));
    // A file where the directory should be.
    std::fs::write(&dir, "").unwrap();
    let refused = submit(&h, WORKER, &id, body.clone()).await;
    let said = refused.refused(503, "artifact upload failed");
    assert_eq!(
        (&said["code"], refused.header("retry-after")),
        (&json!("artifact_upload_failed"), Some("5"))
    );
    assert!(!refused.text().contains(dir.to_str().unwrap()), "{}", refused.text());
    let task = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
    assert_eq!((&task["status"], &task["workerId"]), (&json!("IN_PROGRESS"), &json!("worker")));
    assert_eq!(task.get("attempts").unwrap_or(&json!(0)), &json!(0));
    std::fs::remove_file(&dir).unwrap();
    submit(&h, WORKER, &id, body.clone()).await.expect(200);
    assert_eq!(files(&h).len(), 2);

    // The store breaks later, and only for this task: a file where its directory should be.
    let id = h.running("c").await;
    std::fs::write(dir.join(&id), "").unwrap();
    submit(&h, WORKER, &id, body.clone()).await.refused(503, "artifact upload failed");
    let batch =
        json!({"results": [{"taskId": id, "status": "COMPLETED", "artifacts": body["artifacts"]}]});
    let done = h.post(WORKER, "tasks/batch/results", batch).await.expect(200).json();
    assert_eq!(done["results"][0]["error"], "artifact upload failed");
    std::fs::remove_file(dir.join(&id)).unwrap();
    let record = submit(&h, WORKER, &id, body).await.expect(200).json();
    let url = record["artifacts"][1]["url"].as_str().unwrap();
    assert!(download(&h, PRODUCER, url).await.expect(200).body == bytes(LARGE));
}

#[tokio::test]
async fn what_is_gone_is_not_found_and_what_is_broken_is_unavailable() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let url = finish(&h, &id, json!([content("n", b"1")])).await.remove(0);
    let file = files(&h).remove(0);
    let upload = file.parent().unwrap().to_owned();
    std::fs::remove_file(&file).unwrap();
    download(&h, PRODUCER, &url).await.refused(404, "artifact not found");
    std::fs::remove_dir(&upload).unwrap();
    std::fs::write(&upload, "").unwrap();
    let refused = download(&h, PRODUCER, &url).await;
    let said = refused.refused(503, "artifact unavailable");
    assert_eq!(
        (&said["code"], refused.header("retry-after")),
        (&json!("artifact_unavailable"), Some("5"))
    );
}
