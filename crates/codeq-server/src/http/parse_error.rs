//! Why a body could not be read, in words that help whoever wrote it: serde's reason, where it is, and the
//! field. Values of the body are left out: a problem may end up in a log.

use codeq_core::names::cut;
use serde::Deserialize;
use serde::de::value::Error as Refused;
use serde::de::{Deserializer, Error as _, Visitor};
use serde_json::error::Category;

use crate::service::ServiceError;

/// Longest reason in bytes; a client may choose long names of fields.
const REASON_BYTES_MAX: usize = 150;

/// What to answer to a text that is no `T`.
pub fn explain<'de, T: Deserialize<'de>>(text: &str, error: &serde_json::Error) -> ServiceError {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let said = error.to_string();
    let reason = without_value(said.strip_suffix(&place).unwrap_or(&said));
    let short = cut(&reason, REASON_BYTES_MAX);
    let more = if short.len() < reason.len() { "…" } else { "" };
    let answer = ServiceError::invalid_body().detail(format!("{short}{more}{place}"));
    // Where the syntax is broken, the last field that was seen may have nothing to do with it.
    if error.classify() != Category::Data {
        return answer;
    }
    let name = named(&reason).or_else(|| field_at(text, error.line(), error.column()));
    let known = fields::<T>().iter().find(|field| name == Some(**field));
    match known {
        Some(field) => answer.field(field),
        None => answer,
    }
}

/// serde shows the value that it did not expect; its kind is enough.
fn without_value(reason: &str) -> String {
    let kinds = ["invalid type: ", "invalid value: "];
    let Some(kind) = kinds.into_iter().find(|kind| reason.starts_with(kind)) else {
        return reason.to_owned();
    };
    // The last one: a text that was found may hold these words as well.
    let (found, expected) = reason.rsplit_once(", expected ").unwrap_or((reason, "something else"));
    let found = found.split(['"', '`']).next().unwrap_or(kind).trim_end();
    format!("{found}, expected {expected}")
}

/// The field in a reason such as "missing field `tasks`".
fn named(reason: &str) -> Option<&str> {
    let kinds = ["missing field `", "duplicate field `", "unknown field `"];
    let rest = kinds.into_iter().find_map(|kind| reason.strip_prefix(kind))?;
    rest.split('`').next()
}

/// The last field of the outermost object that begins before a place.
fn field_at(text: &str, line: usize, column: usize) -> Option<&str> {
    let lines = text.split_inclusive('\n').take(line.saturating_sub(1));
    let end = lines.map(str::len).sum::<usize>() + column;
    let (mut depth, mut opened, mut escaped) = (0_usize, None, false);
    let (mut string, mut field) = (None, None);
    for (at, byte) in text.bytes().enumerate().take(end) {
        match (opened, byte) {
            _ if escaped => escaped = false,
            (Some(_), b'\\') => escaped = true,
            (Some(start), b'"') => {
                string = text.get(start + 1..at);
                opened = None;
            }
            (Some(_), _) => {}
            (None, b'"') => opened = Some(at),
            (None, b'{' | b'[') => depth += 1,
            (None, b'}' | b']') => depth = depth.saturating_sub(1),
            (None, b':') if depth == 1 => field = string,
            (None, _) => {}
        }
    }
    field
}

/// The names of the fields of a struct.
fn fields<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // It always refuses, after it was told the names.
    let _ = T::deserialize(Names(&mut names));
    names
}

/// Learns the names of a struct's fields from the struct itself, and has no value for it.
struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Refused> {
        Err(Refused::custom("there is no value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    #[expect(dead_code, reason = "only their types count")]
    struct Body {
        max_count: Option<i64>,
        names: Vec<String>,
    }

    fn said(text: &str) -> (String, Option<&'static str>) {
        let error = serde_json::from_str::<Body>(text).unwrap_err();
        let answer = explain::<Body>(text, &error);
        assert_eq!((answer.code, &*answer.error), ("invalid_body", "invalid body"));
        (answer.detail.unwrap().into(), answer.field)
    }

    #[test]
    fn the_reason_the_place_and_the_field() {
        for (text, detail, field) in [
            ("{", "EOF while parsing an object at line 1 column 1", None),
            ("{}", "missing field `names` at line 1 column 2", Some("names")),
            (
                r#"{"names":[],"names":[]}"#,
                "duplicate field `names` at line 1 column 19",
                Some("names"),
            ),
            (
                r#"{"name":1}"#,
                "unknown field `name`, expected `maxCount` or `names` at line 1 column 7",
                None,
            ),
            (
                "{\"names\":[],\n \"maxCount\":1.5}",
                "invalid type: floating point, expected i64 at line 2 column 15",
                Some("maxCount"),
            ),
            (
                r#"{"maxCount":1,"names":["a:\"b\"",{"maxCount":2}]}"#,
                "invalid type: map, expected a string at line 1 column 33",
                Some("names"),
            ),
            (
                r#"{"names":null}"#,
                "invalid type: null, expected a sequence at line 1 column 13",
                Some("names"),
            ),
        ] {
            assert_eq!(said(text), (detail.to_owned(), field), "{text}");
        }
    }

    #[test]
    fn values_are_not_repeated_and_names_are_cut() {
        for value in [
            r#""secret""#,
            r#""a, expected secret""#,
            r#""\"secret, expected \"""#,
            "[\"secret\"]",
            "{\"secret\":1}",
        ] {
            let (detail, field) = said(&format!(r#"{{"maxCount":{value}}}"#));
            assert!(
                !detail.contains("secret") && detail.contains(", expected i64 at "),
                "{detail}"
            );
            assert_eq!(field, Some("maxCount"));
        }
        let (detail, _) = said(&format!(r#"{{"{}":1}}"#, "é".repeat(10_000)));
        assert!(detail.len() < 200 && detail.contains("… at line 1 column "), "{detail}");
    }
}
