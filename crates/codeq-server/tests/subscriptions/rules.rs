//! The routes: which subscriptions are accepted, from whom, and the responses.

use serde_json::{Value, json};

use crate::http::harness::{
    ADMIN, ADMIN_B, Harness, PRODUCER, RESTRICTED, WORKER, WORKER_2, WORKER_B,
};
use crate::subscriptions::receiver::{GROUPED, server, subscribe, subscribe_as};

const URL: &str = "https://worker.example.com/wake";
const LIST: &str = "workers/subscriptions";

async fn start() -> Harness {
    server(|_| ()).await
}

async fn list(h: &Harness, token: &str) -> Vec<Value> {
    let listed = h.get(token, LIST).await.expect(200).json();
    listed["items"].as_array().unwrap().clone()
}

fn moment(value: &Value) -> jiff::Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn omitted_fields_get_defaults() {
    let h = start().await;
    let made = h.post(WORKER, LIST, json!({"callbackUrl": URL})).await.expect(200).json();
    assert_eq!(made.as_object().unwrap().len(), 2);
    let all = list(&h, WORKER).await;
    let [one] = &all[..] else { panic!("{all:?}") };
    assert_eq!(one["subscriptionId"], made["subscriptionId"]);
    assert_eq!(one["expiresAt"], made["expiresAt"]);
    let life = moment(&one["expiresAt"]).duration_since(moment(&one["createdAt"]));
    assert_eq!(life.as_secs(), 300);
    let expected = json!({
        "subscriptionId": one["subscriptionId"],
        "workerId": "worker",
        "callbackUrl": URL,
        "eventTypes": ["*"],
        "deliveryMode": "fanout",
        "minIntervalSeconds": 5,
        "ttlSeconds": 300,
        "createdAt": one["createdAt"],
        "expiresAt": one["expiresAt"],
    });
    assert_eq!(*one, expected);
    let id = one["subscriptionId"].as_str().unwrap();
    assert_eq!(h.get(WORKER, &format!("{LIST}/{id}")).await.expect(200).json(), expected);
}

#[tokio::test]
async fn invalid_fields_are_named() {
    let h = start().await;
    let bad_urls = [
        "",
        "x",
        "/wake",
        "ftp://example.com/",
        "http://user:pass@example.com/",
        "http://10.0.0.1/",
        "http://[::1]/",
        "http://example.com:22/",
    ];
    for url in bad_urls {
        let reply = h.post(WORKER, LIST, json!({"callbackUrl": url})).await;
        let body = reply.refused(400, "invalid callback url");
        assert_eq!(
            (&body["code"], &body["field"]),
            (&json!("invalid_callback_url"), &json!("callbackUrl"))
        );
    }
    h.post(WORKER, LIST, json!({})).await.refused(400, "invalid body");
    let long = "g".repeat(129);
    let cases = [
        (json!({"ttlSeconds": 0}), "ttlSeconds"),
        (json!({"ttlSeconds": -1}), "ttlSeconds"),
        (json!({"ttlSeconds": 86_401}), "ttlSeconds"),
        (json!({"minIntervalSeconds": -1}), "minIntervalSeconds"),
        (json!({"minIntervalSeconds": 3_601}), "minIntervalSeconds"),
        (json!({"deliveryMode": "all"}), "deliveryMode"),
        (json!({"deliveryMode": "group"}), "groupId"),
        (json!({"deliveryMode": "group", "groupId": ""}), "groupId"),
        (json!({"deliveryMode": "group", "groupId": long}), "groupId"),
        (json!({"deliveryMode": "group", "groupId": "a\nb"}), "groupId"),
        (json!({"eventTypes": vec!["x".repeat(128); 70]}), "eventTypes"),
    ];
    for (mut new, field) in cases {
        new["callbackUrl"] = json!(URL);
        let body = h.post(WORKER, LIST, new.clone()).await.expect(400).json();
        assert_eq!(
            (&body["code"], &body["field"]),
            (&json!("invalid_subscription"), &json!(field)),
            "{new}"
        );
    }
    let names = json!({"callbackUrl": URL, "eventTypes": ["", "  "]});
    let body = h.post(WORKER, LIST, names).await.refused(400, "invalid command");
    assert_eq!(body["field"], "eventTypes");
    assert!(list(&h, ADMIN).await.is_empty());
}

#[tokio::test]
async fn values_at_the_limits_are_accepted() {
    let h = start().await;
    let group = "g".repeat(128);
    let new = json!({
        "callbackUrl": URL, "ttlSeconds": 86_400, "minIntervalSeconds": 3_600,
        "deliveryMode": "group", "groupId": group, "eventTypes": ["x".repeat(128)],
    });
    h.post(WORKER, LIST, new).await.expect(200);
    let blank = json!({
        "callbackUrl": URL, "ttlSeconds": 1, "minIntervalSeconds": 0, "deliveryMode": "",
        "groupId": null, "eventTypes": null,
    });
    h.post(WORKER, LIST, blank).await.expect(200);
    let groups: Vec<Value> =
        list(&h, WORKER).await.iter().map(|one| one["groupId"].clone()).collect();
    assert!(groups.contains(&json!(group)) && groups.contains(&Value::Null), "{groups:?}");
}

