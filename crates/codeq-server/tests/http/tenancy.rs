//! Who may call what, and that nobody ever reaches into another tenant. Both walk the server's own list of routes: a
//! route that is added there and not here fails.

use base64::prelude::{BASE64_STANDARD, Engine};
use codeq_auth::Scope;
use codeq_server::config::UnknownFields;
use codeq_server::http::routes::{Access, ROUTES, Route, Verb};
use reqwest::Method;
use serde_json::{Value, json};

use crate::http::harness::{
    ADMIN, ADMIN_B, Harness, PRODUCER, PRODUCER_B, Reply, UNKNOWN_ID, WORKER, WORKER_B, send,
};

/// What tenant A has and tenant B must never read.
const SECRET: &str = "hidden-from-b";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Caller {
    Nobody,
    Stranger,
    Producer,
    Worker,
    Restricted,
    Admin,
    Operator,
}

impl Caller {
    const ALL: [Caller; 7] = [
        Caller::Nobody,
        Caller::Stranger,
        Caller::Producer,
        Caller::Worker,
        Caller::Restricted,
        Caller::Admin,
        Caller::Operator,
    ];

    fn token(self, tenant: &str) -> String {
        match self {
            Caller::Nobody => String::new(),
            other => format!("{tenant}-{other:?}").to_lowercase(),
        }
    }
}

/// 401, 403, or 0 for whatever the handler says.
fn refusal(access: Access, caller: Caller) -> u16 {
    use Caller::{Admin, Nobody, Operator, Producer, Restricted, Stranger, Worker};
    match (access, caller) {
        (Access::Open, _) => 0,
        (_, Nobody | Stranger) => 401,
        (Access::Any, _) => 0,
        (Access::Producer, Producer | Admin | Operator) => 0,
        (Access::Producer, Worker | Restricted) => 403,
        (Access::Worker(_), Worker) => 0,
        (Access::Worker(scope), Restricted) => match scope {
            Scope::Claim => 0,
            Scope::Heartbeat | Scope::Abandon | Scope::Nack | Scope::Result | Scope::Subscribe => {
                403
            }
        },
        (Access::Worker(_), Producer | Admin | Operator) => 403,
        (Access::Admin, Admin | Operator) => 0,
        (Access::Admin, Producer | Worker | Restricted) => 403,
        (Access::Operator, Operator) => 0,
        (Access::Operator, Producer | Worker | Restricted | Admin) => 403,
    }
}

/// Who may call an operation, by the contract.
fn promised(operation: &str) -> Access {
    match operation {
        "enqueueTask" | "enqueueTasks" | "changeTask" | "cancelTask" => Access::Producer,
        "claimTask" | "claimTasks" => Access::Worker(Scope::Claim),
        "heartbeatTask" => Access::Worker(Scope::Heartbeat),
        "abandonTask" => Access::Worker(Scope::Abandon),
        "nackTask" => Access::Worker(Scope::Nack),
        "submitResult" | "submitResults" => Access::Worker(Scope::Result),
        "subscribe" | "renewSubscription" => Access::Worker(Scope::Subscribe),
        "getTask" | "getResult" | "getHistory" | "explainTask" | "listTasks" | "streamEvents"
        | "raftStatus" | "getArtifact" | "listSubscriptions" | "getSubscription"
        | "unsubscribe" => Access::Any,
        "listQueues"
        | "getQueue"
        | "explainQueue"
        | "pauseQueue"
        | "resumeQueue"
        | "purgeQueue"
        | "cancelTasks"
        | "listDeadLetters"
        | "replayDeadLetters"
        | "purgeDeadLetters"
        | "replayTask"
        | "cleanupTasks"
        | "listTopics"
        | "listWorkers"
        | "listActions"
        | "putTopic"
        | "getTopic"
        | "deleteTopic"
        | "listDeliveries"
        | "resendDelivery"
        | "resendDeliveries"
        | "listWebhookSecrets"
        | "rotateWebhookSecret"
        | "deleteWebhookSecrets" => Access::Admin,
        "makeBackup" | "reloadConfig" => Access::Operator,
        "index" | "livez" | "readyz" | "healthz" | "metrics" | "openapi" | "docs" => Access::Open,
        other => panic!("say here who may call {other}"),
    }
}

