//! Compares JSON texts by value, ignoring member order, whitespace, escapes and how numbers are written.
//!
//! - Object members are compared by name. A duplicate name counts twice, in its original order, because readers
//!   disagree on which one wins.
//! - Numbers are compared exactly, without floats: `1`, `1.0` and `10e-1` are equal, 9007199254740993 and
//!   9007199254740992 are not.
//! - Texts that are not JSON, or are nested deeper than [`DEPTH_MAX`], are compared byte by byte.
//!
//! One pass, with about as much memory as the text: a large container is replaced by its hash once it is read.

use sha2::{Digest, Sha256};

/// Deepest nesting that is parsed. The server accepts at most 100 levels.
pub const DEPTH_MAX: usize = 128;
/// A container longer than this is replaced by its hash when it closes. Otherwise sorting would move its bytes once
/// per enclosing level.
const CONTAINER_BYTES_MAX: usize = 64;

/// Bytes that are equal exactly for texts of equal value.
pub(crate) fn canonical(text: &[u8]) -> Vec<u8> {
    let mut scan = Scan { text, at: 0, out: Vec::with_capacity(text.len()), members: Vec::new() };
    scan.out.push(b'v');
    scan.space();
    if scan.value(0).is_some() && scan.skipped_to_end() {
        return scan.out;
    }
    let mut out = vec![b'b'];
    out.extend_from_slice(text);
    out
}

/// A member of an open object: where it starts in the output, where its name is, and where it ends.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    name: (usize, usize),
    end: usize,
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    out: Vec<u8>,
    /// Members of all open objects.
    members: Vec<Member>,
}

