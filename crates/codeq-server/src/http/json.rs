//! Parses JSON from clients.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::fields::{self, ReadError, unknown_field};
use super::parse_error::explain;
use crate::config::UnknownFields;
use crate::service::ServiceError;
use crate::service::payload::check_depth;

/// A request body, and how to handle its unknown fields.
#[derive(Debug, Clone)]
pub struct Body {
    /// The raw body.
    pub bytes: Bytes,
    /// How to handle unknown fields.
    pub unknown: UnknownFields,
}

/// The body of a route without fields.
#[derive(Deserialize, Default)]
pub struct NoFields {}

/// Parses a required body.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a Body) -> Result<T, ServiceError> {
    check_depth(&body.bytes)?;
    parse_batch(body)
}

/// Parses the body of a batch, whose items are raw values. [`parse_item`] checks the depth of each
/// item, so that one that is too deep does not fail the others.
pub fn parse_batch<'a, T: Deserialize<'a>>(body: &'a Body) -> Result<T, ServiceError> {
    let text = std::str::from_utf8(&body.bytes).map_err(|error| {
        let detail = format!("not UTF-8 after byte {}", error.valid_up_to());
        ServiceError::invalid_body().detail(detail)
    })?;
    parse_object(text, body.unknown)
}

/// Parses an object and nothing else: serde would also accept an array, as the fields in order.
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
        UnknownFields::Ignore => serde_json::from_str(text).map_err(ReadError::Json),
    };
    read.map_err(|unread| match unread {
        ReadError::Unknown { name, known } => unknown_field(&name, known),
        ReadError::Json(error) => explain::<T>(text, &error),
    })
}

/// Parses one item of a batch. Error positions are relative to the item.
pub fn parse_item<'a, T: Deserialize<'a>>(
    text: &'a str,
    unknown: UnknownFields,
) -> Result<T, ServiceError> {
    check_depth(text.as_bytes())?;
    parse_object(text, unknown)
}

/// Adds the item's index to the error detail.
pub fn in_item(index: usize, error: ServiceError) -> ServiceError {
    let detail = format!("item {index}: {}", error.detail.as_deref().unwrap_or(&error.error));
    error.detail(detail)
}

/// Parses an optional body: empty or `null` means all defaults.
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
    fn an_array_is_not_an_object() {
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
