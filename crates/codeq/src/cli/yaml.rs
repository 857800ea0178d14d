//! YAML out of serde: a formatter that writes block style instead of JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

use super::escape::compact_json;

/// The value as YAML, ending with a newline.
pub fn to_yaml(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, Yaml::default()))?;
    let text = String::from_utf8_lossy(&bytes);
    // A key whose value is a block has a space after its colon. No value ends with one.
    Ok(text.lines().map(|line| format!("{}\n", line.trim_end())).collect())
}

#[derive(Default)]
struct Yaml {
    /// Indentation of each open list or mapping, and whether it is still empty.
    open: Vec<(usize, bool)>,
    /// The last thing written is a key. Otherwise a block may begin on this line.
    after_key: bool,
    /// The string being written: plain, and with JSON's escapes.
    plain: String,
    escaped: Vec<u8>,
}

impl Yaml {
    fn begin(&mut self) {
        let indent = self.open.last().map_or(0, |(indent, _)| indent + 2);
        self.open.push((indent, true));
    }

    fn end<W: ?Sized + Write>(&mut self, writer: &mut W, empty: &str) -> io::Result<()> {
        match self.open.pop() {
            Some((_, true)) => writer.write_all(empty.as_bytes()),
            _ => Ok(()),
        }
    }

    /// Begins an element of the innermost list or mapping.
    fn element<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        let Some((indent, empty)) = self.open.last_mut() else { return Ok(()) };
        *empty = false;
        if first && !self.after_key {
            return Ok(());
        }
        write!(writer, "\n{:indent$}", "", indent = *indent)
    }
}

impl Formatter for Yaml {
    fn begin_array<W: ?Sized + Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.begin();
        Ok(())
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, "[]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.element(writer, first)?;
        self.after_key = false;
        writer.write_all(b"- ")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.begin();
        Ok(())
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, "{}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.element(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.after_key = true;
        writer.write_all(b": ")
    }

    fn begin_string<W: ?Sized + Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.plain.clear();
        self.escaped.clear();
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        _writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        self.plain.push_str(fragment);
        self.escaped.extend_from_slice(fragment.as_bytes());
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        _writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        // A string with an escape is never plain: the quote makes `is_plain` say so.
        self.plain.push('"');
        serde_json::ser::CompactFormatter.write_char_escape(&mut self.escaped, escape)
    }

    /// JSON on one line is YAML.
    fn write_raw_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        writer.write_all(compact_json(fragment).as_bytes())
    }

    fn end_string<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        if is_plain(&self.plain) {
            return writer.write_all(self.plain.as_bytes());
        }
        writer.write_all(b"\"")?;
        writer.write_all(&self.escaped)?;
        writer.write_all(b"\"")
    }
}

/// Whether YAML reads the text as a string without quotes.
fn is_plain(text: &str) -> bool {
    let word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
        && !word.iter().any(|word| text.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_is_written_in_block_style() {
        let value = json!({
            "a": 1, "b": [1, "two", {"c": null, "d": []}], "e": {}, "f": {"g": [[true]]},
            "h": "no", "i": "2026", "j": "a: b", "k": "line\n\"é\"", "l": ""
        });
        let expected = "a: 1\nb:\n  - 1\n  - two\n  - c: null\n    d: []\ne: {}\nf:\n  g:\n    - - true\n\
                        h: \"no\"\ni: \"2026\"\nj: \"a: b\"\nk: \"line\\n\\\"é\\\"\"\nl: \"\"\n";
        assert_eq!(to_yaml(&value).unwrap(), expected);
        assert_eq!(to_yaml(&json!([])).unwrap(), "[]\n");
        assert_eq!(to_yaml(&json!([{"a": 1}, {"a": 2}])).unwrap(), "- a: 1\n- a: 2\n");
    }
}
