//! Comparing answers with what they should look like, to the last member.

use serde_json::{Map, Value, json};

/// Compares exactly, but for these texts in `expected`: `<id>`, `<time>`, `<text>` and `<number>` stand for
/// any value of that kind. An object must have the members of `expected` and no other.
#[track_caller]
pub fn assert_shape(actual: &Value, expected: &Value) {
    if let Err(why) = compare(actual, expected, "$") {
        panic!("{why}\nanswer:   {actual}\nexpected: {expected}");
    }
}

fn compare(actual: &Value, expected: &Value, at: &str) -> Result<(), String> {
    match (actual, expected) {
        (actual, Value::String(text)) if text.starts_with('<') => {
            if is_kind(actual, text) {
                Ok(())
            } else {
                Err(format!("{at}: not {text}: {actual}"))
            }
        }
        (Value::Object(actual), Value::Object(expected)) => objects(actual, expected, at),
        (Value::Array(actual), Value::Array(expected)) if actual.len() == expected.len() => {
            let mut pairs = actual.iter().zip(expected).enumerate();
            pairs.try_for_each(|(n, (actual, expected))| {
                compare(actual, expected, &format!("{at}[{n}]"))
            })
        }
        _ if actual == expected => Ok(()),
        _ => Err(format!("{at}: {actual} is not {expected}")),
    }
}

fn objects(
    actual: &Map<String, Value>,
    expected: &Map<String, Value>,
    at: &str,
) -> Result<(), String> {
    if let Some(name) = actual.keys().find(|name| !expected.contains_key(*name)) {
        return Err(format!("{at}.{name}: should be absent"));
    }
    expected.iter().try_for_each(|(name, expected)| {
        let actual = actual.get(name).ok_or(format!("{at}.{name}: missing"))?;
        compare(actual, expected, &format!("{at}.{name}"))
    })
}

fn is_kind(value: &Value, kind: &str) -> bool {
    let text = value.as_str().unwrap_or_default();
    match kind {
        "<id>" => text.len() == 36 && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit()),
        "<time>" => is_time(text),
        "<text>" => !text.is_empty(),
        "<number>" => value.is_number(),
        _ => panic!("{kind} is no kind of value"),
    }
}

/// A moment as the server writes it by default: RFC 3339, milliseconds, `Z`.
fn is_time(text: &str) -> bool {
    let pattern = "dddd-dd-ddTdd:dd:dd.dddZ";
    text.len() == pattern.len()
        && text.bytes().zip(pattern.bytes()).all(|(byte, want)| match want {
            b'd' => byte.is_ascii_digit(),
            want => byte == want,
        })
}

/// A task that was just made, with `more` members.
pub fn new_task(command: &str, payload: &str, more: Value) -> Value {
    let task = json!({
        "id": "<id>", "command": command, "payload": payload, "status": "PENDING",
        "lastKnownLocation": "PENDING_LIST", "maxAttempts": 5, "tenantId": "a",
        "createdAt": "<time>", "updatedAt": "<time>",
    });
    with(task, more)
}

/// An object with members replaced or, where they are null, removed.
pub fn with(object: Value, changes: Value) -> Value {
    let Value::Object(mut object) = object else { panic!("not an object: {object}") };
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            object.remove(name);
        } else {
            object.insert(name.clone(), value.clone());
        }
    }
    Value::Object(object)
}
