//! Validity of tokens, and the callers they name.

use serde_json::{Value, json};

use super::keys::Signer;
use super::{AUDIENCE, ISSUER, NOW, World, assert_invalid, changed, claims, jwt_config};
use crate::settings::Settings;
use crate::{AuthError, Authenticator, EventTypes, Principal, Role, Scope, Scopes};

struct Fixture {
    signer: Signer,
    world: World,
}

impl Fixture {
    async fn new() -> Fixture {
        let signer = Signer::new("ec");
        let world = World::new(&[&signer]).await;
        Fixture { signer, world }
    }

    async fn ask(&self, name: &str, value: Option<Value>) -> Result<Principal, AuthError> {
        self.world.ask(&self.signer.token(&changed(claims(), name, value))).await
    }

    async fn with(&self, name: &str, value: Value) -> Principal {
        self.ask(name, Some(value)).await.expect("is accepted")
    }
}

#[tokio::test]
async fn dates_issuer_and_audience_are_checked() {
    let fixture = Fixture::new().await;
    let good: Vec<(&str, &str, Option<Value>)> = vec![
        ("exp 59 s ago", "exp", Some(json!(NOW - 59))),
        ("exp float", "exp", Some(json!(NOW as f64 + 0.5))),
        ("nbf missing", "nbf", None),
        ("nbf past", "nbf", Some(json!(NOW - 1))),
        ("nbf in 60 s", "nbf", Some(json!(NOW + 60))),
        ("iat now", "iat", Some(json!(NOW))),
        ("iat in 60 s", "iat", Some(json!(NOW + 60))),
        ("aud list", "aud", Some(json!(["other", AUDIENCE]))),
    ];
    for (case, name, value) in good {
        let answer = fixture.ask(name, value).await;
        assert!(answer.is_ok(), "{case}: {answer:?}");
    }
    let bad: Vec<(&str, &str, Option<Value>)> = vec![
        ("exp missing", "exp", None),
        ("exp 60 s ago", "exp", Some(json!(NOW - 60))),
        ("exp null", "exp", Some(json!(null))),
        ("exp never", "exp", Some(json!("never"))),
        ("exp string", "exp", Some(json!((NOW + 300).to_string()))),
        ("exp huge", "exp", Some(json!(1e308))),
        ("exp largest", "exp", Some(json!(u64::MAX))),
        ("exp beyond 9999", "exp", Some(json!(253_402_300_800u64))),
        ("exp negative", "exp", Some(json!(-1))),
        ("exp list", "exp", Some(json!([NOW + 300]))),
        ("exp bool", "exp", Some(json!(true))),
        ("nbf in 61 s", "nbf", Some(json!(NOW + 61))),
        ("nbf string", "nbf", Some(json!("99999999999"))),
        ("nbf past string", "nbf", Some(json!("1"))),
        ("nbf null", "nbf", Some(json!(null))),
        ("nbf negative", "nbf", Some(json!(-1))),
        ("nbf huge", "nbf", Some(json!(1e308))),
        ("iat in 61 s", "iat", Some(json!(NOW + 61))),
        ("iat in an hour", "iat", Some(json!(NOW + 3_600))),
        ("iat string", "iat", Some(json!("1"))),
        ("iss missing", "iss", None),
        ("iss null", "iss", Some(json!(null))),
        ("iss other", "iss", Some(json!("https://other.example"))),
        ("iss slash", "iss", Some(json!(format!("{ISSUER}/")))),
        ("iss case", "iss", Some(json!(ISSUER.to_uppercase()))),
        ("iss list", "iss", Some(json!([ISSUER]))),
        ("aud missing", "aud", None),
        ("aud null", "aud", Some(json!(null))),
        ("aud other", "aud", Some(json!("other"))),
        ("aud prefix", "aud", Some(json!("codeq2"))),
        ("aud list without", "aud", Some(json!(["a", "b"]))),
        ("aud empty list", "aud", Some(json!([]))),
        ("aud mixed list", "aud", Some(json!([1, AUDIENCE]))),
        ("aud object", "aud", Some(json!({ "codeq": true }))),
    ];
    for (case, name, value) in bad {
        assert_invalid(&fixture.ask(name, value).await, case);
    }
}

