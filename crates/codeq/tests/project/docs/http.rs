//! The HTTP reference, from the OpenAPI document.

use std::collections::BTreeSet;
use std::fmt::Write;

use codeq_server::http::routes::ROUTES;
use serde_json::Value;

use super::reference::cell;

/// Errors of every route that needs a token, said once.
const COMMON: [&str; 12] = [
    "missing_token",
    "invalid_token",
    "forbidden",
    "identity_unavailable",
    "rate_limited",
    "unknown_field",
    "invalid_body",
    "too_deep",
    "overloaded",
    "shutting_down",
    "failed",
    "internal",
];

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn name_of(reference: &Value) -> Option<&str> {
    reference["$ref"].as_str().and_then(|path| path.rsplit('/').next())
}

/// A value, or the component that it refers to.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let path = value["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
    path.and_then(|path| document.pointer(path)).unwrap_or(value)
}

/// What a field holds, in a word or two. Types that are described on the page are links.
fn kind(schema: &Value) -> String {
    if let Some(name) = name_of(schema) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    let named = match &schema["type"] {
        Value::Array(kinds) => {
            kinds.iter().find_map(|one| one.as_str().filter(|one| *one != "null"))
        }
        one => one.as_str(),
    };
    let values = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let values = values.filter(|value| !value.is_empty());
    let values: Vec<String> = values.map(|value| format!("`{value}`")).collect();
    match (named, schema["anyOf"].as_array().or(schema["oneOf"].as_array())) {
        _ if !values.is_empty() => values.join(", "),
        (Some("array"), _) => match kind(&schema["items"]) {
            items if items.is_empty() => "list".to_owned(),
            items => format!("list of {items}"),
        },
        (Some("string"), _) if schema["format"] == "date-time" => "time".to_owned(),
        (Some(named), _) => named.to_owned(),
        (None, Some(choices)) => {
            let kinds: Vec<String> = choices.iter().map(kind).collect();
            let mut unique: Vec<&str> = Vec::new();
            for kind in kinds.iter().filter(|kind| !["", "null"].contains(&kind.as_str())) {
                // An empty string means no time.
                let known = unique.contains(&kind.as_str());
                let empty = kind == "string" && unique.contains(&"time");
                if !known && !empty {
                    unique.push(kind);
                }
            }
            unique.join(" or ")
        }
        (None, None) => "JSON".to_owned(),
    }
}

fn fields(page: &mut String, schema: &Value) {
    let Some(properties) = schema["properties"].as_object().filter(|fields| !fields.is_empty())
    else {
        return;
    };
    let required: BTreeSet<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    page.push_str("| Field | Type | |\n|---|---|---|\n");
    for (name, field) in properties {
        let needed = if required.contains(name.as_str()) { ", required" } else { "" };
        let _ = writeln!(
            page,
            "| `{name}` | {}{needed} | {} |",
            cell(&kind(field)),
            cell(text(field, "description"))
        );
    }
    page.push('\n');
}

fn parameters(page: &mut String, document: &Value, operation: &Value) {
    let listed = operation["parameters"].as_array().into_iter().flatten();
    let listed = listed.map(|parameter| resolve(document, parameter));
    let listed: Vec<&Value> =
        listed.filter(|parameter| parameter["name"] != "X-Request-Id").collect();
    if listed.is_empty() {
        return;
    }
    page.push_str("| Parameter | In | |\n|---|---|---|\n");
    for parameter in listed {
        let (name, place) = (text(parameter, "name"), text(parameter, "in"));
        let _ = writeln!(page, "| `{name}` | {place} | {} |", cell(text(parameter, "description")));
    }
    page.push('\n');
}

