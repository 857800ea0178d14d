//! Explains why a body could not be parsed: serde's reason, the position and the field. Never
//! includes values of the body, because an error may end up in a log.

use codeq_core::names::cut;
use serde::Deserialize;
use serde::de::value::Error as Refused;
use serde::de::{Deserializer, Error as _, Visitor};
use serde_json::error::Category;
use serde_path_to_error::Segment;

use super::fields::unknown_field;
use crate::service::ServiceError;

/// Maximum bytes of a reason.
const REASON_BYTES_MAX: usize = 200;

/// The error for a text that does not parse as `T`.
pub fn explain<'de, T: Deserialize<'de>>(
    text: &'de str,
    error: &serde_json::Error,
) -> ServiceError {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let said = error.to_string();
    // A type that always refuses unknown fields, whatever the server's setting.
    if let Some(rest) = said.strip_prefix("unknown field `") {
        return unknown_field(rest.split('`').next().unwrap_or_default(), fields::<T>());
    }
    let reason = said.strip_suffix(&place).unwrap_or(&said);
    // After a syntax error, the last field seen may be unrelated.
    let field = match error.classify() {
        Category::Data => {
            let name = named(reason).map(str::to_owned).or_else(|| refused_field::<T>(text));
            fields::<T>().iter().copied().find(|field| name.as_deref() == Some(*field))
        }
        _ => None,
    };
    let reason = in_plain_words(reason, field);
    let short = cut(&reason, REASON_BYTES_MAX);
    let more = if short.len() < reason.len() { "…" } else { "" };
    let answer = ServiceError::invalid_body().detail(format!("{short}{more}{place}"));
    match field {
        Some(field) => answer.field(field),
        None => answer,
    }
}

/// Rewrites serde's reason, which shows the unexpected value and the name of a Rust type. The kind
/// of the value is enough, and the client's author may not know Rust.
fn in_plain_words(reason: &str, field: Option<&str>) -> String {
    let kinds = ["invalid type: ", "invalid value: "];
    let Some((kind, rest)) =
        kinds.iter().find_map(|kind| Some((*kind, reason.strip_prefix(kind)?)))
    else {
        return reason.to_owned();
    };
    // Split at the last one: the value itself may contain these words.
    let (found, expected) = rest.rsplit_once(", expected ").unwrap_or((rest, "something else"));
    let found = match found.split(['"', '`']).next().unwrap_or_default().trim_end() {
        "integer" if kind == "invalid value: " => "a number out of range",
        "integer" => "a whole number",
        "floating point" => "a number with a fraction or an exponent",
        "string" => "a string",
        "boolean" => "a boolean",
        "sequence" => "an array",
        "map" => "an object",
        other => other,
    };
    let expected = match expected {
        "i64" => "a whole number",
        "u32" | "u64" => "a whole number, 0 or more",
        "a sequence" => "an array",
        other => other,
    };
    let (name, unit) = match field {
        Some(field) => (format!("'{field}': "), unit(field)),
        None => (String::new(), ""),
    };
    format!("{name}found {found}, expected {expected}{unit}")
}

/// The unit or format of a field, for names that have misled users.
fn unit(field: &str) -> &'static str {
    match field {
        "runAt" | "before" | "after" => " in RFC 3339, such as 2026-01-31T08:00:00Z",
        _ if field.ends_with("Seconds") => ", in seconds",
        _ => "",
    }
}

/// The field named in a reason such as "missing field `tasks`".
fn named(reason: &str) -> Option<&str> {
    let kinds = ["missing field `", "duplicate field `"];
    let rest = kinds.into_iter().find_map(|kind| reason.strip_prefix(kind))?;
    rest.split('`').next()
}

/// The field of the outermost object whose value was refused. Parses the text again, which only refused requests pay
/// for.
fn refused_field<'de, T: Deserialize<'de>>(text: &'de str) -> Option<String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let error = serde_path_to_error::deserialize::<_, T>(&mut json).err()?;
    match error.path().iter().next()? {
        Segment::Map { key } => Some(key.clone()),
        _ => None,
    }
}

/// The field names of a struct.
fn fields<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // Always fails, after recording the names.
    let _ = T::deserialize(Names(&mut names));
    names
}

/// A deserializer that records a struct's field names and then fails.
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
    use crate::service::Code;

    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    #[expect(dead_code, reason = "only their types count")]
    struct Body {
        max_seconds: Option<i64>,
        names: Vec<String>,
    }

    fn said(text: &str) -> (String, Option<String>) {
        let error = serde_json::from_str::<Body>(text).unwrap_err();
        let answer = explain::<Body>(text, &error);
        assert_eq!((answer.code, &*answer.error), (Code::InvalidBody, "invalid body"));
        (answer.detail.unwrap().into(), answer.field.map(Into::into))
    }

    #[test]
    fn errors_have_reason_position_and_field() {
        for (text, detail, field) in [
            ("{", "EOF while parsing an object at line 1 column 1", None),
            ("{}", "missing field `names` at line 1 column 2", Some("names")),
            (
                r#"{"names":[],"names":[]}"#,
                "duplicate field `names` at line 1 column 19",
                Some("names"),
            ),
            (
                "{\"names\":[],\n \"maxSeconds\":1.5}",
                "'maxSeconds': found a number with a fraction or an exponent, expected a whole number, in seconds \
                 at line 2 column 17",
                Some("maxSeconds"),
            ),
            (
                r#"{"maxSeconds":1,"names":["a:\"b\"",{"maxSeconds":2}]}"#,
                "'names': found an object, expected a string at line 1 column 35",
                Some("names"),
            ),
            (
                r#"{"names":null}"#,
                "'names': found null, expected an array at line 1 column 13",
                Some("names"),
            ),
        ] {
            assert_eq!(said(text), (detail.to_owned(), field.map(str::to_owned)), "{text}");
        }
    }

    #[test]
    fn a_strict_type_reports_unknown_fields() {
        let text = format!(r#"{{"{}":1}}"#, "name");
        let error = serde_json::from_str::<Body>(&text).unwrap_err();
        let answer = explain::<Body>(&text, &error);
        assert_eq!((answer.code, answer.field.as_deref()), (Code::UnknownField, Some("name")));
        assert!(answer.detail.unwrap().ends_with("did you mean 'names'?"));
    }

    #[test]
    fn values_are_not_repeated() {
        for value in [
            r#""secret""#,
            r#""a, expected secret""#,
            r#""\"secret, expected \"""#,
            "[\"secret\"]",
            "{\"secret\":1}",
        ] {
            let (detail, field) = said(&format!(r#"{{"maxSeconds":{value}}}"#));
            assert!(
                !detail.contains("secret")
                    && detail.contains(", expected a whole number, in seconds at "),
                "{detail}"
            );
            assert_eq!(field.as_deref(), Some("maxSeconds"));
        }
    }
}
