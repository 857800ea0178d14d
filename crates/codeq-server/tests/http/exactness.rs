//! Payloads and results come back as they were sent, byte for byte.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::harness::{Harness, PRODUCER, WORKER};

/// JSON texts that would change if anything parsed and rewrote them.
fn values() -> Vec<String> {
    let mut values: Vec<String> = [
        "9007199254740993",
        "-9007199254740993",
        "18446744073709551616",
        "123456789012345678901234567890.123456789012345678901234567890",
        "1e400",
        "-1E+400",
        "1e-400",
        "0.1",
        "-0",
        "-0.0",
        "1.0",
        "1.50",
        "1E2",
        "true",
        "false",
        r#""""#,
        r#""text""#,
        r#""null""#,
        r#""\u0000""#,
        r#""\u00e9\u00E9é""#,
        r#""\ud83d\ude00😀""#,
        r#""\ud800 alone""#,
        r#""\/ / \b\f\n\r\t\\\"""#,
        "\"\u{2028}\u{2029}\u{feff}\u{7f}\u{10ffff}\"",
        "[]",
        "[ 1 ,2,  3\t]",
        "[\n  1,\r\n  2\n]",
        "{}",
        "{ }",
        r#"{"z":1,"a":2,"m":3}"#,
        r#"{"a":1,"a":2,"a":{"a":3,"a":4}}"#,
        r#"{"":1," ":2,"\u0061":3}"#,
        r#"{ "a" : [ 1 , { "b" : null } ] }"#,
        r#"{"n":9007199254740993,"f":0.30000000000000004,"e":1e400}"#,
        r#"{"__proto__":{"x":1},"constructor":null,"$serde_json::private::RawValue":"1"}"#,
        r#"{"payload":1,"command":"other","result":{},"status":"FAILED"}"#,
        "[null,null]",
    ]
    .map(str::to_owned)
    .into();
    values.push(format!("{}1{}", "[".repeat(98), "]".repeat(98)));
    values.push(format!("{}1{}", "{\"k\":".repeat(98), "}".repeat(98)));
    values.push(format!("\"{}\"", "😀é\\u0000x".repeat(70_000)));
    values.push(format!("[{}0]", "1234567890.10, ".repeat(60_000)));
    values
}

#[derive(Deserialize)]
struct Task {
    id: String,
    payload: String,
}

#[derive(Deserialize)]
struct Record<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
}

#[derive(Deserialize)]
struct Finished<'a> {
    task: Task,
    #[serde(borrow)]
    result: Record<'a>,
}

fn start(text: &str) -> &str {
    text.get(..60).unwrap_or(text)
}

#[track_caller]
fn assert_same(got: &str, sent: &str) {
    // Not assert_eq: a megabyte in a message helps nobody.
    assert!(got == sent, "sent {} got {}", start(sent), start(got));
}

async fn post(h: &Harness, token: &str, path: &str, body: String, status: u16) -> Vec<u8> {
    h.post_text(token, path, body).await.expect(status).body.to_vec()
}

#[tokio::test]
async fn payloads_are_kept_byte_for_byte() {
    let h = Harness::start().await;
    for sent in values() {
        let body = format!("{{\"command\":\"c\",\"payload\": {sent} \n}}");
        let made: Task =
            serde_json::from_slice(&post(&h, PRODUCER, "tasks", body, 202).await).unwrap();
        assert_same(&made.payload, &sent);
        let read = h.get(PRODUCER, &format!("tasks/{}", made.id)).await.expect(200);
        assert_same(&serde_json::from_slice::<Task>(&read.body).unwrap().payload, &sent);
        let claimed = post(&h, WORKER, "tasks/claim", String::new(), 200).await;
        let claimed: Task = serde_json::from_slice(&claimed).unwrap();
        assert_eq!(claimed.id, made.id);
        assert_same(&claimed.payload, &sent);
    }
}

#[tokio::test]
async fn results_are_kept_byte_for_byte() {
    let h = Harness::start().await;
    for value in values() {
        // A result is an object; its spacing is the worker's, too.
        let sent = if value.starts_with('{') { value } else { format!("{{\"r\":  {value} }}") };
        let id = h.running("c").await;
        let body = format!("{{\"status\":\"COMPLETED\",\"result\": {sent}}}");
        let path = format!("tasks/{id}/result");
        let answer = post(&h, WORKER, &path, body, 200).await;
        let record: Record<'_> = serde_json::from_slice(&answer).unwrap();
        assert_same(record.result.get(), &sent);
        let read = h.get(PRODUCER, &path).await.expect(200);
        let read: Finished<'_> = serde_json::from_slice(&read.body).unwrap();
        assert_eq!(read.task.id, id);
        assert_same(read.result.result.get(), &sent);
    }
}

#[tokio::test]
async fn batches_and_restarts_change_nothing() {
    let h = Harness::start().await;
    // Not the deepest: a batch is two levels deeper than a task.
    let fits = |text: &String| text.len() < 2_000 && text.matches(['[', '{']).count() < 98;
    let sent: Vec<String> = values().into_iter().filter(fits).collect();
    let items: Vec<String> =
        sent.iter().map(|text| format!("{{\"command\":\"c\",\"payload\":{text}}}")).collect();
    let body = format!("{{\"tasks\":[{}]}}", items.join(","));
    #[derive(Deserialize)]
    struct Made {
        task: Task,
    }
    #[derive(Deserialize)]
    struct Batch {
        results: Vec<Made>,
    }
    let made = post(&h, PRODUCER, "tasks/batch", body, 200).await;
    let made: Batch = serde_json::from_slice(&made).unwrap();
    assert_eq!(made.results.len(), sent.len());
    let h = h.restart().await;
    for (sent, Made { task }) in sent.iter().zip(made.results) {
        assert_same(&task.payload, sent);
        let read = h.get(PRODUCER, &format!("tasks/{}", task.id)).await.expect(200);
        assert_same(&serde_json::from_slice::<Task>(&read.body).unwrap().payload, sent);
    }
}

#[tokio::test]
async fn commands_and_errors_keep_their_text() {
    let h = Harness::start().await;
    for text in ["Ünï/..\\ code😀", "a\"b", "<script>", "%2e%2e", "{id}", "codeq:q:x:b:pending:0"]
    {
        let id = h.task(text).await;
        assert_eq!(h.claim(WORKER, text).await["command"], *text);
        let error = format!("{text}\n\t\"\u{1}");
        let body = serde_json::json!({"status": "FAILED", "error": error});
        let path = format!("tasks/{id}/result");
        assert_eq!(h.post(WORKER, &path, body).await.expect(200).json()["error"], *error);
        let read = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
        assert_eq!((&read["command"], &read["error"]), (&text.into(), &error.into()));
    }
}