fn responses(page: &mut String, document: &Value, operation: &Value) {
    let mut codes = Vec::new();
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        let response = resolve(document, response);
        let description = text(response, "description");
        if status.starts_with(['4', '5']) {
            let schema = &response["content"]["application/problem+json"]["schema"];
            let code = &schema["properties"]["code"];
            let listed = code["enum"].as_array().into_iter().flatten().chain(code.get("const"));
            let listed = listed.filter_map(Value::as_str).filter(|code| !COMMON.contains(code));
            codes.extend(listed.map(|code| format!("`{code}`")));
            continue;
        }
        let content = response["content"].as_object().and_then(|content| content.values().next());
        let body = content.and_then(|content| name_of(&content["schema"]));
        let body = body.map(|name| format!(", [{name}](#{})", name.to_lowercase()));
        let _ = writeln!(page, "**{status}**{}: {description}\n", body.unwrap_or_default());
    }
    let mut seen = std::collections::HashSet::new();
    codes.retain(|code| seen.insert(code.clone()));
    if !codes.is_empty() {
        let _ = writeln!(page, "Errors: {}\n", codes.join(", "));
    }
}

fn operation(page: &mut String, document: &Value, method: &str, path: &str, operation: &Value) {
    let who = match (text(operation, "x-codeq-access"), operation["x-codeq-scope"].as_str()) {
        ("open", _) => "no token".to_owned(),
        ("any", _) => "any token".to_owned(),
        (who, Some(scope)) => format!("{who} (`{scope}`)"),
        (who, None) => who.to_owned(),
    };
    let _ = writeln!(page, "### {}\n", text(operation, "summary"));
    let _ = writeln!(page, "`{method} {path}` — {who}\n");
    if !text(operation, "description").is_empty() {
        let _ = writeln!(page, "{}\n", text(operation, "description"));
    }
    parameters(page, document, operation);
    let body = &operation["requestBody"]["content"]["application/json"];
    fields(page, resolve(document, &body["schema"]));
    if let Some(example) = body.get("example") {
        let _ = writeln!(page, "```json\n{example}\n```\n");
    }
    responses(page, document, operation);
}

/// Types that responses and other types refer to. Request bodies are described with their routes.
fn types(page: &mut String, document: &Value) {
    let paths = document["paths"].as_object().into_iter().flatten();
    let operations = paths.flat_map(|(_, methods)| methods.as_object().into_iter().flatten());
    let bodies: BTreeSet<&str> = operations
        .filter_map(|(_, one)| {
            name_of(&one["requestBody"]["content"]["application/json"]["schema"])
        })
        .filter(|name| !page.contains(&format!("](#{})", name.to_lowercase())))
        .collect();
    page.push_str("## Types\n\n");
    let schemas = document["components"]["schemas"].as_object().into_iter().flatten();
    for (name, schema) in schemas.filter(|(name, _)| !bodies.contains(name.as_str())) {
        let _ = writeln!(page, "### {name}\n");
        if !text(schema, "description").is_empty() {
            let _ = writeln!(page, "{}\n", text(schema, "description"));
        }
        fields(page, schema);
    }
}

pub fn page(document: &Value) -> String {
    let mut page = String::from("# HTTP API\n\n");
    let _ = writeln!(
        page,
        "A running server shows this reference at `/docs`, and as OpenAPI 3.1 at `/openapi.json` \
         ([openapi.json](../openapi.json)). [Errors](errors.md) explains the error codes. Each route lists its own codes; any \
         route can also return {}.\n\n{}\n",
        COMMON.map(|code| format!("`{code}`")).join(", "),
        text(&document["info"], "description")
    );
    for tag in document["tags"].as_array().into_iter().flatten() {
        let name = text(tag, "name");
        let title = match name {
            "dlq" => "Dead letters".to_owned(),
            "server" => "Server".to_owned(),
            name => format!("{}{}s", name[..1].to_uppercase(), &name[1..]),
        };
        let _ = writeln!(page, "## {title}\n\n{}\n", text(tag, "description"));
        // In the order of the list of routes, which begins with what most clients need.
        for route in ROUTES {
            let method = route.verb.name();
            let one = &document["paths"][route.path][method.to_lowercase()];
            if one["tags"][0] == name {
                operation(&mut page, document, method, route.path, one);
            }
        }
    }
    types(&mut page, document);
    page
}