/// What a route reaches.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reach {
    /// The task in its path.
    Task,
    /// The queue or topic in its path.
    Queue,
    /// The subscription in its path.
    Subscription,
    /// The caller's tenant as a whole.
    Tenant,
    /// The same as [`Reach::Tenant`], as a stream without end: tested with the events.
    Stream,
    /// Nobody's data.
    Nothing,
}

fn reach(route: &Route) -> Reach {
    match route.operation {
        "getTask" | "getResult" | "getHistory" | "explainTask" | "heartbeatTask"
        | "abandonTask" | "nackTask" | "submitResult" | "changeTask" | "cancelTask"
        | "replayTask" | "resendDelivery" | "getArtifact" => Reach::Task,
        "getQueue" | "explainQueue" | "pauseQueue" | "resumeQueue" | "purgeQueue"
        | "cancelTasks" | "listDeadLetters" | "replayDeadLetters" | "purgeDeadLetters"
        | "putTopic" | "getTopic" | "deleteTopic" => Reach::Queue,
        "renewSubscription" | "getSubscription" | "unsubscribe" => Reach::Subscription,
        "enqueueTask"
        | "enqueueTasks"
        | "listTasks"
        | "claimTask"
        | "claimTasks"
        | "submitResults"
        | "listQueues"
        | "listTopics"
        | "listWorkers"
        | "listActions"
        | "cleanupTasks"
        | "subscribe"
        | "listSubscriptions"
        | "listDeliveries"
        | "resendDeliveries"
        | "listWebhookSecrets"
        | "rotateWebhookSecret"
        | "deleteWebhookSecrets" => Reach::Tenant,
        "streamEvents" => Reach::Stream,
        // The routes of operators are refused to everybody else, see above.
        "makeBackup" | "reloadConfig" => Reach::Nothing,
        "raftStatus" | "index" | "livez" | "readyz" | "healthz" | "metrics" | "openapi"
        | "docs" => Reach::Nothing,
        other => panic!("say here what {other} reaches"),
    }
}

fn method(route: &Route) -> Method {
    match route.verb {
        Verb::Get => Method::GET,
        Verb::Post => Method::POST,
        Verb::Put => Method::PUT,
        Verb::Delete => Method::DELETE,
        Verb::Patch => Method::PATCH,
    }
}

/// A body with which the route does something.
fn body(route: &Route, id: &str) -> Value {
    match route.operation {
        "enqueueTask" => json!({"command": "shared", "payload": 1, "tenantId": "a"}),
        "enqueueTasks" => json!({"tasks": [{"command": "shared", "payload": 1, "tenantId": "a"}]}),
        "claimTasks" => json!({"count": 10, "tenantId": "a"}),
        "changeTask" => json!({"priority": 1, "tenantId": "a"}),
        "submitResult" => json!({"status": "COMPLETED", "tenantId": "a"}),
        "submitResults" => json!({"results": [{"taskId": id, "status": "COMPLETED"}]}),
        "cleanupTasks" => json!({"before": crate::http::harness::LATER, "tenantId": "a"}),
        "putTopic" => json!({"maxConsumers": 1}),
        "subscribe" => json!({"callbackUrl": "https://example.com/b", "tenantId": "a"}),
        _ => json!({"tenantId": "a"}),
    }
}

async fn call(h: &Harness, route: &Route, token: &str, id: &str) -> Reply {
    send(request(h, route, token, id)).await
}

fn request(h: &Harness, route: &Route, token: &str, id: &str) -> reqwest::RequestBuilder {
    let path = route.path.replace("{id}", id).replace("{command}", "shared");
    let path = path
        .replace("{name}", "shared")
        .replace("{artifact}", "shared")
        .replace("{subscription}", id);
    assert!(!path.contains('{'), "{path}: how is this filled in?");
    let query = if route.operation == "deleteTopic" { "deletionPolicy=Delete&" } else { "" };
    let request = h.request(method(route), token, &format!("{path}?{query}tenant=a&tenantId=a"));
    let request = request.header("X-Tenant", "a").header("X-Tenant-Id", "a");
    if route.verb == Verb::Get { request } else { request.body(body(route, id).to_string()) }
}

/// A server that ignores unknown fields, because the tests name another tenant in them.
async fn lenient() -> Harness {
    Harness::with(|config| config.http.unknown_fields = UnknownFields::Ignore).await
}

