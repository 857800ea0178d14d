//! Example calls with curl.

use serde_json::Value;

use super::{Entry, string};

/// A shell command, with the address and the token in variables.
pub(super) fn line(entry: &Entry<'_>) -> String {
    let path = fill(entry.path);
    let mut query = String::new();
    for parameter in &entry.parameters {
        let required = parameter.get("required") == Some(&Value::Bool(true));
        if required && string(parameter, "in") == "query" {
            let value = parameter.pointer("/schema/enum/0").and_then(Value::as_str);
            query = format!("?{}={}", string(parameter, "name"), value.unwrap_or("…"));
        }
    }
    let mut line = "curl -sS".to_owned();
    if entry.verb != "get" {
        line.push_str(&format!(" -X {}", entry.verb.to_uppercase()));
    }
    if string(entry.operation, "operationId") == "streamEvents" {
        line.push_str(" -N");
    }
    line.push_str(&format!(" \"$CODEQ_URL{path}{query}\""));
    if string(entry.operation, "x-codeq-access") != "open" {
        line.push_str(" \\\n  -H \"Authorization: Bearer $CODEQ_TOKEN\"");
    }
    if let Some(body) = entry.operation.pointer("/requestBody/content/application~1json/example") {
        // A quote would end the shell string, so use a JSON escape.
        let body = body.to_string().replace('\'', "\\u0027");
        line.push_str(&format!(" \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"));
    }
    line
}

/// Fills the path parameters with examples.
fn fill(path: &str) -> String {
    path.replace("{id}", "$TASK_ID")
        .replace("{command}", "GENERATE_MASTER")
        .replace("{name}", "mails")
        .replace("{artifact}", "master.wav")
        .replace("{subscription}", "$SUBSCRIPTION_ID")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::routes::ROUTES;

    #[test]
    fn every_path_parameter_has_an_example() {
        for route in ROUTES {
            let path = fill(route.path);
            assert!(!path.contains(['{', '}']), "{path}");
        }
    }
}