impl Scan<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn skipped_to_end(&mut self) -> bool {
        self.space();
        self.at == self.text.len()
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    /// Writes a word as its first letter; `null` becomes `z`, because `n` tags numbers.
    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.text.get(self.at..)?.starts_with(word).then_some(())?;
        self.at += word.len();
        self.out.push(match word.first()? {
            b'n' => b'z',
            letter => *letter,
        });
        Some(())
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        let start = self.out.len();
        self.take(b'[')?;
        self.out.push(b'[');
        self.space();
        if self.take(b']').is_none() {
            loop {
                self.space();
                self.value(depth + 1)?;
                self.space();
                if self.take(b',').is_none() {
                    break self.take(b']')?;
                }
            }
        }
        self.out.push(b']');
        self.close(start);
        Some(())
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        let (start, first) = (self.out.len(), self.members.len());
        self.take(b'{')?;
        self.out.push(b'{');
        self.space();
        if self.take(b'}').is_none() {
            loop {
                self.space();
                let start = self.out.len();
                let name = self.string()?;
                self.space();
                self.take(b':')?;
                self.space();
                self.value(depth + 1)?;
                self.members.push(Member { start, name, end: self.out.len() });
                self.space();
                if self.take(b',').is_none() {
                    break self.take(b'}')?;
                }
            }
        }
        self.sort_members(start + 1, first)?;
        self.out.push(b'}');
        self.close(start);
        Some(())
    }

    /// Sorts the members from `first` on, which start at `start` in the output, by name.
    fn sort_members(&mut self, start: usize, first: usize) -> Option<()> {
        let out = &self.out;
        let name = |member: &Member| out.get(member.name.0..member.name.1);
        let members = self.members.get_mut(first..)?;
        if !members.is_sorted_by_key(name) {
            members.sort_by_key(name);
            let mut sorted = Vec::with_capacity(out.len() - start);
            for member in members {
                sorted.extend_from_slice(out.get(member.start..member.end)?);
            }
            self.out.truncate(start);
            self.out.append(&mut sorted);
        }
        self.members.truncate(first);
        Some(())
    }

    fn close(&mut self, start: usize) {
        let Some(container) = self.out.get(start..).filter(|it| it.len() > CONTAINER_BYTES_MAX)
        else {
            return;
        };
        let hash: [u8; 32] = Sha256::digest(container).into();
        self.out.truncate(start);
        self.out.push(b'#');
        self.out.extend_from_slice(&hash);
    }

    /// Writes a string: tag, length, characters. Returns where the characters are.
    fn string(&mut self) -> Option<(usize, usize)> {
        self.take(b'"')?;
        self.out.push(b's');
        let length_at = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        let start = self.out.len();
        loop {
            let rest = self.text.get(self.at..)?;
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
            self.out.extend_from_slice(rest.get(..plain)?);
            self.at += plain;
            if self.take(b'"').is_some() {
                break;
            }
            self.at += 1;
            self.escape()?;
        }
        let end = self.out.len();
        let length = u32::try_from(end - start).ok()?;
        self.out.get_mut(length_at..start)?.copy_from_slice(&length.to_le_bytes());
        Some((start, end))
    }

    fn escape(&mut self) -> Option<()> {
        let byte = self.peek()?;
        self.at += 1;
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unicode(),
            _ => return None,
        };
        self.out.push(plain);
        Some(())
    }

    fn unicode(&mut self) -> Option<()> {
        let mut code = self.four_digits()?;
        if (0xd800..0xdc00).contains(&code) {
            let before = self.at;
            let low = match self.text.get(self.at..)?.starts_with(b"\\u") {
                true => {
                    self.at += 2;
                    self.four_digits()?
                }
                false => 0,
            };
            if (0xdc00..0xe000).contains(&low) {
                code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            } else {
                self.at = before;
            }
        }
        match char::from_u32(code) {
            Some(letter) => {
                self.out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
            // An unpaired surrogate, written as three bytes that no character encodes to.
            None => self.out.extend_from_slice(&[
                0xe0 | (code >> 12) as u8,
                0x80 | (code >> 6 & 0x3f) as u8,
                0x80 | (code & 0x3f) as u8,
            ]),
        }
        Some(())
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |code, digit| Some(code << 4 | char::from(*digit).to_digit(16)?))
    }

    fn digits(&mut self) -> (usize, usize) {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (start, self.at)
    }

    /// Writes a number as its digits without leading and trailing zeros, and a power of ten.
    fn number(&mut self) -> Option<()> {
        let negative = self.take(b'-').is_some();
        let whole = self.digits();
        let fraction = match self.take(b'.') {
            Some(()) => Some(self.digits()).filter(|(from, to)| from < to)?,
            None => (self.at, self.at),
        };
        let mut power = 0_i64;
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            let down = self.take(b'-').is_some();
            if !down {
                // A plus sign has no meaning.
                let _ = self.take(b'+');
            }
            let (from, to) = self.digits();
            // An exponent beyond i64 is not a useful number: compare such a text byte by byte.
            let exponent: i64 = std::str::from_utf8(self.text.get(from..to)?).ok()?.parse().ok()?;
            power = if down { -exponent } else { exponent };
        }
        let leading_zero = self.text.get(whole.0) == Some(&b'0') && whole.1 - whole.0 > 1;
        if whole.0 == whole.1 || leading_zero {
            return None;
        }
        power = power.checked_sub(i64::try_from(fraction.1 - fraction.0).ok()?)?;
        let start = self.out.len();
        self.out.push(b'n');
        if negative {
            self.out.push(b'-');
        }
        let digits_at = self.out.len();
        let text = self.text;
        let digits = text.get(whole.0..whole.1)?.iter().chain(text.get(fraction.0..fraction.1)?);
        self.out.extend(digits.skip_while(|digit| **digit == b'0'));
        while self.out.len() > digits_at && self.out.last() == Some(&b'0') {
            self.out.pop();
            power = power.checked_add(1)?;
        }
        if self.out.len() == digits_at {
            // Zero is zero, whatever its sign and exponent.
            self.out.truncate(start);
            self.out.extend_from_slice(b"n0e0;");
            return Some(());
        }
        self.out.extend_from_slice(format!("e{power};").as_bytes());
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails panics")]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) -> bool {
        canonical(a.as_bytes()) == canonical(b.as_bytes())
    }

    #[test]
    fn spellings_of_the_same_value_are_equal() {
        let long = |order: [&str; 2]| format!("{{{},{}}}", order[0], order[1]);
        let (x, y) = (format!("\"x\":\"{}\"", "x".repeat(200)), "\"y\":[1,2]".to_owned());
        for (a, b) in [
            ("1", " 1\n"),
            ("1", "1.0"),
            ("1", "10e-1"),
            ("100", "1E+2"),
            ("0", "-0.00e7"),
            ("-12.50", "-125e-1"),
            ("[1,2]", "[ 1 ,\t2 ]"),
            (r#"{"a":1,"b":{"c":[],"d":{}}}"#, "{\"b\" : {\"d\":{ },\"c\":[ ]},\n\"a\":1.0}"),
            (r#""é\u00e9\/\n""#, "\"éé/\\u000a\""),
            (r#""\ud83d\ude00""#, "\"😀\""),
            (r#"{"\u0061":1}"#, r#"{"a":1}"#),
            (&long([&x, &y]), &long([&y, &x])),
            (&format!("[{}]", long([&x, &y])), &format!("[{}]", long([&y, &x]))),
        ] {
            assert!(same(a, b), "{a} {b}");
        }
    }

    #[test]
    fn different_values_are_not_equal() {
        for (a, b) in [
            ("9007199254740993", "9007199254740992"),
            ("0.1", "0.10000000000000001"),
            ("1", "-1"),
            ("1", "\"1\""),
            ("1", "10"),
            ("[1,2]", "[2,1]"),
            ("[1,2]", "[12]"),
            ("[]", "{}"),
            ("[[],1]", "[[1]]"),
            ("null", "0"),
            ("true", "\"t\""),
            (r#"{"a":1}"#, r#"{"a":1,"b":null}"#),
            (r#"{"a":"b","c":1}"#, r#"{"a":"bc","":1}"#),
            (r#"{"a":1,"b":2}"#, r#"{"a":2,"b":1}"#),
            // A duplicate name: the order matters.
            (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
            (r#"{"a":1,"a":1}"#, r#"{"a":1}"#),
            (r#""\ud83d""#, r#""\ude00""#),
            (r#""\ud83d\n""#, r#""\ud83d""#),
            ("1e99999999999999999999", "1e99999999999999999998"),
            // Not JSON: compared byte by byte.
            ("{", "{ "),
            ("", " "),
            ("1 2", "1  2"),
            ("1.", "1"),
            ("01", "1"),
            ("-", "0"),
            ("\"a", "\"a "),
        ] {
            assert!(!same(a, b), "{a} {b}");
        }
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let nested = |n: usize, inside: &str| format!("{}{inside}{}", "[".repeat(n), "]".repeat(n));
        assert!(same(&nested(DEPTH_MAX, "1"), &nested(DEPTH_MAX, " 1")));
        assert!(!same(&nested(DEPTH_MAX + 1, "1"), &nested(DEPTH_MAX + 1, " 1")));
        assert!(canonical("[".repeat(1_000_000).as_bytes()).len() <= 1_000_001);
        // Deep content must not be moved once per level.
        let members = |n: usize| format!("{{\"z\":{n},\"a\":");
        let deep: String = (0..100).map(members).collect();
        let text = format!("{deep}\"{}\"{}", "x".repeat(1 << 20), "}".repeat(100));
        assert!(canonical(text.as_bytes()).len() < 64);
    }
}