#[tokio::test]
async fn an_identical_subscription_renews_the_first() {
    let h = start().await;
    let new = |types: &[&str]| json!({"eventTypes": types, "ttlSeconds": 60});
    let first = subscribe(&h, URL, new(&["a", "b"])).await;
    let before = list(&h, WORKER).await;
    let mut after = before.clone();
    // Renewed in a later millisecond, it expires later.
    while moment(&after[0]["expiresAt"]) <= moment(&before[0]["expiresAt"]) {
        assert_eq!(subscribe(&h, URL, new(&[" B ", "a", ""])).await, first);
        after = list(&h, WORKER).await;
    }
    assert_eq!(after.len(), 1);
    assert_eq!(after[0]["createdAt"], before[0]["createdAt"]);
    // Anything else is another subscription.
    assert_ne!(subscribe(&h, URL, new(&["a"])).await, first);
    assert_ne!(subscribe(&h, &format!("{URL}/2"), new(&["a", "b"])).await, first);
    assert_ne!(subscribe_as(&h, WORKER_2, URL, new(&["a", "b"])).await, first);
    assert_eq!((list(&h, WORKER).await.len(), list(&h, ADMIN).await.len()), (3, 4));
}

#[tokio::test]
async fn only_the_owner_renews_a_subscription() {
    let h = start().await;
    let id = subscribe(&h, URL, json!({"ttlSeconds": 600})).await;
    let path = format!("{LIST}/{id}/heartbeat");
    let life = |reply: Value| {
        let left = moment(&reply["expiresAt"]).duration_since(jiff::Timestamp::now());
        left.as_secs_f64().round() as i64
    };
    let renewed = h.post(WORKER, &path, json!({"ttlSeconds": 60})).await.expect(200).json();
    assert_eq!(renewed["subscriptionId"], *id);
    assert_eq!(renewed.as_object().unwrap().len(), 2);
    assert_eq!(life(renewed), 60);
    // The default is the lifetime that it was created with, not the one of the last renewal.
    assert_eq!(life(h.act(WORKER, &path).await.expect(200).json()), 600);
    h.post(WORKER, &path, json!({"ttlSeconds": 0})).await.expect(400);
    for stranger in [WORKER_2, WORKER_B, GROUPED] {
        h.act(stranger, &path).await.refused(404, "subscription not found");
    }
    h.act(WORKER, &format!("{LIST}/nothing/heartbeat"))
        .await
        .refused(404, "subscription not found");
    h.act(ADMIN, &path).await.expect(403);
}

#[tokio::test]
async fn renewals_at_the_same_time_may_conflict_but_find_the_subscription() {
    let h = start().await;
    let id = subscribe(&h, URL, json!({})).await;
    let path = format!("{LIST}/{id}/heartbeat");
    let renewals = (0..32).map(|_| h.act(WORKER, &path));
    for reply in futures_util::future::join_all(renewals).await {
        let code = reply.json()["code"].clone();
        assert!(reply.status == 200 || code == "record_changed", "{reply:?}");
        assert!(reply.status == 200 || reply.status == 409, "{reply:?}");
    }
}

#[tokio::test]
async fn only_owner_and_admin_see_and_remove() {
    let h = start().await;
    let id = subscribe(&h, URL, json!({})).await;
    let path = format!("{LIST}/{id}");
    for stranger in [WORKER_2, WORKER_B, ADMIN_B, PRODUCER, RESTRICTED] {
        assert!(list(&h, stranger).await.is_empty(), "{stranger}");
        h.get(stranger, &path).await.refused(404, "subscription not found");
        h.delete(stranger, &path).await.refused(404, "subscription not found");
    }
    assert_eq!(list(&h, ADMIN).await, list(&h, WORKER).await);
    h.get(ADMIN, &path).await.expect(200);
    h.delete(ADMIN, &path).await.expect(204);
    h.delete(WORKER, &path).await.refused(404, "subscription not found");
    assert!(list(&h, ADMIN).await.is_empty());
    let again = subscribe(&h, URL, json!({})).await;
    h.delete(WORKER, &format!("{LIST}/{again}")).await.expect(204);
}

#[tokio::test]
async fn a_token_of_a_group_is_for_that_group() {
    let h = start().await;
    let id = subscribe_as(&h, GROUPED, URL, json!({})).await;
    let same = json!({"deliveryMode": "group", "groupId": "gpu"});
    assert_eq!(subscribe_as(&h, GROUPED, URL, same).await, id);
    let one = &list(&h, GROUPED).await[0];
    assert_eq!((&one["deliveryMode"], &one["groupId"]), (&json!("group"), &json!("gpu")));
    let other = json!({"callbackUrl": URL, "groupId": "cpu"});
    let reply = h.post(GROUPED, LIST, other).await;
    assert_eq!(reply.refused(403, "worker group not allowed")["field"], "groupId");
    subscribe_as(&h, GROUPED, URL, json!({"deliveryMode": "fanout"})).await;
}

#[tokio::test]
async fn a_tenant_has_a_bounded_number() {
    let h = start().await;
    for n in 0..1_000 {
        subscribe(&h, &format!("{URL}/{n}"), json!({})).await;
    }
    let more = json!({"callbackUrl": URL});
    let refused = h.post(WORKER, LIST, more.clone()).await.expect(409).json();
    assert_eq!(refused["code"], "too_many_records");
    subscribe(&h, &format!("{URL}/7"), json!({})).await;
    h.post(WORKER_B, LIST, more).await.expect(200);
}
