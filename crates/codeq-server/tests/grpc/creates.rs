//! Producers: every field of a create reaches its task, and invalid creates are refused.

use codeq_proto::Timestamp;
use codeq_proto::producer::producer_event::Event as ToProducers;
use codeq_proto::producer::{CreateAck, CreateTask};
use serde_json::{Value, json};
use tonic::Request;

use crate::grpc::client::{Producer, Worker, channel, new_task, producer_on};
use crate::http::harness::{Harness, PRODUCER, WORKER};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OTHER_TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn shown(server: &Harness, id: &str) -> Value {
    server.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json()
}

#[tokio::test]
async fn every_field_of_a_create_is_the_tasks() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let payload = "{\"b\": 1.50,\n \"a\": [1e2, \"\\u00e9\", \"é\"], \"b\": 2}";
    let create = CreateTask {
        seq: u64::MAX,
        command: "Render".into(),
        payload: payload.into(),
        priority: 7,
        webhook: "https://hooks.example/x?y=1".into(),
        max_attempts: 3,
        trace_parent: TRACE.into(),
        trace_state: "a=1,b=2".into(),
        ..CreateTask::default()
    };
    let id = producer.make(create).await;
    let task = shown(&server, &id).await;
    let want = json!({
        "command": "Render", "priority": 7, "webhook": "https://hooks.example/x?y=1",
        "maxAttempts": 3, "status": "PENDING", "traceParent": TRACE,
        "traceState": "a=1,b=2", "tenantId": "a",
    });
    for (name, value) in want.as_object().unwrap() {
        assert_eq!(&task[name], value, "{name}: {task}");
    }
    // The worker gets the same.
    let before =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
            as i64;
    let mut worker = Worker::open_as(server.worker_addr(), WORKER, "w1").await;
    let got = worker.take("render").await;
    assert_eq!(&*got.payload, payload.as_bytes());
    assert_eq!((&*got.id, &*got.command, got.priority), (&*id, "Render", 7));
    assert_eq!(
        (&*got.webhook, got.max_attempts, got.attempts),
        ("https://hooks.example/x?y=1", 3, 0)
    );
    assert_eq!((&*got.status, &*got.worker_id, &*got.tenant_id), ("IN_PROGRESS", "worker/w1", "a"));
    assert_eq!((&*got.trace_parent, &*got.trace_state), (TRACE, "a=1,b=2"));
    assert_eq!((got.fence, got.cancel_requested), (1, false));
    let task = shown(&server, &id).await;
    assert_eq!(
        (&task["leaseUntil"], &task["workerId"]),
        (&json!(got.lease_until), &json!("worker/w1"))
    );
    let (created, updated) = (got.created_at.unwrap(), got.updated_at.unwrap());
    assert!((before - 60..=before).contains(&created.seconds), "{created:?}");
    assert!(updated.seconds >= created.seconds && created.nanos % 1_000_000 == 0, "{updated:?}");
}

#[tokio::test]
async fn fields_left_out_of_a_create_get_defaults() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let id = producer.make(new_task(0, "plain")).await;
    let task = shown(&server, &id).await;
    assert_eq!((&task["priority"], &task["maxAttempts"]), (&Value::Null, &json!(5)), "{task}");
    for absent in ["webhook", "traceParent", "traceState", "workerId", "leaseUntil"] {
        assert!(task[absent].is_null() || task[absent] == "", "{absent}: {task}");
    }
    // Priorities are clamped, as over HTTP.
    for (priority, want) in [(-5, 0), (9, 9), (10, 9), (i32::MAX, 9)] {
        let id = producer.make(CreateTask { priority, ..new_task(1, "plain") }).await;
        let task = shown(&server, &id).await;
        assert_eq!(task["priority"].as_i64().unwrap_or(0), want, "{task}");
    }
}

