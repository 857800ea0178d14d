//! The OpenAPI document: complete, sound, and the one that is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use codeq_server::http::openapi::{document, operations, page, text};
use codeq_server::http::routes::{Access, ROUTES};
use codeq_server::service::Code;
use serde_json::Value;

const VERBS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Every operation with its path and the parameters of both.
fn all() -> Vec<(&'static str, &'static Value, Vec<&'static Value>)> {
    let mut all = Vec::new();
    for (path, item) in document()["paths"].as_object().unwrap() {
        for verb in VERBS {
            let Some(operation) = item.get(verb) else { continue };
            let own = operation.get("parameters").and_then(Value::as_array);
            let shared = item["parameters"].as_array();
            let parameters = shared.into_iter().chain(own).flatten().map(resolve).collect();
            all.push((path.as_str(), operation, parameters));
        }
    }
    all
}

fn resolve(value: &'static Value) -> &'static Value {
    match value.get("$ref").and_then(Value::as_str) {
        Some(at) => document().pointer(at.strip_prefix('#').unwrap()).unwrap(),
        None => value,
    }
}

fn operation(id: &str) -> &'static Value {
    all().into_iter().find(|(_, operation, _)| operation["operationId"] == id).unwrap().1
}

fn statuses(id: &str) -> Vec<&'static str> {
    operation(id)["responses"].as_object().unwrap().keys().map(String::as_str).collect()
}

/// Calls `look` with every value of the document and where it is.
fn walk(value: &'static Value, at: &str, look: &mut impl FnMut(&str, &'static Value)) {
    look(at, value);
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(name, value)| walk(value, &format!("{at}/{name}"), look));
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, value)| walk(value, &format!("{at}/{n}"), look));
        }
        _ => {}
    }
}

#[test]
fn every_route_is_documented_and_nothing_else() {
    let served: BTreeSet<&str> = ROUTES.iter().map(|route| route.operation).collect();
    let documented: BTreeSet<&str> = operations().into_keys().collect();
    assert_eq!(served, documented);
    assert_eq!(served.len(), ROUTES.len(), "operation ids are unique");
    let shown: BTreeSet<&str> =
        all().iter().map(|(_, operation, _)| operation["operationId"].as_str().unwrap()).collect();
    assert_eq!(shown, served);
}

#[test]
fn the_committed_document_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    if std::env::var_os("CODEQ_WRITE_OPENAPI").is_some() {
        std::fs::write(&path, text()).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let committed: Value = serde_json::from_str(&committed).unwrap_or_default();
    assert!(
        committed == *document(),
        "docs/openapi.json is out of date: CODEQ_WRITE_OPENAPI=1 cargo test -p codeq-server --test server openapi"
    );
}

#[test]
fn every_operation_says_who_may_call_it() {
    for route in ROUTES {
        let operation = operation(route.operation);
        let access = operation["x-codeq-access"].as_str().unwrap();
        let scope = operation.get("x-codeq-scope").and_then(Value::as_str);
        let security = operation["security"].as_array().unwrap();
        let expected = match route.access {
            Access::Open => ("open", 0),
            Access::Any => ("any", 2),
            Access::Producer => ("producer", 1),
            Access::Worker(_) => ("worker", 1),
            Access::Admin => ("admin", 2),
            Access::Operator => ("operator", 2),
        };
        assert_eq!((access, security.len()), expected, "{}", route.operation);
        assert_eq!(scope.is_some(), matches!(route.access, Access::Worker(_)));
        if let Some(scope) = scope {
            assert_eq!(security[0]["worker"][0], scope);
        }
        for status in ["401", "403", "429", "503"] {
            let told = operation["responses"].get(status).is_some();
            assert!(told || route.access == Access::Open, "{} {status}", route.operation);
        }
    }
}

#[test]
fn the_parameters_are_those_of_the_list_of_routes() {
    for route in ROUTES {
        let (_, _, parameters) = all()
            .into_iter()
            .find(|(_, operation, _)| operation["operationId"] == route.operation)
            .unwrap();
        let query = parameters.iter().filter(|parameter| parameter["in"] == "query");
        let documented: BTreeSet<&str> =
            query.map(|parameter| parameter["name"].as_str().unwrap()).collect();
        assert_eq!(documented, route.query.iter().copied().collect(), "{}", route.operation);
    }
}

#[test]
fn request_schemas_allow_no_unknown_fields() {
    let mut closed = 0;
    let paths = document()["paths"].as_object().unwrap().values();
    for schema in paths.flat_map(|path| VERBS.iter().filter_map(|verb| path.get(verb))) {
        let body = schema.pointer("/requestBody/content/application~1json/schema");
        let Some(schema) = body else { continue };
        walk(resolve(schema), "", &mut |at, value| {
            if value["type"] == "object" && value.get("properties").is_some() {
                assert_eq!(value["additionalProperties"], false, "{at}");
                closed += 1;
            }
        });
    }
    assert!(closed > 10, "{closed}");
}

