//! Hexadecimal encoding.

/// Encodes bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let mut text = String::with_capacity(2 * bytes.len());
    text.extend(digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)));
    text
}
