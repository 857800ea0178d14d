//! The audit log of admin actions.

use serde_json::{Value, json};

use crate::http::harness::{ADMIN, ADMIN_B, Harness, OPERATOR, PRODUCER, WORKER, WORKER_2};

async fn audit(h: &Harness, token: &str, query: &str) -> Value {
    h.get(token, &format!("admin/audit{query}")).await.expect(200).json()
}

fn operations(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| item["operation"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn what_admins_do_is_recorded() {
    let h = Harness::start().await;
    assert_eq!(audit(&h, ADMIN, "").await, json!({"items": [], "nextAfter": 0}));
    h.task("mail").await;
    h.get(ADMIN, "admin/queues/mail").await.expect(200);
    h.act(PRODUCER, "admin/queues/mail/pause").await.expect(403);
    h.act("stranger", "admin/queues/mail/pause").await.expect(401);
    h.claim(WORKER, "mail").await;
    let paused = h.act(ADMIN, "admin/queues/mail/pause").await.expect(200);
    h.act(ADMIN, "admin/queues/none/resume").await.expect(404);
    h.put(ADMIN, "admin/topics/mail", json!({"maxAttempts": 3})).await.expect(201);
    h.delete(ADMIN, "admin/topics/mail?deletionPolicy=Delete").await.expect(204);
    let secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let rotate = json!({"secret": secret, "overlapSeconds": 60});
    h.post(ADMIN, "admin/webhooks/secrets/rotate", rotate).await.expect(200);
    h.post(ADMIN_B, "admin/tasks/cleanup", json!({"dryRun": true})).await.expect(200);
    h.act(OPERATOR, "admin/config/reload").await;

    let page = audit(&h, ADMIN, "").await;
    assert_eq!(
        operations(&page),
        [
            "pauseQueue",
            "resumeQueue",
            "putTopic",
            "deleteTopic",
            "rotateWebhookSecret",
            "reloadConfig"
        ]
    );
    let items = page["items"].as_array().unwrap();
    let first = &items[0];
    assert_eq!(
        (&first["id"], &first["tenantId"], &first["subject"]),
        (&json!(1), &json!("a"), &json!("admin"))
    );
    assert_eq!(
        (&first["parameters"], &first["status"]),
        (&json!({"command": "mail"}), &json!(200))
    );
    assert_eq!(first["remoteAddress"], "127.0.0.1");
    assert_eq!(first["requestId"].as_str(), paused.header("x-request-id"));
    assert!(first["at"].is_string() && first.get("code").is_none(), "{first}");
    assert_eq!((&items[1]["status"], &items[1]["code"]), (&json!(404), &json!("not_found")));
    assert_eq!(items[2]["body"], json!({"maxAttempts": 3}));
    assert_eq!(items[3]["parameters"], json!({"name": "mail", "deletionPolicy": "Delete"}));
    assert_eq!(items[4]["body"], json!({"secret": "***", "overlapSeconds": 60}));
    assert_eq!(items[5]["subject"], "operator");
    for file in std::fs::read_dir(h.dir().join("audit")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        assert!(!text.contains(secret) && !text.contains(ADMIN), "{text}");
    }

    assert_eq!(operations(&audit(&h, ADMIN_B, "").await), ["cleanupTasks"]);
    let all = audit(&h, OPERATOR, "?allTenants=true&limit=2").await;
    assert_eq!(operations(&all), ["cleanupTasks", "reloadConfig"]);
    h.get(ADMIN, "admin/audit?allTenants=true").await.refused(403, "operator required");
    let next = audit(&h, ADMIN, "?after=2&limit=1").await;
    assert_eq!((operations(&next), &next["nextAfter"]), (vec!["putTopic"], &json!(3)));
    h.get(ADMIN, "admin/audit?after=x").await.refused(400, "invalid 'after'");
    let last = page["nextAfter"].as_u64().unwrap();
    let h = h.restart().await;
    h.act(ADMIN, "admin/queues/mail/resume").await.expect(200);
    let newer = audit(&h, ADMIN, &format!("?after={last}")).await;
    assert_eq!(operations(&newer), ["resumeQueue"]);
    assert_eq!(newer["items"][0]["id"].as_u64(), Some(last + 1));
}

#[tokio::test]
async fn a_refused_request_leaves_no_secret() {
    let h = Harness::start().await;
    let secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    for body in [json!({"secert": secret}), json!([secret]), json!(secret)] {
        h.post(ADMIN, "admin/webhooks/secrets/rotate", body).await.expect(400);
    }
    let page = audit(&h, ADMIN, "").await;
    assert_eq!(operations(&page), ["rotateWebhookSecret"; 3]);
    assert!(!page.to_string().contains("whsec"), "{page}");
}

#[tokio::test]
async fn refused_calls_and_other_owners_subscriptions_are_recorded_too() {
    let h = Harness::start().await;
    h.delete(ADMIN, "admin/topics/mail?deletionPolicy=Delete&deletoinPolicy=x").await.expect(400);
    h.act(ADMIN, "admin/queues/%FF/pause").await.expect(400);
    h.post(ADMIN, "admin/queues/mail/pause", json!({"until": "never"})).await.expect(400);
    let large = json!({"maxAttempts": 3, "x": "x".repeat(2 << 20)});
    h.put(ADMIN, "admin/topics/mail", large).await.expect(413);
    let new = json!({"callbackUrl": "https://worker.example.com/wake"});
    let mut ids = Vec::new();
    for token in [WORKER, WORKER_2] {
        let made = h.post(token, "workers/subscriptions", new.clone()).await.expect(200).json();
        ids.push(made["subscriptionId"].as_str().unwrap().to_owned());
    }
    h.get(ADMIN, &format!("workers/subscriptions/{}", ids[0])).await.expect(200);
    h.delete(WORKER_2, &format!("workers/subscriptions/{}", ids[1])).await.expect(204);
    h.delete(ADMIN, &format!("workers/subscriptions/{}", ids[0])).await.expect(204);
    h.delete(ADMIN, &format!("workers/subscriptions/{}", ids[0])).await.expect(404);

    let page = audit(&h, ADMIN, "").await;
    let items = page["items"].as_array().unwrap();
    let seen: Vec<_> = items
        .iter()
        .map(|item| (item["operation"].as_str().unwrap(), item["status"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("deleteTopic", 400),
        ("pauseQueue", 400),
        ("pauseQueue", 400),
        ("putTopic", 413),
        ("unsubscribe", 204),
        ("unsubscribe", 404),
    ];
    assert_eq!(seen, expected);
    assert_eq!(items[0]["parameters"], json!({"deletionPolicy": "Delete"}));
    assert_eq!(items[0]["code"], "unknown_field");
    assert_eq!(items[2]["parameters"], json!({"command": "mail"}));
    assert_eq!(items[4]["parameters"], json!({"subscription": ids[0]}));
    assert_eq!(items[4]["subject"], "admin");
}
