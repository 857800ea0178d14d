//! Schemas as tables.

use serde_json::Value;

use super::{Html, fields, list, string};

/// Follows a reference; returns any other value unchanged.
pub(super) fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let target = value.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix('#'));
    target.and_then(|at| document.pointer(at)).unwrap_or(value)
}

/// The fields of a schema with their types, or a line for a schema without fields.
pub(super) fn table(page: &mut Html, document: &Value, schema: &Value) {
    for choice in list(schema, "oneOf") {
        table(page, document, choice);
    }
    let name = schema_name(schema);
    let schema = resolve(document, schema);
    if fields(schema, "properties").next().is_none() {
        return;
    }
    let summary = if name.is_empty() { "object" } else { name };
    page.raw("<details><summary><code>")
        .text(summary)
        .raw("</code></summary><div class=\"wide\"><table>");
    rows(page, document, schema);
    page.raw("</table></div></details>");
}

fn rows(page: &mut Html, document: &Value, schema: &Value) {
    let required = list(schema, "required");
    for (name, property) in fields(schema, "properties") {
        page.raw("<tr><td><code>").text(name).raw("</code>");
        if required.iter().any(|field| field == name) {
            page.raw(" <span class=\"bad\" title=\"required\">*</span>");
        }
        page.raw("</td><td>").text(&kind(property)).raw("</td><td>");
        page.prose(string(resolve(document, property), "description"));
        let items = resolve(document, property.get("items").unwrap_or(&Value::Null));
        if property.get("items").is_some_and(|items| items.get("$ref").is_none()) {
            table(page, document, items);
        } else if property.get("$ref").is_none() {
            table(page, document, property);
        }
        page.raw("</td></tr>");
    }
}

/// Describes a schema in a few words.
pub(super) fn kind(schema: &Value) -> String {
    let name = schema_name(schema);
    if !name.is_empty() {
        return name.to_owned();
    }
    if let Some(first) = list(schema, "anyOf").first() {
        return format!("{}, empty or null", kind(first));
    }
    let mut text = match schema.get("type") {
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            names.join(" or ")
        }
        _ => "any".to_owned(),
    };
    if let Some(items) = schema.get("items") {
        text = format!("{text} of {}", kind(items));
    }
    let words: Vec<&str> = list(schema, "enum").iter().filter_map(Value::as_str).collect();
    if !words.is_empty() {
        text = words.join(" | ");
    }
    if let Some(format) = schema
        .get("format")
        .and_then(Value::as_str)
        .filter(|name| !matches!(*name, "int64" | "double"))
    {
        text = format!("{text} ({format})");
    }
    text + &bounds(schema)
}

fn bounds(schema: &Value) -> String {
    let number = |field: &str| schema.get(field).map(Value::to_string);
    // The bounds of a 64-bit integer mean nothing to a reader.
    let shown = |field: &str| number(field).filter(|text| text.trim_start_matches('-').len() < 17);
    let (low, high, unit) = match (shown("minimum"), shown("maximum")) {
        (None, None) => (shown("minLength"), shown("maxLength"), " characters"),
        (low, high) => (low, high, ""),
    };
    match (low, high) {
        (Some(low), Some(high)) => format!(", {low} to {high}{unit}"),
        (Some(low), None) => format!(", at least {low}{unit}"),
        (None, Some(high)) => format!(", at most {high}{unit}"),
        (None, None) => String::new(),
    }
}

fn schema_name(schema: &Value) -> &str {
    string(schema, "$ref").strip_prefix("#/components/schemas/").unwrap_or_default()
}
