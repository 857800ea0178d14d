//! JSON from outside.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::fields::{self, Unread, unknown_field};
use super::parse_error::explain;
use crate::config::UnknownFields;
use crate::service::{Code, ServiceError};

/// Deepest nesting of a body. The parser of raw values has no limit of its own.
pub const DEPTH_MAX: usize = 100;

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

/// Refuses a payload that is not JSON text. What is JSON is kept as it is.
pub fn check_payload(payload: &[u8]) -> Result<(), ServiceError> {
    let invalid = || ServiceError::new(Code::InvalidBody, "invalid payload (must be JSON)");
    check_depth(payload)?;
    // Its own step: the parser skips over strings without looking at their bytes.
    let text = std::str::from_utf8(payload).map_err(|_| invalid())?;
    serde_json::from_str::<IgnoredAny>(text).map_err(|_| invalid())?;
    Ok(())
}

/// Refuses a result that is not the text of a JSON object.
pub fn check_result(result: &[u8]) -> Result<(), ServiceError> {
    let object = result.trim_ascii_start().starts_with(b"{");
    if object && check_payload(result).is_ok() {
        return Ok(());
    }
    Err(ServiceError::new(Code::InvalidResult, "invalid result (must be an object)"))
}

/// Refuses nesting deeper than [`DEPTH_MAX`], in one pass over the bytes.
fn check_depth(body: &[u8]) -> Result<(), ServiceError> {
    // Few brackets cannot be deep, whatever they stand in; to count them is a matter of nanoseconds.
    if body.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() <= DEPTH_MAX {
        return Ok(());
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > DEPTH_MAX {
                    let detail = format!("nested deeper than {DEPTH_MAX} levels");
                    return Err(ServiceError::new(Code::TooDeep, "invalid body").detail(detail));
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
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

    #[test]
    fn depth_counts_outside_of_strings_only() {
        let nested = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(check_depth(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(check_depth(nested(DEPTH_MAX + 1).as_bytes()).is_err());
        assert!(check_depth("[".repeat(1_000_000).as_bytes()).is_err());
        let text = format!(r#"{{"a":"{}\"{}"}}"#, "[".repeat(500), "{".repeat(500));
        assert!(check_depth(text.as_bytes()).is_ok());
        assert!(check_depth(format!("[{}]", "[],".repeat(10_000)).as_bytes()).is_ok());
    }
}
