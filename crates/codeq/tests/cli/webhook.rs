//! `codeq webhook` and `codeq subscription`.

use serde_json::{Value, json};

use crate::cli::client::{Shop, alone, fails, said};

/// Nobody listens there.
const NOBODY: &str = "http://127.0.0.1:9/done";

#[test]
fn undelivered_callbacks_are_listed_and_sent_again() {
    let shop = Shop::open();
    assert_eq!(shop.json(&["webhook", "deliveries"]), json!([]));
    let id = shop.enqueue("mail", &["--webhook", NOBODY]);
    shop.claim("mail");
    shop.post(&format!("/tasks/{id}/result"), r#"{"status":"COMPLETED","result":{}}"#);
    let listed = shop.json(&["webhook", "deliveries", "--status", "pending"]);
    assert_eq!((&listed[0]["id"], &listed[0]["url"]), (&json!(id), &json!(NOBODY)));
    assert_eq!(shop.json(&["webhook", "deliveries", "--status", "failed"]), json!([]));
    assert_eq!(shop.json(&["webhook", "resend", &id]), json!({ "resent": 1 }));
    assert_eq!(shop.json(&["webhook", "resend", "--failed"]), json!({ "resent": 0 }));
    let other = shop.enqueue("mail", &[]);
    fails(&shop.run(&["webhook", "resend", &other]), 3, &other);
    fails(&shop.run(&["webhook", "resend"]), 2, "<ID>");
}

#[test]
fn secrets_are_rotated_and_signatures_verified() {
    let shop = Shop::open();
    let made = shop.json(&["webhook", "rotate"]);
    assert!(made["secret"].as_str().unwrap().starts_with("whsec_"), "{made}");
    assert_eq!(made.get("previousExpiresAt"), None);
    let next = shop.json(&["webhook", "rotate", "--overlap", "2h"]);
    assert!(next["previousExpiresAt"].is_string(), "{next}");

    // The example of the Standard Webhooks specification.
    let verify = |secret: &str, body: &str, more: &[&str]| {
        let headers = [
            "webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek",
            "Webhook-Timestamp: 1614265330",
            "webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ];
        let mut args = vec!["webhook", "verify", "--secret", secret];
        headers.iter().for_each(|header| args.extend(["-H", header]));
        args.extend(more);
        said(&mut alone(shop.home.path(), &args), body)
    };
    let (secret, body) = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", r#"{"test": 2432232314}"#);
    let good = verify(secret, body, &["--any-time"]);
    assert_eq!((good.code, good.err.as_str()), (0, "the signature is good\n"));
    fails(&verify(secret, body, &[]), 1, "five minutes");
    fails(&verify(secret, "{}", &["--any-time"]), 1, "no signature matches");
    fails(&verify("whsec_%", body, &["--any-time"]), 2, "base64");
}

#[test]
fn subscriptions_are_added_listed_and_removed() {
    let shop = Shop::open();
    let add =
        ["subscription", "add", NOBODY, "--queue", "mail", "--ttl", "10m", "--min-interval", "7s"];
    let id = shop.json(&add)["subscriptionId"].as_str().unwrap().to_owned();
    let listed = shop.json(&["subscription", "list"]);
    assert_eq!(
        (&listed[0]["subscriptionId"], &listed[0]["minIntervalSeconds"]),
        (&json!(id), &json!(7))
    );
    assert_eq!(shop.json(&["subscription", "get", &id])["eventTypes"], json!(["mail"]));
    assert_eq!(shop.json(&["subscription", "renew", &id, "--ttl", "1h"])["subscriptionId"], id);
    let removed = shop.run(&["subscription", "remove", &id]);
    assert_eq!((removed.code, removed.out.as_str()), (0, ""));
    fails(&shop.run(&["subscription", "get", &id]), 3, &id);
    fails(&shop.run(&["subscription", "add", "nowhere"]), 1, "invalid_callback_url");
    assert_eq!(shop.json(&["subscription", "list"]), Value::Array(Vec::new()));
}