#[tokio::test]
async fn every_route_lets_in_whom_it_should_and_nobody_else() {
    let h = lenient().await;
    for route in ROUTES {
        assert_eq!(route.access, promised(route.operation), "{}", route.operation);
        for caller in Caller::ALL {
            for tenant in ["a", "b"] {
                let expected = refusal(route.access, caller);
                let request = request(&h, route, &caller.token(tenant), UNKNOWN_ID);
                // The answer's head is enough: a stream has no end.
                let answer = request.send().await.unwrap();
                let status = answer.status().as_u16();
                let context = format!("{} as {caller:?} of {tenant}: {status}", route.operation);
                if expected == 0 {
                    assert!(!matches!(status, 401 | 403 | 405 | 500..), "{context}");
                } else {
                    assert_eq!(status, expected, "{context}");
                    assert!(answer.headers().contains_key("www-authenticate"), "{context}");
                    let text = answer.text().await.unwrap();
                    assert!(!text.contains(UNKNOWN_ID) && !text.contains("shared"), "{text}");
                }
            }
        }
    }
}

/// Tenant A: a task in every place, all in one queue with a policy, each with a secret.
async fn fill(h: &Harness) -> Vec<String> {
    let new = json!({"callbackUrl": format!("https://example.com/{SECRET}"), "ttlSeconds": 3_600});
    h.post(WORKER, "workers/subscriptions", new).await.expect(200);
    let make = async |more: Value| {
        let task =
            json!({"command": "shared", "payload": {"secret": SECRET}, "idempotencyKey": null});
        h.enqueue(PRODUCER, crate::http::shape::with(task, more)).await
    };
    let policy = json!({"deadLetterTopicRef": SECRET, "maxAttempts": 3});
    h.put(ADMIN, "admin/topics/shared", policy).await.expect(201);
    let dead = make(json!({"maxAttempts": 1})).await;
    h.claim(WORKER, "shared").await;
    let nack = json!({"reason": SECRET});
    h.post(WORKER, &format!("tasks/{dead}/nack"), nack).await.expect(200);
    let done = make(json!({})).await;
    h.claim(WORKER, "shared").await;
    let artifact = json!({"name": "shared", "contentBase64": BASE64_STANDARD.encode(SECRET)});
    let result =
        json!({"status": "COMPLETED", "result": {"secret": SECRET}, "artifacts": [artifact]});
    h.post(WORKER, &format!("tasks/{done}/result"), result).await.expect(200);
    let running = make(json!({})).await;
    h.claim(WORKER, "shared").await;
    let delayed = make(json!({"delaySeconds": 600})).await;
    let pending = make(json!({})).await;
    vec![pending, delayed, running, done, dead]
}

/// All that tenant A can see of itself.
async fn view(h: &Harness, ids: &[String]) -> Vec<Value> {
    let mut paths = vec![
        "tasks".to_owned(),
        "admin/queues".to_owned(),
        "admin/dlq/shared".to_owned(),
        "admin/topics/shared".to_owned(),
        "workers/subscriptions".to_owned(),
    ];
    for id in ids {
        paths.extend([format!("tasks/{id}"), format!("tasks/{id}/history")]);
    }
    let mut view = Vec::new();
    for path in paths {
        view.push(h.get(ADMIN, &path).await.expect(200).json());
    }
    view
}

/// A token of tenant B that the route lets in.
fn intruder(access: Access) -> &'static str {
    match access {
        Access::Open => "",
        Access::Any | Access::Producer => PRODUCER_B,
        Access::Worker(_) => WORKER_B,
        Access::Admin | Access::Operator => ADMIN_B,
    }
}

fn without_request_id(reply: &Reply) -> (u16, Value) {
    let mut body = reply.json();
    body.as_object_mut().unwrap().remove("requestId");
    (reply.status, body)
}

