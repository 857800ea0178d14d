//! Parts of schemas that no type implies. The schemas of requests and responses are derived from
//! the structs that are parsed and sent.

use codeq_core::history::Event;
use codeq_core::limits::{COMMAND_BYTES_MAX, TOPIC_NAME_BYTES_MAX};
use codeq_core::place::{Place, Status};
use schemars::{Schema, json_schema};
use serde_json::{Value, json};

/// No control characters, as defined by `char::is_control`.
pub const NO_CONTROLS: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";
/// A DNS label.
pub const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// An http or https URL. Not `format: uri`, which forbids the non-ASCII names that are allowed here.
pub const URL: &str = r"^https?://[^/?#\s]";

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

/// The statuses of tasks.
pub fn statuses() -> Vec<&'static str> {
    Status::ALL.map(Status::as_str).into()
}

/// The statuses of finished tasks.
pub fn endings() -> Vec<&'static str> {
    [Status::Completed, Status::Failed].map(Status::as_str).into()
}

/// The places of tasks.
pub fn places() -> Vec<&'static str> {
    let places = [Place::Pending, Place::Delayed, Place::InProgress, Place::Dead, Place::Completed];
    places.map(Place::location).into()
}

/// The events that move tasks.
pub fn events() -> Vec<&'static str> {
    Event::ALL.map(Event::as_str).into()
}

/// Also allows null and the empty string, which count as absent.
pub fn or_blank(schema: &mut Schema) {
    let description = schema.remove("description").unwrap_or_default();
    schema.insert("type".to_owned(), json!("string"));
    let blank = json!({ "type": ["string", "null"], "maxLength": 0 });
    *schema = json_schema!({ "anyOf": [schema, blank], "description": description });
}

/// Removes a field, for a route that shares its struct with a route that has the field.
pub fn without(field: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.remove(field);
        }
        if let Some(Value::Array(mut required)) = schema.remove("required") {
            required.retain(|name| name != field);
            if !required.is_empty() {
                schema.insert("required".to_owned(), required.into());
            }
        }
    }
}
