//! Content as it comes: base64 inside a JSON string, decoded a piece at a time so that it is never in memory
//! twice.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;

/// Letters that are decoded at a time; a multiple of four.
const PIECE: usize = 48 << 10;
/// All but the end: four letters are three bytes, nothing is filled up.
const INNER: GeneralPurpose = engine(DecodePaddingMode::RequireNone);
/// The end, filled up or not.
const LAST: GeneralPurpose = engine(DecodePaddingMode::Indifferent);

const fn engine(padding: DecodePaddingMode) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(padding);
    GeneralPurpose::new(&STANDARD, config)
}

/// The content is not base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotBase64;

/// Base64 as it stands between the quotes of a JSON string.
#[derive(Debug, Clone)]
pub struct Content(Bytes);

impl Content {
    /// The text between the quotes of a JSON string that was parsed before.
    pub fn new(text: Bytes) -> Content {
        Content(text)
    }

    /// Reads it from the beginning.
    pub fn reader(&self) -> Reader {
        Reader { left: self.0.clone(), letters: Vec::with_capacity(PIECE) }
    }
}

/// Decodes content.
#[derive(Debug)]
pub struct Reader {
    left: Bytes,
    letters: Vec<u8>,
}

impl Reader {
    /// Appends the next piece. False if there is none.
    pub fn read(&mut self, to: &mut Vec<u8>) -> Result<bool, NotBase64> {
        if self.left.is_empty() && self.letters.is_empty() {
            return Ok(false);
        }
        while self.letters.len() < PIECE && !self.left.is_empty() {
            self.take()?;
        }
        // What comes last may be filled up, so it is only known for the last when nothing follows.
        let engine = if self.left.is_empty() { LAST } else { INNER };
        engine.decode_vec(&self.letters, to).map_err(|_| NotBase64)?;
        self.letters.clear();
        Ok(true)
    }

    /// Takes letters up to the next escape, or the escape.
    fn take(&mut self) -> Result<(), NotBase64> {
        let room = PIECE.saturating_sub(self.letters.len());
        let run = self.left.iter().take(room).position(|byte| *byte == b'\\');
        match run {
            Some(0) => {
                let (letter, length) = escape(&self.left).ok_or(NotBase64)?;
                self.letters.push(letter);
                self.left = self.left.split_off(length);
            }
            run => {
                let run = self.left.split_to(run.unwrap_or(room.min(self.left.len())));
                self.letters.extend_from_slice(&run);
            }
        }
        Ok(())
    }
}

/// The letter that an escape of JSON stands for, and how long the escape is. Some encoders escape `/`, some
/// `+`; no other escape can be one of a letter of base64.
fn escape(text: &[u8]) -> Option<(u8, usize)> {
    if text.get(1) == Some(&b'/') {
        return Some((b'/', 2));
    }
    let digits = text.get(..6)?.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(digits).ok()?;
    Some((u8::try_from(u16::from_str_radix(digits, 16).ok()?).ok()?, 6))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Result<Vec<u8>, NotBase64> {
        let mut reader = Content::new(Bytes::copy_from_slice(text.as_bytes())).reader();
        let mut bytes = Vec::new();
        while reader.read(&mut bytes)? {}
        Ok(bytes)
    }

    #[test]
    fn any_length_with_and_without_filling() {
        for length in
            [0, 1, 2, 3, 4, PIECE / 4 * 3 - 1, PIECE / 4 * 3, PIECE / 4 * 3 + 1, PIECE * 2]
        {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
            let text = LAST.encode(&bytes);
            assert!(decode(&text).as_ref() == Ok(&bytes), "{length}");
            assert!(decode(text.trim_end_matches('=')).as_ref() == Ok(&bytes), "{length}");
            let escaped = text.replace('/', "\\/").replace('+', "\\u002B").replace('=', "\\u003d");
            assert!(decode(&escaped).as_ref() == Ok(&bytes), "{length}");
        }
    }

    #[test]
    fn what_is_not_base64() {
        let inside = format!("{}QQ=={}", "A".repeat(PIECE - 4), "AAAA");
        for bad in [
            "A",
            "A===",
            "=",
            "QQ==QQ==",
            "QR==",
            "-_-_",
            "AA\\nAA",
            "AA AA",
            "\\u00e9AAA",
            "AAA\\",
            inside.as_str(),
        ] {
            assert_eq!(decode(bad), Err(NotBase64), "{bad:.20}");
        }
    }
}