#[tokio::test]
async fn claims_become_the_principal() {
    let fixture = Fixture::new().await;
    let principal = fixture.ask("x", None).await.expect("is accepted");
    let want = Principal {
        tenant: "acme".into(),
        subject: "worker-1".into(),
        producer: false,
        worker: true,
        scopes: Scopes::default().with(Scope::Claim),
        event_types: EventTypes::Only(vec!["build".into()]),
        admin: false,
        operator: false,
        worker_group: None,
        expires_at: Some(NOW + 300),
    };
    assert_eq!(principal, want);
}

#[tokio::test]
async fn any_of_five_claims_names_the_tenant_and_they_must_agree() {
    let fixture = Fixture::new().await;
    let names = ["tid", "tenantId", "tenant_id", "organizationId", "organization_id"];
    let nobody = changed(claims(), "tid", None);
    let ask = async |claims: &Value| fixture.world.ask(&fixture.signer.token(claims)).await;
    for first in names {
        let one = changed(nobody.clone(), first, Some(json!("t1")));
        assert_eq!(&*ask(&one).await.expect("is accepted").tenant, "t1", "{first}");
        for second in names.into_iter().filter(|name| *name != first) {
            let agree = changed(one.clone(), second, Some(json!("t1")));
            assert_eq!(&*ask(&agree).await.expect("is accepted").tenant, "t1");
            let disagree = changed(one.clone(), second, Some(json!("t2")));
            let refused = Err(AuthError::TenantsDisagree);
            assert_eq!(ask(&disagree).await, refused, "{first} {second}");
        }
        let long = "x".repeat(257);
        for wrong in [
            json!(""),
            json!(1),
            json!(null),
            json!(["t1"]),
            json!({ "id": "t1" }),
            json!(true),
            json!("a\u{0}"),
            json!("a\nb"),
            json!(long),
        ] {
            let claims = changed(nobody.clone(), first, Some(wrong.clone()));
            assert_invalid(&ask(&claims).await, &format!("{first} {wrong}"));
        }
    }
    assert_eq!(&*ask(&nobody).await.expect("is accepted").tenant, "worker-1");
    for odd in ["a/pending", "_", "..", "a b", "ünï", &"x".repeat(256)] {
        assert_eq!(&*fixture.with("tid", json!(odd)).await.tenant, odd);
    }
}

#[tokio::test]
async fn invalid_subjects_are_refused() {
    let fixture = Fixture::new().await;
    assert_invalid(&fixture.ask("sub", None).await, "missing");
    let long = "x".repeat(257);
    for wrong in [json!(""), json!(null), json!(1), json!(["a"]), json!("a\u{7f}"), json!(long)] {
        assert_invalid(&fixture.ask("sub", Some(wrong.clone())).await, &wrong.to_string());
    }
    assert_eq!(&*fixture.with("sub", json!("auth0|5f")).await.subject, "auth0|5f");
}

#[tokio::test]
async fn a_producer_needs_no_subject() {
    let signer = Signer::new("ec");
    let world = World::new(&[&signer]).await;
    let mut config = Settings::default();
    config.producers.jwt.push(jwt_config(world.provider.keys_url()));
    let producers = Authenticator::new(&config).unwrap();
    let nobody = changed(claims(), "sub", None);
    let with = |name, value: Value| changed(nobody.clone(), name, Some(value));
    let both = changed(with("azp", json!("app")), "client_id", Some(json!("service")));
    for (claims, subject) in [
        (nobody.clone(), "acme"),
        (with("client_id", json!("service")), "service"),
        (with("azp", json!("app")), "app"),
        (both.clone(), "service"),
        (changed(both, "sub", Some(json!("s"))), "s"),
    ] {
        let token = signer.token(&claims);
        let principal = producers.authenticate_at(&token, Role::Producer, NOW).await;
        let principal = principal.expect("is accepted");
        assert_eq!((&*principal.subject, &*principal.tenant), (subject, "acme"), "{claims}");
        // A worker holds leases under its name, so it needs its own subject.
        let worker = world.ask(&token).await;
        assert_eq!(worker.is_ok(), subject == "s", "{claims}: {worker:?}");
    }
    let lonely = changed(nobody.clone(), "tid", None);
    for wrong in [
        with("sub", json!(null)),
        with("sub", json!("")),
        with("client_id", json!("")),
        with("client_id", json!(1)),
        lonely,
    ] {
        let refused = producers.authenticate_at(&signer.token(&wrong), Role::Producer, NOW).await;
        assert_invalid(&refused, &wrong.to_string());
    }
}

