//! Refuses unknown fields and query parameters, because a typo must never widen the effect of a
//! call.
//!
//! The request struct itself defines the known names, in the same pass that parses it. This puts
//! two constraints on request types: no `flatten`, which hides the names (such a type fails to
//! parse), and nested objects stay raw values that are parsed separately.

use std::borrow::Cow;
use std::fmt;

use codeq_core::names::cut;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};

use crate::service::{Code, ServiceError};
use crate::suggest::nearest;

/// Maximum bytes of an unknown name that an error message repeats.
const NAME_BYTES_MAX: usize = 64;

/// Why a text could not be parsed.
#[derive(Debug)]
pub enum ReadError {
    /// It has a field that the struct does not have.
    Unknown {
        /// The unknown field.
        name: String,
        /// The fields of the struct.
        known: &'static [&'static str],
    },
    /// Any other error.
    Json(serde_json::Error),
}

/// Parses a struct, and refuses unknown fields.
pub fn read<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, ReadError> {
    let mut unknown = None;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(Known { inner: &mut json, unknown: &mut unknown });
    let read = value.and_then(|value| json.end().map(|()| value));
    read.map_err(|error| unknown.unwrap_or(ReadError::Json(error)))
}

/// The error for an unknown field in a body.
pub fn unknown_field(name: &str, known: &[&'static str]) -> ServiceError {
    unknown("unknown field", name, known)
}

/// The error for an unknown query parameter.
pub fn unknown_parameter(name: &str, known: &[&'static str]) -> ServiceError {
    unknown("unknown query parameter", name, known)
}

fn unknown(what: &'static str, name: &str, known: &[&'static str]) -> ServiceError {
    let shown = cut(name, NAME_BYTES_MAX);
    let more = if shown.len() < name.len() { "…" } else { "" };
    let instead = match nearest(name, known.iter().map(|known| (*known, *known))) {
        Some(near) => format!("did you mean '{near}'?"),
        None if known.is_empty() => "expected none".to_owned(),
        None => format!("expected one of {}", known.join(", ")),
    };
    let detail = format!("{what} '{shown}{more}': {instead}");
    ServiceError::new(Code::UnknownField, what).field(shown).detail(detail)
}

/// Deserializes a struct and records the first unknown field.
struct Known<'u, D> {
    inner: D,
    unknown: &'u mut Option<ReadError>,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Known<'_, D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = KnownVisitor { visitor, fields, unknown: self.unknown };
        self.inner.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, D::Error> {
        Err(D::Error::custom("a request must be a struct that declares its fields"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct KnownVisitor<'u, V> {
    visitor: V,
    fields: &'static [&'static str],
    unknown: &'u mut Option<ReadError>,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for KnownVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(KnownFields { map, fields: self.fields, unknown: self.unknown })
    }
}

struct KnownFields<'u, A> {
    map: A,
    fields: &'static [&'static str],
    unknown: &'u mut Option<ReadError>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KnownFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some(Name(name)) = self.map.next_key()? else {
            return Ok(None);
        };
        if !self.fields.contains(&&*name) {
            *self.unknown =
                Some(ReadError::Unknown { name: name.into_owned(), known: self.fields });
            return Err(A::Error::custom("unknown field"));
        }
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// A field name, copied only if it contains escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Debug, PartialEq)]
    #[serde(rename_all = "camelCase")]
    struct Body {
        limit: Option<u32>,
        error_contains: Option<String>,
    }

    fn said(text: &str) -> (String, String) {
        match read::<Body>(text) {
            Err(ReadError::Unknown { name, known }) => {
                let error = unknown_field(&name, known);
                assert_eq!((error.code, &*error.error), (Code::UnknownField, "unknown field"));
                (error.field.unwrap().into(), error.detail.unwrap().into())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn known_fields_parse() {
        let text = r#"{"limit":3,"\u0065rrorContains":null}"#;
        assert_eq!(read::<Body>(text).unwrap(), Body { limit: Some(3), error_contains: None });
        for bad in ["{", "[]", "{}}", r#"{"limit":1,"limit":2}"#, r#"{"limit":"3"}"#, "{1:2}"] {
            assert!(matches!(read::<Body>(bad), Err(ReadError::Json(_))), "{bad}");
        }
    }

    #[test]
    fn unknown_fields_are_named_with_a_suggestion() {
        let told = |text: &str| said(text).1;
        assert_eq!(said(r#"{"limit":3,"errorContian":"x"}"#).0, "errorContian");
        assert_eq!(
            told(r#"{"errorContian":"x"}"#),
            "unknown field 'errorContian': did you mean 'errorContains'?"
        );
        assert_eq!(told(r#"{"Limit":null}"#), "unknown field 'Limit': did you mean 'limit'?");
        assert_eq!(told(r#"{"x":{}}"#), "unknown field 'x': expected one of limit, errorContains");
        let none = unknown_parameter("x", &[]);
        assert_eq!(none.detail.as_deref(), Some("unknown query parameter 'x': expected none"));
        let (name, detail) = said(&format!(r#"{{"{}":1}}"#, "é".repeat(10_000)));
        assert!(name.len() <= NAME_BYTES_MAX && detail.len() < 200, "{detail}");
    }

    #[test]
    fn a_type_that_hides_its_fields_cannot_be_read() {
        #[derive(Deserialize, Debug)]
        #[expect(dead_code, reason = "only its type counts")]
        struct Hiding {
            #[serde(flatten)]
            body: Body,
        }
        assert!(read::<Hiding>(r#"{"limit":3}"#).is_err());
    }
}
