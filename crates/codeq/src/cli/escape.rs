//! Text from elsewhere on its way to a terminal. Names, errors and details come from servers, programs and files, none of
//! which may move the cursor, forge a line or reverse the direction of text.

use std::fmt::Write;

use codeq_server::observe::is_unsafe;

/// The text on one line, with every character that could do harm written as an escape, such as `\u001b`.
pub fn printable(text: &str) -> String {
    escape(text, |_| false)
}

/// The same for text with several lines.
pub fn printable_lines(text: &str) -> String {
    escape(text, |c| c == '\n')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut to = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if !is_unsafe(c) || keep(c) => to.push(c),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            c => {
                // Writing to a `String` cannot fail.
                let _ = write!(to, "\\u{:04x}", u32::from(c));
            }
        }
    }
    to
}

/// JSON without the whitespace outside its strings. Unlike parsing and writing it again, this keeps numbers exact.
pub fn compact_json(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let keep = |c: &char| {
        match (in_string, *c) {
            (true, '\\') => escaped = !escaped,
            (_, '"') if !escaped => in_string = !in_string,
            _ => escaped = false,
        }
        in_string || !matches!(c, ' ' | '\t' | '\r' | '\n')
    };
    json.chars().filter(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_controls_the_terminal() {
        let hostile = "a\x1b[2J\u{9b}0m\x07\u{202e}\u{2028}\x7f\té\nb";
        let escaped = r"a\u001b[2J\u009b0m\u0007\u202e\u2028\u007f\té\nb";
        assert_eq!(printable(hostile), escaped);
        assert_eq!(printable_lines(hostile), escaped.replace("\\n", "\n"));
    }

    #[test]
    fn whitespace_is_dropped_outside_strings_only() {
        let json = "{\r\n\t\"a \\\\\": [ 1.50,\t9007199254740993 ],\n\"b\\\" \\n\": \" \" }\n";
        let compact = r#"{"a \\":[1.50,9007199254740993],"b\" \n":" "}"#;
        assert_eq!(compact_json(json), compact);
    }

    #[test]
    fn escapes_mean_the_same_in_json_and_yaml() {
        let json = serde_json::to_string_pretty(&["a\u{9b}\x7f\u{202e}", "\x1b\n"]).unwrap();
        let safe = printable_lines(&json);
        assert!(!safe.contains('\u{9b}') && !safe.contains('\x7f'), "{safe}");
        let read: Vec<String> = serde_json::from_str(&safe).unwrap();
        assert_eq!(read, ["a\u{9b}\x7f\u{202e}", "\x1b\n"]);
    }
}
