//! Checks of JSON that is stored verbatim.

use serde::de::IgnoredAny;

use super::{Code, ServiceError};

/// Deepest nesting of a body. The raw-value parser has no limit of its own.
pub const DEPTH_MAX: usize = 100;

/// Rejects a payload that is not JSON. Valid payloads are stored verbatim.
pub fn check_payload(payload: &[u8]) -> Result<(), ServiceError> {
    let invalid = || ServiceError::new(Code::InvalidBody, "invalid payload (must be JSON)");
    check_depth(payload)?;
    // A separate step, because the parser skips over strings without validating their bytes.
    let text = std::str::from_utf8(payload).map_err(|_| invalid())?;
    serde_json::from_str::<IgnoredAny>(text).map_err(|_| invalid())?;
    Ok(())
}

/// Rejects a result that is not a JSON object.
pub fn check_result(result: &[u8]) -> Result<(), ServiceError> {
    let object = result.trim_ascii_start().starts_with(b"{");
    if object && check_payload(result).is_ok() {
        return Ok(());
    }
    Err(ServiceError::new(Code::InvalidResult, "invalid result (must be an object)"))
}

/// Rejects nesting deeper than [`DEPTH_MAX`], in one pass over the bytes.
pub fn check_depth(body: &[u8]) -> Result<(), ServiceError> {
    // Too few brackets to nest that deep, even counting those inside strings. Counting takes nanoseconds.
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
