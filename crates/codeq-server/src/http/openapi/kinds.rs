//! Building blocks for schemas, with bounds taken from the validation rules.

use codeq_core::history::Event;
use codeq_core::limits::{COMMAND_BYTES_MAX, TOPIC_NAME_BYTES_MAX};
use codeq_core::place::{Place, Status};
use serde_json::{Value, json};

use crate::service::filter::FILTER_BYTES_MAX;

/// No control characters, as defined by `char::is_control`.
const NO_CONTROLS: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";
/// A DNS label.
const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// The `filter` of lists: terms separated by spaces.
pub fn filter() -> Value {
    let value = r#"("([^"\\]|\\.)*"|[^"\s]\S*)"#;
    let day =
        "[0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|[12][0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)";
    let time = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?";
    let zone = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    let term = format!("((worker=|error~){value}|created[<>]=?{day}T{time}{zone})");
    let pattern = format!(r"^ *({term}( +{term})*)? *$");
    json!({ "type": "string", "maxLength": FILTER_BYTES_MAX, "pattern": pattern })
}

/// A command name. Its limit is in bytes, which JSON Schema cannot express.
pub fn command() -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": COMMAND_BYTES_MAX, "pattern": NO_CONTROLS,
        "description": format!("1 to {COMMAND_BYTES_MAX} bytes of UTF-8 without control characters."),
    })
}

/// A topic name.
pub fn label() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": TOPIC_NAME_BYTES_MAX, "pattern": LABEL })
}

/// A timestamp.
pub fn moment(description: &str) -> Value {
    json!({ "type": "string", "format": "date-time", "description": description })
}

/// A string.
pub fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

/// A non-negative integer.
pub fn count(description: &str) -> Value {
    json!({ "type": "integer", "format": "int64", "minimum": 0, "description": description })
}

/// A boolean.
pub fn flag(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

/// An enum of these strings.
pub fn word(words: &[&str], description: &str) -> Value {
    json!({ "type": "string", "enum": words, "description": description })
}

/// A task status.
pub fn status(description: &str) -> Value {
    word(&Status::ALL.map(Status::as_str), description)
}

/// The status of a finished task.
pub fn ending(description: &str) -> Value {
    word(&[Status::Completed, Status::Failed].map(Status::as_str), description)
}

/// The place of a task.
pub fn place(description: &str) -> Value {
    let places = [Place::Pending, Place::Delayed, Place::InProgress, Place::Dead, Place::Completed];
    word(&places.map(Place::location), description)
}

/// The event that moved a task.
pub fn event(description: &str) -> Value {
    word(&Event::ALL.map(Event::as_str), description)
}

/// A number in a request; may be null.
pub fn number_or_null(min: i64, max: i64, description: &str) -> Value {
    json!({
        "type": ["integer", "null"], "format": "int64", "minimum": min, "maximum": max,
        "description": description,
    })
}

/// A string in a request; may be null. Empty counts as absent.
pub fn text_or_null(max: usize, description: &str) -> Value {
    json!({ "type": ["string", "null"], "maxLength": max, "description": description })
}

/// A string in a request that must match `form`, unless it is null or empty, which count as absent.
pub fn form_or_blank(form: Value, description: &str) -> Value {
    let blank = json!({ "type": ["string", "null"], "maxLength": 0 });
    json!({ "anyOf": [form, blank], "description": description })
}

/// An array of a schema.
pub fn list(of: Value, description: &str) -> Value {
    json!({ "type": "array", "items": of, "description": description })
}

/// A boolean query parameter.
pub fn query_flag() -> Value {
    json!({ "type": "string", "enum": ["true", "false", "1", "0"], "default": "false" })
}

/// An object with these properties, of which `required` are always present.
pub fn object(description: &str, required: &[&str], properties: Value) -> Value {
    let mut schema =
        json!({ "type": "object", "description": description, "properties": properties });
    if !required.is_empty() {
        super::operation::set(&mut schema, "required", json!(required));
    }
    schema
}