#[tokio::test]
async fn run_at_and_delays_are_applied() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let at = |seconds, nanos| Some(Timestamp { seconds, nanos });
    let tomorrow = jiff::Timestamp::now().as_second() + 86_400;
    let late = CreateTask { run_at: at(tomorrow, 5_000_000), ..new_task(1, "late") };
    let both = CreateTask { run_at: at(1, 0), delay_seconds: 3_600, ..new_task(2, "both") };
    let delayed = CreateTask { delay_seconds: 3_600, ..new_task(3, "delayed") };
    let ancient = CreateTask { run_at: at(-62_135_596_800, 0), ..new_task(4, "ancient") };
    for (task, delayed) in [(late, 1), (both, 0), (delayed, 1), (ancient, 0)] {
        let command = task.command.clone();
        producer.make(task).await;
        let path = format!("admin/queues/{command}");
        let queue = server.get(crate::http::harness::ADMIN, &path).await.expect(200).json();
        assert_eq!(
            (&queue["delayed"], &queue["ready"]),
            (&json!(delayed), &json!(1 - delayed)),
            "{queue}"
        );
    }
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    for command in ["late", "delayed"] {
        worker.ready(command, 1).await;
    }
    // Those tasks wait, these come at once.
    for command in ["both", "ancient"] {
        assert_eq!(worker.take(command).await.command, command);
    }
    // A task that falls due reaches a waiting Ready.
    worker.ready("soon", 1).await;
    let start = std::time::Instant::now();
    let id = producer.make(CreateTask { delay_seconds: 1, ..new_task(5, "soon") }).await;
    assert_eq!(worker.task().await.id, id);
    assert!(start.elapsed().as_millis() >= 900, "{:?}", start.elapsed());
}

#[tokio::test]
async fn keys_make_a_create_repeatable() {
    let server = Harness::start().await;
    let keyed = |seq, payload: &'static str| CreateTask {
        idempotency_key: "k1".into(),
        payload: payload.into(),
        ..new_task(seq, "c")
    };
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let first = producer.create(keyed(1, "{}")).await;
    assert!(first.ok && !first.repeated);
    // On another stream, as after a broken one.
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let again = producer.create(keyed(2, "{}")).await;
    assert_eq!((again.ok, again.repeated, &again.task_id), (true, true, &first.task_id));
    let other = producer.create(keyed(3, "[]")).await;
    assert_eq!((other.ok, &*other.code, &*other.task_id), (false, "idempotency_conflict", ""));
    assert_eq!(other.error_message, "idempotency key was used with a different command or payload");
    // The same in a batch, which also has the key twice.
    let acks = producer.create_all(vec![keyed(4, "{}"), keyed(5, "[]"), new_task(6, "c")]).await;
    let got: Vec<_> = acks.iter().map(|a| (a.seq, a.ok, a.repeated)).collect();
    assert_eq!(got, [(4, true, true), (5, false, false), (6, true, false)]);
    // Over HTTP it is the same key.
    let body = json!({"command": "c", "payload": {}, "idempotencyKey": "k1"});
    let reply = server.post(PRODUCER, "tasks", body).await;
    assert_eq!(reply.id(), first.task_id);
}

#[tokio::test]
async fn a_tasks_own_trace_wins_over_the_calls() {
    let server = Harness::start().await;
    let mut call = Request::new(());
    call.metadata_mut().insert("traceparent", TRACE.parse().unwrap());
    call.metadata_mut().insert("tracestate", "call=1".parse().unwrap());
    let mut producer = producer_on(channel(server.producer_addr()).await, call).await;
    producer.hello(PRODUCER).await;
    producer.event().await;
    let own = |parent: &str, state: &str| CreateTask {
        trace_parent: parent.into(),
        trace_state: state.into(),
        ..new_task(1, "c")
    };
    // A text that is not a trace context is dropped.
    let rows = [
        (own("", ""), json!(TRACE), json!("call=1")),
        (own(OTHER_TRACE, ""), json!(OTHER_TRACE), Value::Null),
        (own(OTHER_TRACE, "x=2"), json!(OTHER_TRACE), json!("x=2")),
        (own("nonsense", "x=2"), Value::Null, Value::Null),
    ];
    for (create, parent, state) in rows {
        let id = producer.make(create).await;
        let task = shown(&server, &id).await;
        assert_eq!((&task["traceParent"], &task["traceState"]), (&parent, &state), "{task}");
    }
}

