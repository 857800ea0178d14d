//! JSON from outside.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::fields::{self, Unread, unknown_field};
use super::parse_error::explain;
use crate::config::UnknownFields;
use crate::service::ServiceError;
use crate::service::payload::check_depth;

/// The body of a request, and what becomes of fields in it that nobody knows.
#[derive(Debug, Clone)]
pub struct Body {
    /// Its bytes.
    pub bytes: Bytes,
    /// What becomes of unknown fields.
    pub unknown: UnknownFields,
}

/// The body of a route that has no fields.
#[derive(Deserialize, Default)]
pub struct NoFields {}

/// Reads a body that must be there.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a Body) -> Result<T, ServiceError> {
    check_depth(&body.bytes)?;
    parse_batch(body)
}

/// Reads the body of a batch, whose items are raw values. How deep they are is looked at one by one, so that one that
/// is too deep does not fail the others: see [`parse_item`].
pub fn parse_batch<'a, T: Deserialize<'a>>(body: &'a Body) -> Result<T, ServiceError> {
    let text = std::str::from_utf8(&body.bytes).map_err(|error| {
        let detail = format!("not UTF-8 after byte {}", error.valid_up_to());
        ServiceError::invalid_body().detail(detail)
    })?;
    parse_object(text, body.unknown)
}

/// Reads an object, and only an object: the parser would take an array for one, field by field.
pub fn parse_object<'a, T: Deserialize<'a>>(
    text: &'a str,
    unknown: UnknownFields,
) -> Result<T, ServiceError> {
    if !text.trim_ascii_start().starts_with('{') {
        let empty = text.trim_ascii().is_empty();
        let found = if empty { "nothing" } else { "something else" };
        let detail = format!("expected a JSON object, found {found}");
        return Err(ServiceError::invalid_body().detail(detail));
    }
    let read = match unknown {
        UnknownFields::Refuse => fields::read(text),
        UnknownFields::Ignore => serde_json::from_str(text).map_err(Unread::Json),
    };
    read.map_err(|unread| match unread {
        Unread::Unknown { name, known } => unknown_field(&name, known),
        Unread::Json(error) => explain::<T>(text, &error),
    })
}

/// Reads one item of a batch. Where it is broken, the place is one in the item.
pub fn parse_item<'a, T: Deserialize<'a>>(
    text: &'a str,
    unknown: UnknownFields,
) -> Result<T, ServiceError> {
    check_depth(text.as_bytes())?;
    parse_object(text, unknown)
}

/// Says in the detail which item of a batch it is about.
pub fn in_item(index: usize, error: ServiceError) -> ServiceError {
    let detail = format!("item {index}: {}", error.detail.as_deref().unwrap_or(&error.error));
    error.detail(detail)
}

/// Reads a body where every field is optional: it may be empty or `null`.
pub fn parse_or_default<T: DeserializeOwned + Default>(body: &Body) -> Result<T, ServiceError> {
    match body.bytes.trim_ascii() {
        b"" | b"null" => Ok(T::default()),
        _ => parse(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Body {
        Body { bytes: Bytes::copy_from_slice(text.as_bytes()), unknown: UnknownFields::Refuse }
    }

    #[test]
    fn an_array_is_no_object() {
        #[derive(Deserialize, Default)]
        struct Limits {
            limit: Option<u32>,
        }
        assert_eq!(parse::<Limits>(&body(r#" {"limit":3}"#)).unwrap().limit, Some(3));
        for bad in ["[3]", "[null]", "3", "null", "", "\u{feff}{}"] {
            assert!(parse::<Limits>(&body(bad)).is_err(), "{bad}");
        }
        for nothing in ["", " \n", "null", " null\r\n", "{}"] {
            assert!(parse_or_default::<Limits>(&body(nothing)).unwrap().limit.is_none());
        }
        for bad in ["[]", "nul", "null null", "\"null\""] {
            assert!(parse_or_default::<Limits>(&body(bad)).is_err(), "{bad}");
        }
    }
}