#[tokio::test]
async fn scopes_are_read_from_a_string_or_a_list() {
    let fixture = Fixture::new().await;
    let two = Scopes::default().with(Scope::Claim).with(Scope::Result);
    for scope in [
        json!("codeq:claim codeq:result"),
        json!(" openid  codeq:result codeq:claim "),
        json!(["codeq:claim", "codeq:result", "email"]),
    ] {
        assert_eq!(fixture.with("scope", scope.clone()).await.scopes, two, "{scope}");
    }
    for scope in [
        json!(""),
        json!([]),
        json!("CODEQ:CLAIM"),
        json!("codeq:claim,codeq:result"),
        json!("codeq:claim\tcodeq:result"),
        json!(["codeq:claim codeq:result"]),
        json!("codeq:adminx xcodeq:admin codeq:operator:"),
    ] {
        let principal = fixture.with("scope", scope.clone()).await;
        assert_eq!(principal.scopes, Scopes::default(), "{scope}");
        assert!(!principal.admin && !principal.operator, "{scope}");
    }
    for wrong in [json!(1), json!(null), json!([1]), json!({ "codeq:admin": true })] {
        assert_invalid(&fixture.ask("scope", Some(wrong.clone())).await, &wrong.to_string());
    }
    assert_eq!(fixture.ask("scope", None).await.expect("is accepted").scopes, Scopes::default());
    assert!(!fixture.with("scopes", json!("codeq:nack")).await.scopes.has(Scope::Nack));
}

#[tokio::test]
async fn admins_and_operators_are_recognised_by_scope_or_role() {
    let fixture = Fixture::new().await;
    for (name, value, admin, operator) in [
        ("scope", json!("codeq:admin"), true, false),
        ("scope", json!(["codeq:operator"]), true, true),
        ("role", json!("ADMIN"), true, false),
        ("role", json!("admin"), true, false),
        ("role", json!("Admin"), true, false),
        ("role", json!("ADMINS"), false, false),
        ("role", json!(" ADMIN"), false, false),
        ("role", json!("operator"), false, false),
        ("role", json!(["ADMIN"]), false, false),
        ("role", json!(null), false, false),
        ("roles", json!("ADMIN"), false, false),
        ("admin", json!(true), false, false),
    ] {
        let principal = fixture.with(name, value.clone()).await;
        assert_eq!((principal.admin, principal.operator), (admin, operator), "{name} {value}");
    }
}

#[tokio::test]
async fn event_types_and_groups_are_read() {
    let fixture = Fixture::new().await;
    let only = |names: &[&str]| EventTypes::Only(names.iter().map(|name| (*name).into()).collect());
    for (value, want) in [
        (json!(["a", "B"]), only(&["a", "B"])),
        (json!("a"), only(&["a"])),
        (json!("a b"), only(&["a b"])),
        (json!([]), only(&[])),
        (json!("*"), EventTypes::Any),
        (json!(["a", "*"]), EventTypes::Any),
    ] {
        assert_eq!(fixture.with("eventTypes", value.clone()).await.event_types, want, "{value}");
    }
    let none = fixture.ask("eventTypes", None).await.expect("is accepted");
    assert!(!none.event_types.allows("build"));
    let many: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
    for wrong in [
        json!(null),
        json!(1),
        json!({ "a": 1 }),
        json!(["a", 1]),
        json!([""]),
        json!(["x".repeat(129)]),
        json!(many),
    ] {
        assert_invalid(&fixture.ask("eventTypes", Some(wrong.clone())).await, &wrong.to_string());
    }
    let group = fixture.with("workerGroup", json!("gpu")).await.worker_group;
    assert_eq!(group.as_deref(), Some("gpu"));
    let longest = "x".repeat(128);
    let group = fixture.with("workerGroup", json!(longest)).await.worker_group;
    assert_eq!(group.as_deref(), Some(&*longest));
    for wrong in [json!(""), json!(1), json!(null), json!(["gpu"]), json!("x".repeat(129))] {
        assert_invalid(&fixture.ask("workerGroup", Some(wrong.clone())).await, &wrong.to_string());
    }
}
