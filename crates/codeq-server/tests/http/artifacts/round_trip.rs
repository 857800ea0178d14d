//! Artifacts are downloaded as they were submitted.

use std::os::unix::fs::PermissionsExt;

use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, Engine};
use serde_json::json;

use super::{LARGE, bytes, completed, content, download, files, finish, submit, urls};
use crate::http::harness::{ADMIN, Harness, PRODUCER, PRODUCER_B, WORKER, WORKER_2};

#[tokio::test]
async fn artifacts_of_every_size_are_returned_byte_for_byte() {
    let h = Harness::start().await;
    for length in [0, 1, 2, 3, 1_000, 100_000, 5_898_240, LARGE] {
        let (id, sent) = (h.running("c").await, bytes(length));
        let url = finish(&h, &id, json!([content("out.bin", &sent)])).await.remove(0);
        let record = h.get(PRODUCER, &format!("tasks/{id}/result")).await.expect(200);
        assert!(record.body.len() < 1_024, "{}", record.text());
        for token in [PRODUCER, WORKER_2, ADMIN] {
            let got = download(&h, token, &url).await.expect(200);
            assert!(got.body == sent, "{length}: {} bytes came back", got.body.len());
            assert_eq!(got.header("content-length"), Some(length.to_string().as_str()));
            assert_eq!(got.header("content-type"), Some("application/octet-stream"));
        }
    }
    let mode = std::fs::metadata(h.dir().join("artifacts")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let h = h.restart().await;
    assert_eq!(files(&h).len(), 8, "still there after a restart");
}

#[tokio::test]
async fn unusual_names_and_types_are_kept() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let long = "ü".repeat(127);
    let cases = [
        ("a b.txt", "text/plain; charset=\"utf-8\"", "a b.txt", "a%20b.txt"),
        ("\"q\"; x=y", "text/html", "_q__ x_y", "%22q%22%3B%20x%3Dy"),
        ("été/".trim_end_matches('/'), "image/svg+xml", "_t_", "%C3%A9t%C3%A9"),
        ("...", "application/vnd.x+json", "...", "..."),
        ("100%&?#+", "a/b", "100_____", "100%25%26%3F%23%2B"),
        (&long, "video/mp4", &"_".repeat(127), &"%C3%BC".repeat(127)),
    ];
    let artifact = |(at, case): (usize, &(&str, &str, &str, &str))| json!({"name": case.0, "contentType": case.1, "contentBase64": BASE64_STANDARD_NO_PAD.encode([at as u8])});
    let artifacts: Vec<_> = cases.iter().enumerate().map(artifact).collect();
    let urls = finish(&h, &id, json!(artifacts)).await;
    for (at, ((name, content_type, simple, exact), url)) in cases.iter().zip(urls).enumerate() {
        let got = download(&h, PRODUCER, &url).await.expect(200);
        assert_eq!(got.body, [at as u8].as_slice(), "{name}");
        assert_eq!(got.header("content-type"), Some(*content_type));
        let disposition = format!("attachment; filename=\"{simple}\"; filename*=UTF-8''{exact}");
        assert_eq!(got.header("content-disposition"), Some(disposition.as_str()));
        assert_eq!(got.header("x-content-type-options"), Some("nosniff"));
        let policy = got.header("content-security-policy");
        assert_eq!(policy, Some("sandbox; default-src 'none'"));
    }
}

#[tokio::test]
async fn what_the_request_says_beside_the_name_is_not_believed() {
    let h = Harness::start().await;
    let (id, other) = (h.running("c").await, h.running("c").await);
    let url = finish(&h, &id, json!([content("n", b"mine")])).await.remove(0);
    let theirs = finish(&h, &other, json!([content("n", b"other")])).await.remove(0);
    let query = theirs.split_once('?').unwrap().1;
    let path = url.split_once('?').unwrap().0;
    for url in [path.to_owned(), format!("{path}?{query}"), format!("{path}?type=text/html")] {
        let got = download(&h, PRODUCER, &url).await.expect(200);
        assert_eq!(got.text(), "mine");
        assert_eq!(got.header("content-type"), Some("application/octet-stream"));
    }
    // A worker cannot pass off another task's artifact as one stored elsewhere.
    let forged = h.running("c").await;
    finish(&h, &forged, json!([{"name": "n", "url": theirs}])).await;
    let path = format!("artifacts/{forged}/n");
    h.get(PRODUCER, &path).await.refused(404, "artifact not found");
}

