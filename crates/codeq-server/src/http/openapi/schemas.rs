//! The schemas of requests and responses, derived from the structs that are parsed and sent.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Collects schemas. A request describes how a struct is parsed, a response how it is sent.
pub struct Schemas {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
}

impl Schemas {
    /// No schemas yet.
    pub fn new() -> Schemas {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        let requests = settings.clone().for_deserialize().into_generator();
        Schemas { requests, responses: settings.for_serialize().into_generator() }
    }

    /// Adds the schema of a request.
    pub fn request<T: JsonSchema>(&mut self) {
        self.requests.subschema_for::<T>();
    }

    /// Adds the schema of a response.
    pub fn response<T: JsonSchema>(&mut self) {
        self.responses.subschema_for::<T>();
    }

    /// The schemas by name.
    pub fn finish(mut self) -> Map<String, Value> {
        let mut requests = self.requests.take_definitions(false);
        requests.values_mut().for_each(|schema| each(schema, close));
        let mut schemas = self.responses.take_definitions(false);
        schemas.values_mut().for_each(|schema| each(schema, leave_out));
        schemas.extend(requests);
        schemas.values_mut().for_each(|schema| each(schema, tidy));
        schemas
    }
}

/// Calls `change` with every object in a schema.
fn each(value: &mut Value, change: fn(&mut Map<String, Value>)) {
    match value {
        Value::Object(map) => {
            change(map);
            map.values_mut().for_each(|value| each(value, change));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| each(value, change)),
        _ => {}
    }
}

/// The server refuses unknown fields, and numbers that do not fit.
fn close(schema: &mut Map<String, Value>) {
    if is(schema, "type", "object") && schema.contains_key("properties") {
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
    if is(schema, "format", "int64") {
        schema.entry("minimum").or_insert(json!(i64::MIN));
        schema.entry("maximum").or_insert(json!(i64::MAX));
    }
}

/// Responses leave out optional fields and never send null for them, and the variants of an enum exclude each other.
fn leave_out(schema: &mut Map<String, Value>) {
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        if !required.iter().any(|field| field == name)
            && let Some(kind) = property.get_mut("type")
            && let Some([one, _]) = kind.as_array().map(Vec::as_slice)
        {
            *kind = one.clone();
        }
    }
    if let Some(variants) = schema.remove("anyOf") {
        schema.insert("oneOf".to_owned(), variants);
    }
}

/// Descriptions are one line, integers have one format, and objects are open by default.
fn tidy(schema: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    if schema.get("format").and_then(Value::as_str).is_some_and(|format| format.contains("int")) {
        schema.insert("format".to_owned(), json!("int64"));
    }
    if schema.get("additionalProperties") == Some(&json!(true)) {
        schema.remove("additionalProperties");
    }
}

fn is(schema: &Map<String, Value>, field: &str, text: &str) -> bool {
    schema.get(field).and_then(Value::as_str) == Some(text)
}