/// Invalid creates, and the error of each.
fn flaws() -> Vec<(&'static str, CreateTask, &'static str, &'static str)> {
    let payload = |bytes: &[u8]| CreateTask { payload: bytes.to_vec().into(), ..new_task(0, "c") };
    let json = "invalid payload (must be JSON)";
    let nested = [b"[".repeat(101), b"]".repeat(101)].concat();
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    let at = |seconds, nanos| CreateTask {
        run_at: Some(Timestamp { seconds, nanos }),
        ..new_task(0, "c")
    };
    vec![
        ("not JSON", payload(b"{a}"), "invalid_body", json),
        ("blank", payload(b" "), "invalid_body", json),
        ("two values", payload(b"{} {}"), "invalid_body", json),
        ("no UTF-8", payload(b"\"\xff\""), "invalid_body", json),
        ("a mark first", payload("\u{feff}{}".as_bytes()), "invalid_body", json),
        ("too deep", payload(&nested), "too_deep", "invalid body"),
        (
            "too large",
            payload(large.as_bytes()),
            "invalid_payload",
            "invalid payload (1 to 1048576 bytes)",
        ),
        ("no command", new_task(0, ""), "invalid_command", "invalid command"),
        ("a blank command", new_task(0, " \t\n"), "invalid_command", "invalid command"),
        ("a control character", new_task(0, "a\nb"), "invalid_command", "invalid command"),
        ("a long command", new_task(0, &"c".repeat(129)), "invalid_command", "invalid command"),
        (
            "a bad webhook",
            CreateTask { webhook: "ftp://x".into(), ..new_task(0, "c") },
            "invalid_webhook",
            "invalid webhook url",
        ),
        (
            "a webhook to the inside",
            CreateTask { webhook: "http://169.254.169.254/".into(), ..new_task(0, "c") },
            "invalid_webhook",
            "invalid webhook url",
        ),
        (
            "a negative delay",
            CreateTask { delay_seconds: -1, ..new_task(0, "c") },
            "invalid_delay",
            "invalid 'delaySeconds' (must be >= 0)",
        ),
        (
            "a moment beyond all plans",
            at(i64::MAX, 0),
            "invalid_delay",
            "invalid delay (at most 316224000000 ms)",
        ),
        (
            "nanoseconds below 0",
            at(1, -1),
            "invalid_run_at",
            "invalid run_at: nanos must be 0 to 999999999",
        ),
        (
            "nanoseconds of a second",
            at(1, 1_000_000_000),
            "invalid_run_at",
            "invalid run_at: nanos must be 0 to 999999999",
        ),
        (
            "a long key",
            CreateTask { idempotency_key: "k".repeat(257), ..new_task(0, "c") },
            "invalid_idempotency_key",
            "invalid idempotency key (1 to 256 bytes)",
        ),
    ]
}

#[track_caller]
fn assert_refused(case: &str, ack: &CreateAck, code: &str, message: &str) {
    let got = (ack.ok, &*ack.code, &*ack.error_message, &*ack.task_id);
    assert_eq!(got, (false, code, message, ""), "{case}");
}