#[test]
fn references_resolve_and_all_components_are_used() {
    let mut used = BTreeSet::new();
    walk(document(), "", &mut |at, value| {
        if let Some(target) = value.get("$ref").and_then(Value::as_str) {
            assert!(document().pointer(&target[1..]).is_some(), "{at}: {target}");
            used.insert(target.to_owned());
        }
    });
    // Not tied to an operation: the event of a stream, and responses outside of all routes.
    let free = ["schemas/TaskEvent", "responses/MethodNotAllowed"];
    used.extend(free.map(|name| format!("#/components/{name}")));
    for (group, members) in document()["components"].as_object().unwrap() {
        for name in members.as_object().unwrap().keys().filter(|_| group != "securitySchemes") {
            assert!(used.contains(&format!("#/components/{group}/{name}")), "{group}/{name}");
        }
    }
}

#[test]
fn operations_are_completely_documented() {
    let tags: BTreeSet<&str> = document()["tags"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tag| tag["name"].as_str().unwrap())
        .collect();
    for (path, operation, parameters) in all() {
        let id = operation["operationId"].as_str().unwrap();
        assert!(tags.contains(operation["tags"][0].as_str().unwrap()), "{id}");
        for field in ["summary", "description"] {
            assert!(!operation[field].as_str().unwrap().is_empty(), "{id} {field}");
        }
        let in_path: BTreeSet<&str> = parameters
            .iter()
            .filter(|parameter| parameter["in"] == "path" && parameter["required"] == true)
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        let braces: BTreeSet<&str> =
            path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect();
        assert_eq!(in_path, braces, "{id}");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{id}");
        // Before the head is read there is no request that could have an id.
        for (status, answer) in responses.iter().filter(|(status, _)| *status != "431") {
            let answer = resolve(answer);
            let headers = &answer["headers"];
            assert!(headers["X-Request-Id"].is_object(), "{id} {status}");
            let needed = match status.as_str() {
                "401" => "WWW-Authenticate",
                "429" | "503" => "Retry-After",
                _ => continue,
            };
            assert!(headers[needed].is_object(), "{id} {status}");
        }
        if let Some(body) = operation.pointer("/requestBody/content/application~1json") {
            let schema = resolve(&body["schema"]);
            let empty = Vec::new();
            let required = schema["required"].as_array().unwrap_or(&empty);
            for field in required {
                assert!(body["example"].get(field.as_str().unwrap()).is_some(), "{id} {field}");
            }
            let optional = operation["requestBody"]["required"] == false;
            let needs_any = ["putTopic", "changeTask"].contains(&id);
            assert_eq!(optional, required.is_empty() && !needs_any, "{id}");
        }
    }
}

#[test]
fn answers_follow_from_the_kind_of_route() {
    let enqueue =
        ["202", "400", "401", "403", "408", "413", "415", "422", "429", "431", "500", "503"];
    assert_eq!(statuses("enqueueTask"), enqueue);
    assert_eq!(statuses("livez"), ["200", "400", "431", "500"]);
    assert_eq!(statuses("readyz"), ["200", "400", "431", "500", "503"]);
    let get = ["200", "400", "401", "403", "404", "429", "431", "500", "503"];
    assert_eq!(statuses("getTask"), get);
    assert!(statuses("submitResult").contains(&"409"));
}

#[test]
fn codes_share_a_text_only_next_to_each_other_and_with_another_status() {
    let mut texts = BTreeSet::new();
    for pair in Code::ALL.windows(2) {
        let (one, two) = (pair[0], pair[1]);
        match one.text() == two.text() {
            true => assert_ne!(one.kind(), two.kind(), "{}", one.text()),
            false => assert!(texts.insert(one.text()), "{}", one.text()),
        }
    }
}

#[test]
fn the_page_has_an_anchor_for_every_code_and_operation() {
    let page = page::html();
    let mut ids: BTreeMap<&str, usize> = BTreeMap::new();
    for rest in page.split(" id=\"").skip(1) {
        *ids.entry(rest.split('"').next().unwrap()).or_default() += 1;
    }
    let codes = Code::ALL.iter().map(|code| code.text());
    for anchor in codes.chain(ROUTES.iter().map(|route| route.operation)) {
        assert_eq!(ids.get(anchor), Some(&1), "{anchor}");
    }
    for rest in page.split("href=\"#").skip(1) {
        let target = rest.split('"').next().unwrap();
        assert_eq!(ids.get(target), Some(&1), "{target}");
    }
}
