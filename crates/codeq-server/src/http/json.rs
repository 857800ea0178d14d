//! JSON from outside.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::parse_error::explain;
use crate::service::ServiceError;

/// Deepest nesting of a body. The parser of raw values has no limit of its own.
pub const DEPTH_MAX: usize = 100;

/// Reads a body that must be there.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ServiceError> {
    check_depth(body)?;
    let text = std::str::from_utf8(body).map_err(|error| {
        let detail = format!("not UTF-8 after byte {}", error.valid_up_to());
        ServiceError::invalid_body().detail(detail)
    })?;
    parse_object(text)
}

/// Reads an object, and only an object: the parser would take an array for one, field by field.
pub fn parse_object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, ServiceError> {
    if !text.trim_ascii_start().starts_with('{') {
        let empty = text.trim_ascii().is_empty();
        let found = if empty { "nothing" } else { "something else" };
        let detail = format!("expected a JSON object, found {found}");
        return Err(ServiceError::invalid_body().detail(detail));
    }
    serde_json::from_str(text).map_err(|error| explain::<T>(text, &error))
}

/// Reads one item of a batch. Where it is broken, the place is one in the item.
pub fn parse_item<'a, T: Deserialize<'a>>(index: usize, text: &'a str) -> Result<T, ServiceError> {
    parse_object(text).map_err(|error| in_item(index, error))
}

/// Says in the detail which item of a batch it is about.
pub fn in_item(index: usize, error: ServiceError) -> ServiceError {
    let detail = format!("item {index}: {}", error.detail.as_deref().unwrap_or(&error.error));
    error.detail(detail)
}

/// Reads a body that may be empty, where every field is optional.
pub fn parse_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, ServiceError> {
    if body.trim_ascii().is_empty() { Ok(T::default()) } else { parse(body) }
}

/// Refuses a payload that is not JSON text. What is JSON is kept as it is.
pub fn check_payload(payload: &[u8]) -> Result<(), ServiceError> {
    let invalid = || ServiceError::invalid("invalid_body", "invalid payload (must be JSON)");
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
    Err(ServiceError::invalid("invalid_result", "invalid result (must be an object)"))
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
                    return Err(ServiceError::invalid("too_deep", "invalid body").detail(detail));
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

    #[test]
    fn an_array_is_no_object() {
        #[derive(Deserialize, Default)]
        struct Body {
            limit: Option<u32>,
        }
        assert_eq!(parse::<Body>(br#" {"limit":3}"#).unwrap().limit, Some(3));
        for bad in ["[3]", "[null]", "3", "null", "", "\u{feff}{}"] {
            assert!(parse::<Body>(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse_or_default::<Body>(b" \n").unwrap().limit.is_none());
        assert!(parse_or_default::<Body>(b"[]").is_err());
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