#[tokio::test]
async fn no_route_reaches_into_another_tenant() {
    let h = lenient().await;
    let ids = fill(&h).await;
    let before = view(&h, &ids).await;
    let listed = h.get(ADMIN, "workers/subscriptions").await.expect(200).json();
    let subscription = [listed["items"][0]["subscriptionId"].as_str().unwrap().to_owned()];
    for route in ROUTES {
        let token = intruder(route.access);
        let targets = match reach(route) {
            Reach::Nothing | Reach::Stream => continue,
            Reach::Queue | Reach::Tenant => &ids[..1],
            Reach::Task => &ids[..],
            Reach::Subscription => &subscription[..],
        };
        for id in targets {
            let reply = call(&h, route, token, id).await;
            let text = reply.text();
            let context = format!("{}: {} {text}", route.operation, reply.status);
            assert!(!text.contains(SECRET) && reply.status < 500, "{context}");
            if route.operation == "listActions" {
                // The requests of tenant B are its own, whatever they name.
                let items = reply.json()["items"].as_array().unwrap().clone();
                assert!(items.iter().all(|item| item["tenantId"] == "b"), "{context}");
                continue;
            }
            assert!(!text.contains(r#""tenantId":"a""#), "{context}");
            if matches!(reach(route), Reach::Task | Reach::Subscription) {
                let unknown = call(&h, route, token, UNKNOWN_ID).await;
                assert_eq!(reply.status, 404, "{context}");
                assert_eq!(without_request_id(&reply), without_request_id(&unknown), "{context}");
                assert_eq!(reply.header("content-length"), unknown.header("content-length"));
            } else if route.operation == "submitResults" {
                let item = &reply.json()["results"][0];
                assert_eq!(
                    (&item["taskId"], &item["error"]),
                    (&json!(id), &json!("task not found"))
                );
            } else {
                assert!(!ids.iter().any(|id| text.contains(id.as_str())), "{context}");
            }
        }
    }
    assert_eq!(view(&h, &ids).await, before, "tenant A is as it was");
    // Nor has tenant B paused the queue of the same name.
    assert_eq!(h.claim(WORKER, "shared").await["id"], *ids[0]);
}

#[tokio::test]
async fn a_wrong_submit_says_nothing_about_another_tenants_task() {
    let h = Harness::start().await;
    let ids = fill(&h).await;
    for body in
        [json!({}), json!({"status": "FAILED"}), json!({"status": "COMPLETED", "result": 1})]
    {
        for id in ids.iter().map(String::as_str).chain([UNKNOWN_ID]) {
            let reply = h.post(WORKER_B, &format!("tasks/{id}/result"), body.clone()).await;
            reply.refused(404, "task not found");
        }
    }
    let wait = format!("tasks/{}/result?waitSeconds=60", ids[0]);
    h.get(PRODUCER_B, &wait).await.refused(404, "task not found");
}

#[tokio::test]
async fn the_tenant_is_the_tokens_whatever_the_request_says() {
    let h = lenient().await;
    let claim = json!({"tenant": "b", "tenantId": "b", "workerId": "boss"});
    for route in ROUTES.iter().filter(|route| route.operation == "enqueueTask") {
        // This request says that it is of tenant A; its token is B's.
        let made = call(&h, route, PRODUCER_B, "").await.expect(202).json();
        assert_eq!(made["tenantId"], "b");
    }
    h.post(WORKER, "tasks/claim", claim.clone()).await.expect(204);
    let claimed = h.post(WORKER_B, "tasks/claim", claim).await.expect(200).json();
    assert_eq!((&claimed["tenantId"], &claimed["workerId"]), (&json!("b"), &json!("worker/boss")));
    let list = h.get(PRODUCER, "tasks?tenant=b&tenantId=b").await.expect(200).json();
    assert_eq!(list, json!({"items": []}));
    let queues = h.get(ADMIN, "admin/queues?tenant=b").await.expect(200).json();
    assert_eq!(queues, json!({}));
}

#[tokio::test]
async fn a_cursor_is_no_good_in_another_tenant() {
    let h = Harness::start().await;
    for token in [PRODUCER, PRODUCER_B] {
        for _ in 0..2 {
            h.enqueue(token, json!({"command": "c", "payload": 1})).await;
        }
    }
    let page = h.get(PRODUCER, "tasks?limit=1").await.expect(200).json();
    let path = format!("tasks?limit=1&cursor={}", page["nextCursor"].as_str().unwrap());
    h.get(PRODUCER, &path).await.expect(200);
    h.get(PRODUCER_B, &path).await.refused(400, "invalid cursor");
    for _ in 0..2 {
        h.dead("d", "x").await;
    }
    let replay = async |token: &str, body: Value| h.post(token, "admin/dlq/d/replay", body).await;
    let first = replay(ADMIN, json!({"limit": 1})).await.expect(200).json();
    let next = json!({"cursor": first["nextCursor"]});
    replay(ADMIN_B, next.clone()).await.refused(400, "invalid cursor");
    assert_eq!(replay(ADMIN, next).await.expect(200).json()["replayed"], 1);
}
