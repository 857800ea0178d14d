//! A builder for the documentation of one operation.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::schemas::Schemas;
use crate::service::Code;

/// Content type of bodies.
pub const JSON: &str = "application/json";

/// The documentation of an operation, without the facts its route has.
pub struct Operation {
    /// The tag that groups it in the document.
    pub tag: &'static str,
    /// A one-line summary.
    pub summary: &'static str,
    /// The description, in CommonMark.
    pub description: &'static str,
    /// Parameters, without those of the path.
    pub parameters: Vec<Value>,
    /// The request body, if any.
    pub body: Option<Value>,
    /// Add the schemas of requests and responses.
    pub schemas: Vec<fn(&mut Schemas)>,
    /// Successful responses, by status.
    pub answers: BTreeMap<u16, Value>,
    /// Error codes, without those that all routes of its kind share.
    pub codes: Vec<Code>,
}

impl Operation {
    /// An operation without parameters, body or responses.
    pub fn new(tag: &'static str, summary: &'static str, description: &'static str) -> Operation {
        Operation {
            tag,
            summary,
            description,
            parameters: Vec::new(),
            body: None,
            schemas: Vec::new(),
            answers: BTreeMap::new(),
            codes: Vec::new(),
        }
    }

    /// Adds a query parameter. Empty counts as absent.
    pub fn query(mut self, name: &str, description: &str, schema: Value) -> Operation {
        let mut parameter = parameter("query", name, description, schema);
        set(&mut parameter, "allowEmptyValue", json!(true));
        self.parameters.push(parameter);
        self
    }

    /// Adds a required query parameter.
    pub fn required_query(mut self, name: &str, description: &str, schema: Value) -> Operation {
        let mut parameter = parameter("query", name, description, schema);
        set(&mut parameter, "required", json!(true));
        self.parameters.push(parameter);
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, description: &str, schema: Value) -> Operation {
        self.parameters.push(parameter("header", name, description, schema));
        self
    }

    /// Adds a required JSON body.
    pub fn body<T: JsonSchema>(self, example: Value) -> Operation {
        self.takes::<T>(example, true)
    }

    /// Adds an optional JSON body, for operations whose fields are all optional.
    pub fn optional_body<T: JsonSchema>(self, example: Value) -> Operation {
        self.takes::<T>(example, false)
    }

    fn takes<T: JsonSchema>(mut self, example: Value, required: bool) -> Operation {
        let content = json!({ JSON: { "schema": reference::<T>(), "example": example } });
        self.body = Some(json!({ "required": required, "content": content }));
        self.schemas.push(Schemas::request::<T>);
        self
    }

    /// Adds a JSON response.
    pub fn answers<T: JsonSchema>(self, status: u16, description: &str) -> Operation {
        self.answers_as(status, description, JSON, reference::<T>()).sends::<T>()
    }

    /// Adds the schema of something that a response contains.
    pub fn sends<T: JsonSchema>(mut self) -> Operation {
        self.schemas.push(Schemas::response::<T>);
        self
    }

    /// Adds a response with another media type.
    pub fn answers_as(
        mut self,
        status: u16,
        description: &str,
        media: &str,
        schema: Value,
    ) -> Operation {
        let content = json!({ media: { "schema": schema } });
        let answer =
            json!({ "description": description, "headers": headers(), "content": content });
        self.answers.insert(status, answer);
        self
    }

    /// Adds another media type to a response, for content negotiation.
    pub fn or_as(mut self, status: u16, media: &str, schema: Value) -> Operation {
        let answer = self.answers.get_mut(&status);
        if let Some(content) = answer.and_then(|answer| answer.get_mut("content")) {
            set(content, media, json!({ "schema": schema }));
        }
        self
    }

    /// Adds a response without a body.
    pub fn answers_nothing(mut self, status: u16, description: &str) -> Operation {
        let answer = json!({ "description": description, "headers": headers() });
        self.answers.insert(status, answer);
        self
    }

    /// Adds a header to the response with this status.
    pub fn with_header(mut self, status: u16, name: &str, component: &str) -> Operation {
        let header = json!({ "$ref": format!("#/components/headers/{component}") });
        let answer = self.answers.get_mut(&status);
        if let Some(headers) = answer.and_then(|answer| answer.get_mut("headers")) {
            set(headers, name, header);
        }
        self
    }

    /// Links a response to the operations a client can call next on its task.
    pub fn leads_to(mut self, status: u16, id_at: &str, operations: &[&str]) -> Operation {
        let link = |operation: &&str| {
            let parameters = json!({ "id": format!("$response.body#{id_at}") });
            let link = json!({ "operationId": operation, "parameters": parameters });
            ((*operation).to_owned(), link)
        };
        let links: Map<String, Value> = operations.iter().map(link).collect();
        if let Some(answer) = self.answers.get_mut(&status) {
            set(answer, "links", Value::Object(links));
        }
        self
    }

    /// Adds error codes.
    pub fn refuses(mut self, codes: &[Code]) -> Operation {
        self.codes.extend_from_slice(codes);
        self
    }
}

/// A reference to a schema.
pub fn reference<T: JsonSchema>() -> Value {
    json!({ "$ref": format!("#/components/schemas/{}", T::schema_name()) })
}

/// The headers of every response.
pub fn headers() -> Value {
    json!({ "X-Request-Id": { "$ref": "#/components/headers/RequestId" } })
}

/// Sets a field of an object.
pub fn set(object: &mut Value, name: &str, value: Value) {
    if let Some(map) = object.as_object_mut() {
        map.insert(name.to_owned(), value);
    }
}

fn parameter(place: &str, name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": place, "description": description, "schema": schema })
}

/// A string parameter.
pub fn text() -> Value {
    json!({ "type": "string" })
}

/// A boolean query parameter.
pub fn query_flag() -> Value {
    json!({ "type": "string", "enum": ["true", "false", "1", "0"], "default": "false" })
}