#[tokio::test]
async fn creates_that_are_refused_alone_and_in_a_batch() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    for (case, task, code, message) in flaws() {
        let ack = producer.create(CreateTask { seq: 9, ..task }).await;
        assert_refused(case, &ack, code, message);
    }
    // In a batch, each is refused alone, and the acknowledgements are in the order of the creates.
    let mut tasks = vec![new_task(1_000, "good")];
    for (i, (_, task, _, _)) in flaws().into_iter().enumerate() {
        tasks.push(CreateTask { seq: i as u64, ..task });
        tasks.push(new_task(1_001 + i as u64, "good"));
    }
    let acks = producer.create_all(tasks).await;
    assert_eq!(acks.len(), 1 + 2 * flaws().len());
    for (i, (case, _, code, message)) in flaws().into_iter().enumerate() {
        assert_eq!(acks[2 * i + 1].seq, i as u64);
        assert_refused(case, &acks[2 * i + 1], code, message);
    }
    for (i, ack) in acks.iter().step_by(2).enumerate() {
        assert!(ack.ok && ack.seq == 1_000 + i as u64 && !ack.task_id.is_empty(), "{ack:?}");
    }
    let queues = server.get(crate::http::harness::ADMIN, "admin/queues").await.expect(200).json();
    assert_eq!(queues, json!({"codeq:q:good:a:pending:0": 1 + flaws().len()}));
}

#[tokio::test]
async fn refusals_are_in_the_words_of_http() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let long = "x".repeat(300);
    for extra in [
        json!({"command": ""}),
        json!({"command": long}),
        json!({"webhook": "ftp://x"}),
        json!({"webhook": "http://0x7f.1/"}),
        json!({"delaySeconds": -1}),
        json!({"idempotencyKey": long}),
    ] {
        let mut body = json!({"command": "c", "payload": {}});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let number = |name| extra[name].as_i64().unwrap_or(0) as i32;
        let text = |name| extra[name].as_str().unwrap_or_default().to_owned();
        let create = CreateTask {
            webhook: text("webhook"),
            max_attempts: number("maxAttempts"),
            delay_seconds: number("delaySeconds"),
            idempotency_key: text("idempotencyKey"),
            ..new_task(1, body["command"].as_str().unwrap())
        };
        let ack = producer.create(create).await;
        let reply = server.post(PRODUCER, "tasks", body).await.json();
        let got = (&json!(ack.error_message), &json!(ack.code));
        assert_eq!(got, (&reply["error"], &reply["code"]), "{extra}");
    }
}

#[tokio::test]
async fn empty_and_entirely_invalid_batches_are_acknowledged() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    assert!(producer.create_all(Vec::new()).await.is_empty());
    let bad = producer.create_all(vec![new_task(1, ""), new_task(2, "")]).await;
    assert!(bad.iter().all(|ack| !ack.ok && ack.code == "invalid_command"), "{bad:?}");
    producer.closes().await;
}

#[tokio::test]
async fn every_create_has_one_ack_with_its_number() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    // The client chooses the numbers: none is special, and the same one may come twice.
    let mut want: Vec<u64> = (0..500).map(|n| n * 7 % 500).collect();
    want.extend([0, 0, u64::MAX]);
    let sender = producer.sender();
    let numbers = want.clone();
    let sending = tokio::spawn(async move {
        for (i, seq) in numbers.into_iter().enumerate() {
            let command = if i % 10 == 3 { "" } else { "c" };
            let event = Some(ToProducers::Create(new_task(seq, command)));
            sender.send(codeq_proto::producer::ProducerEvent { event }).await.unwrap();
        }
    });
    let (mut got, mut ids, mut refused) = (Vec::new(), std::collections::HashSet::new(), 0);
    for _ in 0..want.len() {
        let ack = producer.ack().await;
        got.push(ack.seq);
        if ack.ok {
            assert!(ids.insert(ack.task_id));
        } else {
            refused += 1;
        }
    }
    sending.await.unwrap();
    producer.closes().await;
    want.sort_unstable();
    got.sort_unstable();
    assert_eq!((got, refused), (want, 50));
    for id in ids.iter().take(5) {
        shown(&server, id).await;
    }
}
