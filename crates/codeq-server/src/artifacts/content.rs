//! Artifact content as received: base64 inside a JSON string, decoded piece by piece so that memory
//! never holds both forms in full.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;

/// Characters decoded at a time; a multiple of four.
const PIECE: usize = 48 << 10;
/// For all but the last piece: four characters are three bytes, without padding.
const INNER: GeneralPurpose = engine(DecodePaddingMode::RequireNone);
/// For the last piece, with or without padding.
const LAST: GeneralPurpose = engine(DecodePaddingMode::Indifferent);

const fn engine(padding: DecodePaddingMode) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(padding);
    GeneralPurpose::new(&STANDARD, config)
}

/// The content is not valid base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotBase64;

/// Base64 exactly as it appears between the quotes of a JSON string.
#[derive(Debug, Clone)]
pub struct Content(Bytes);

impl Content {
    /// Wraps the text between the quotes of a JSON string that has already been parsed.
    pub fn new(text: Bytes) -> Content {
        Content(text)
    }

    /// Reads the content from the beginning.
    pub fn reader(&self) -> Reader {
        Reader { left: self.0.clone(), letters: Vec::with_capacity(PIECE) }
    }
}

/// Decodes content piece by piece.
#[derive(Debug)]
pub struct Reader {
    left: Bytes,
    letters: Vec<u8>,
}

impl Reader {
    /// Appends the next piece. Returns false at the end.
    pub fn read(&mut self, to: &mut Vec<u8>) -> Result<bool, NotBase64> {
        if self.left.is_empty() && self.letters.is_empty() {
            return Ok(false);
        }
        while self.letters.len() < PIECE && !self.left.is_empty() {
            self.take()?;
        }
        // Only the last piece may have padding, and only an empty rest shows that it is the last.
        let engine = if self.left.is_empty() { LAST } else { INNER };
        engine.decode_vec(&self.letters, to).map_err(|_| NotBase64)?;
        self.letters.clear();
        Ok(true)
    }

    /// Takes characters up to the next escape, or one escape.
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

/// Decodes a JSON escape into a base64 character and the escape's length. Some encoders escape `/`,
/// some `+`; no other escape can stand for a base64 character.
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
    fn any_length_decodes_with_and_without_padding() {
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
    fn invalid_base64_is_refused() {
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