#[tokio::test]
async fn content_and_urls_side_by_side() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let artifacts = json!([
        {"name": "elsewhere", "url": "s3://bucket/key"},
        content("here", b"1"),
        {"name": "also/elsewhere", "url": "https://example.com/?v=0", "contentBase64": null},
    ]);
    let urls = finish(&h, &id, artifacts).await;
    assert_eq!((&*urls[0], &*urls[2]), ("s3://bucket/key", "https://example.com/?v=0"));
    assert_eq!(download(&h, PRODUCER, &urls[1]).await.expect(200).text(), "1");
    for name in ["elsewhere", "nothing", "also%2Felsewhere", ".."] {
        let path = format!("artifacts/{id}/{name}");
        let reply = h.get(PRODUCER, &path).await;
        assert_eq!(reply.status, 404, "{name}: {}", reply.text());
    }
    download(&h, PRODUCER_B, &urls[1]).await.refused(404, "artifact not found");
    assert_eq!(files(&h).len(), 1);
}

#[tokio::test]
async fn escapes_of_json_are_understood() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let sent = vec![0xff; 300_000];
    let letters = BASE64_STANDARD.encode(&sent);
    let body = |letters: &str| {
        format!(
            r#"{{"status":"COMPLETED","artifacts":[{{"name":"n","contentBase64":"{letters}"}}]}}"#
        )
    };
    let path = format!("tasks/{id}/result");
    let done = h.post_text(WORKER, &path, body(&letters.replace('/', "\\/"))).await.expect(200);
    let got = download(&h, PRODUCER, &urls(&done.json())[0]).await.expect(200);
    assert!(got.body == sent);
    // The same bytes in another spelling are the same submit.
    let again = h.post_text(WORKER, &path, body(&letters)).await.expect(200);
    assert_eq!(again.json(), done.json());
}

#[tokio::test]
async fn several_results_at_once() {
    let h = Harness::start().await;
    let mut results = Vec::new();
    for at in 0..12 {
        let id = h.running("c").await;
        let artifacts = json!([content("a", &bytes(at * 1_000)), content("b", &bytes(at))]);
        let status = if at == 5 { "NO" } else { "COMPLETED" };
        results.push(json!({"taskId": id, "status": status, "artifacts": artifacts}));
    }
    results[7]["artifacts"][1]["contentBase64"] = json!("?");
    let body = json!({"results": results});
    let done = h.post(WORKER, "tasks/batch/results", body).await.expect(200).json();
    for (at, done) in done["results"].as_array().unwrap().iter().enumerate() {
        match at {
            5 => assert_eq!(done["error"], "invalid status"),
            7 => assert_eq!(done["error"], "invalid artifacts"),
            _ => {
                let urls = urls(&done["result"]);
                let (a, b) = (download(&h, PRODUCER, &urls[0]), download(&h, PRODUCER, &urls[1]));
                assert!(a.await.expect(200).body == bytes(at * 1_000), "{at}");
                assert!(b.await.expect(200).body == bytes(at), "{at}");
            }
        }
    }
    assert_eq!(files(&h).len(), 20, "of the other two nothing was stored");
}

#[tokio::test]
async fn the_same_submit_again_answers_the_same() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let artifacts = json!([content("n", b"1"), {"name": "u", "url": "http://x/"}]);
    let body = completed(artifacts);
    let first = submit(&h, WORKER, &id, body.clone()).await.expect(200).json();
    assert_eq!(submit(&h, WORKER, &id, body.clone()).await.expect(200).json(), first);
    assert_eq!(files(&h).len(), 1, "and stores nothing more");
    submit(&h, WORKER_2, &id, body.clone()).await.refused(409, "not-in-progress");
    let mut others = vec![body.clone(); 4];
    others[0]["artifacts"][0]["contentBase64"] = json!("Mg==");
    others[1]["artifacts"][0]["contentType"] = json!("text/plain");
    others[2]["artifacts"][1]["url"] = json!("http://y/");
    others[3]["result"] = json!({"a": 1});
    for other in others {
        submit(&h, WORKER, &id, other).await.refused(409, "not-in-progress");
    }
    // At the same time: one request stores the files, the other gets the same answer.
    let id = h.running("c").await;
    let (one, two) =
        tokio::join!(submit(&h, WORKER, &id, body.clone()), submit(&h, WORKER, &id, body));
    assert_eq!(one.expect(200).json(), two.expect(200).json());
    assert_eq!(files(&h).len(), 2);
}
