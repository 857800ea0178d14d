//! Listing deliveries and secrets: only those of the caller's tenant, and never a secret's value.

use serde_json::{Value, json};

use crate::callbacks::receiver::{Receiver, answer, server, server_with};
use crate::http::harness::{ADMIN, ADMIN_B, Harness, PRODUCER, PRODUCER_B, WORKER, WORKER_B};

async fn finish(server: &Harness, tokens: (&str, &str), url: &str) -> String {
    let task = json!({"command": "c", "payload": {}, "webhook": url});
    let id = server.enqueue(tokens.0, task).await;
    server.claim(tokens.1, "c").await;
    let done = json!({"status": "COMPLETED"});
    server.post(tokens.1, &format!("tasks/{id}/result"), done).await.expect(200);
    id
}

async fn list(server: &Harness, token: &str, query: &str) -> (Vec<String>, Option<String>) {
    let path = format!("admin/webhooks/deliveries?{query}");
    let body = server.get(token, &path).await.expect(200).json();
    let ids = body["items"].as_array().unwrap().iter();
    let ids = ids.map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    (ids, body["nextCursor"].as_str().map(str::to_owned))
}

#[tokio::test]
async fn deliveries_are_listed_by_page_and_by_tenant() {
    for shards in [1, 3] {
        let server = server_with(|config| config.shards = Some(shards)).await;
        let mut receiver = Receiver::start(|_, _| answer(410)).await;
        let mut ours = Vec::new();
        for _ in 0..7 {
            ours.push(finish(&server, (PRODUCER, WORKER), &receiver.url("/")).await);
            finish(&server, (PRODUCER_B, WORKER_B), &receiver.url("/")).await;
        }
        receiver.take(14).await;
        while list(&server, ADMIN, "status=pending").await.0 != [""; 0] {
            tokio::task::yield_now().await;
        }
        let (mut pages, mut cursor) = (Vec::new(), String::new());
        loop {
            let (ids, next) = list(&server, ADMIN, &format!("limit=2{cursor}")).await;
            assert!(ids.len() <= 2);
            pages.extend(ids);
            match next {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let (_, next) = list(&server, ADMIN, "limit=2").await;
        let cursor = format!("admin/webhooks/deliveries?cursor={}", next.unwrap());
        server.get(ADMIN_B, &cursor).await.refused(400, "invalid cursor");
        pages.sort();
        ours.sort();
        assert_eq!(pages, ours);
        assert_eq!(list(&server, ADMIN, "status=failed").await.0.len(), 7);
        let theirs = list(&server, ADMIN_B, "").await.0;
        assert!(theirs.len() == 7 && theirs.iter().all(|id| !ours.contains(id)));
        let path = format!("admin/webhooks/deliveries/{}/resend", ours[0]);
        server.act(ADMIN_B, &path).await.refused(404, "delivery not found");
    }
}

#[tokio::test]
async fn invalid_queries_of_deliveries_are_refused() {
    let server = server().await;
    for (query, error) in [
        ("status=lost", "invalid 'status' (pending or failed)"),
        ("limit=0", "invalid limit (1 to 1000)"),
        ("limit=1001", "invalid limit (1 to 1000)"),
        ("cursor=x", "invalid cursor"),
        ("cursor=1", "invalid cursor"),
        ("cursor=-1-2", "invalid cursor"),
        ("cursor=0-0", "invalid cursor"),
    ] {
        let path = format!("admin/webhooks/deliveries?{query}");
        server.get(ADMIN, &path).await.refused(400, error);
    }
    server
        .act(ADMIN, "admin/webhooks/deliveries/x/resend")
        .await
        .refused(404, "delivery not found");
    let resent = server.act(ADMIN, "admin/webhooks/deliveries/resend").await.expect(200).json();
    assert_eq!(resent, json!({"resent": 0}));
}

async fn secrets(server: &Harness, token: &str) -> Value {
    server.get(token, "admin/webhooks/secrets").await.expect(200).json()
}

#[tokio::test]
async fn secrets_are_made_replaced_and_forgotten_and_shown_once() {
    let server = server().await;
    assert_eq!(secrets(&server, ADMIN).await, json!({"source": "none", "secrets": []}));
    server.delete(ADMIN, "admin/webhooks/secrets").await.refused(404, "secret not found");
    let rotate = "admin/webhooks/secrets/rotate";
    let first = server.act(ADMIN, rotate).await.expect(200).json();
    assert!(first["secret"].as_str().unwrap().starts_with("whsec_"));
    assert!(first.get("previousExpiresAt").is_none());
    let given = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let second = json!({"secret": given, "overlapSeconds": 60});
    let second = server.post(ADMIN, rotate, second).await.expect(200).json();
    assert_eq!(second["secret"], given);
    let listed = server.get(ADMIN, "admin/webhooks/secrets").await.expect(200);
    let body = listed.json();
    assert_eq!(body["source"], "api");
    assert_eq!(body["secrets"][0]["expiresAt"], second["previousExpiresAt"]);
    assert_eq!(body["secrets"][1], json!({"createdAt": second["createdAt"]}));
    assert!(!listed.text().contains("whsec_"));
    // The same secret again changes nothing, because the first answer may have been lost.
    let same = server.post(ADMIN, rotate, json!({"secret": given})).await.expect(200).json();
    assert_eq!(same["createdAt"], second["createdAt"]);
    assert_eq!(secrets(&server, ADMIN).await["secrets"], body["secrets"]);
    // A third secret: the first stays valid for as long as was promised.
    let third = server.act(ADMIN, rotate).await.expect(200).json();
    let body = secrets(&server, ADMIN).await;
    assert_eq!(body["secrets"].as_array().unwrap().len(), 3);
    assert_eq!(body["secrets"][0]["expiresAt"], second["previousExpiresAt"]);
    assert_eq!(body["secrets"][1]["expiresAt"], third["previousExpiresAt"]);
    assert_eq!(body["secrets"][2], json!({"createdAt": third["createdAt"]}));
    for _ in 0..3 {
        server.act(ADMIN, rotate).await.expect(200);
    }
    let live = secrets(&server, ADMIN).await;
    assert_eq!(live["secrets"].as_array().unwrap().len(), 4, "and not without an end");
    server.post(ADMIN, rotate, json!({"overlapSeconds": 0})).await.expect(200);
    assert_eq!(secrets(&server, ADMIN).await["secrets"].as_array().unwrap().len(), 1);
    assert_eq!(secrets(&server, ADMIN_B).await["source"], "none");
    let server = server.restart().await;
    assert_eq!(secrets(&server, ADMIN).await["secrets"].as_array().unwrap().len(), 1);
    server.delete(ADMIN, "admin/webhooks/secrets").await.expect(204);
    assert_eq!(secrets(&server, ADMIN).await["source"], "none");
}

#[tokio::test]
async fn invalid_secrets_are_refused() {
    let server = server().await;
    let rotate = "admin/webhooks/secrets/rotate";
    for (body, error) in [
        (json!({"secret": "short"}), "invalid secret"),
        (json!({"secret": "whsec_AAAA"}), "invalid secret"),
        (json!({"secret": ""}), "invalid secret"),
        (json!({"overlapSeconds": 2_592_001}), "invalid 'overlapSeconds' (0 to 2592000)"),
        (json!({"overlapSeconds": -1}), "invalid body"),
        (json!({"secret": 7}), "invalid body"),
    ] {
        let refused = server.post(ADMIN, rotate, body).await;
        refused.refused(400, error);
        assert!(!refused.text().contains("whsec_AAAA"));
    }
}
