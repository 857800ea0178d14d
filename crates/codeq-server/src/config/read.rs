//! Lets serde read the model from a tree.
//!
//! serde stops at the first error. To report all of them, the reader marks a wrong value as refused,
//! which makes it count as absent, and starts again.

use std::collections::BTreeMap;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Expected, IntoDeserializer, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};

use super::keys::unknown_key;
use super::model::Config;
use super::problem::{PROBLEMS_MAX, Problem, shown};
use super::tree::{Kind, Name, Node, Style, join};

/// Reads a configuration and adds the problems. Wrong values get their defaults.
pub(crate) fn read(tree: &Node, problems: &mut Vec<Problem>) -> Config {
    while problems.len() < PROBLEMS_MAX {
        match Config::deserialize(Reader { node: tree, path: String::new() }) {
            Ok(config) => return config,
            Err(problem) => problems.push(problem),
        }
    }
    Config::default()
}

struct Reader<'de> {
    node: &'de Node,
    path: String,
}

impl<'de> Reader<'de> {
    /// Refuses the value.
    fn wrong(&self, expected: &str) -> Problem {
        self.node.refused.set(true);
        let text = format!("found {}, expected {expected}", found(&self.path, self.node));
        Problem { key: self.path.clone(), text, source: self.node.source.clone() }
    }

    /// The text of an unquoted scalar.
    fn plain(&self) -> Option<&'de str> {
        match &self.node.kind {
            Kind::Scalar { text, style: Style::Plain | Style::Raw } => Some(text),
            _ => None,
        }
    }

    /// The text of a scalar; empty if the node is not one.
    fn text(&self) -> &'de str {
        if let Kind::Scalar { text, .. } = &self.node.kind { text } else { "" }
    }

    fn whole(&self, max: u64, expected: &str) -> Result<u64, Problem> {
        let number = self.plain().and_then(integer).filter(|number| *number <= max);
        number.ok_or_else(|| self.wrong(expected))
    }

    /// An entry of this mapping, which allows only these keys.
    fn entry(
        &self,
        (name, node): &'de (Name, Node),
        known: &[&str],
        lines: &mut BTreeMap<&'de str, usize>,
    ) -> Result<(&'de str, Reader<'de>), Problem> {
        let (key, text) = if let Some(first) = lines.insert(&name.text, name.line) {
            (String::new(), format!("key '{}' is already on line {first}", shown(&name.text)))
        } else if !known.contains(&name.text.as_str()) {
            (self.path.clone(), unknown_key(&name.text, &self.path, known))
        } else {
            return Ok((&name.text, Reader { node, path: join(&self.path, &name.text) }));
        };
        node.refused.set(true);
        Err(Problem { key, text, source: name.source.clone() })
    }
}

impl<'de> Deserializer<'de> for Reader<'de> {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        Err(self.wrong(&(&visitor as &dyn Expected).to_string()))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.plain().filter(|text| is_bool(text)) {
            Some(text) => visitor.visit_bool(text.eq_ignore_ascii_case("true")),
            None => Err(self.wrong("true or false")),
        }
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_u64(self.whole(u16::MAX.into(), "a whole number from 0 to 65535")?)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_u64(self.whole(u32::MAX.into(), "a whole number from 0 to 4294967295")?)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_u64(self.whole(u64::MAX, "a whole number, 0 or more")?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        let number =
            self.plain().and_then(|text| text.parse().ok()).filter(|n: &f64| n.is_finite());
        visitor.visit_f64(number.ok_or_else(|| self.wrong("a number"))?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match &self.node.kind {
            Kind::Scalar { text, style: Style::Plain } if is_bool(text) || is_number(text) => {
                Err(self.wrong("a string: put it in quotes"))
            }
            Kind::Scalar { text, .. } if !self.node.is_null() => visitor.visit_str(text),
            _ => Err(self.wrong("a string")),
        }
    }

    /// Reads an address or a network.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        let expected = match (&visitor as &dyn Expected).to_string() {
            // `SocketAddr` is not our type: serde describes it.
            words if words == "socket address" => {
                "an address and a port, such as 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080".into()
            }
            words => words,
        };
        visitor.visit_str(self.text()).map_err(|_: Problem| self.wrong(&expected))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        let choice = visitor.visit_enum(self.text().into_deserializer());
        choice.map_err(|problem: Problem| self.wrong(&problem.text))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        let nodes = match &self.node.kind {
            Kind::List(nodes) => nodes.as_slice(),
            _ if self.node.is_null() => &[],
            _ => return Err(self.wrong("a list")),
        };
        let nodes = nodes.iter().enumerate().filter(|(_, node)| !node.refused.get());
        let element = |(index, node)| Reader { node, path: format!("{}[{index}]", self.path) };
        visitor.visit_seq(SeqDeserializer::new(nodes.map(element)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        let entries = match &self.node.kind {
            _ if self.node.refused.get() || self.node.is_null() => &[],
            Kind::Map(entries) => entries.as_slice(),
            _ => return Err(self.wrong(&format!("a mapping with {}", known.join(", ")))),
        };
        let mut lines = BTreeMap::new();
        let entries = entries.iter().filter(|(_, node)| !node.refused.get());
        let entries = entries.map(|entry| self.entry(entry, known, &mut lines));
        let entries = entries.collect::<Result<Vec<_>, Problem>>()?;
        visitor.visit_map(MapDeserializer::new(entries.into_iter()))
    }

    // No type of the model asks for these.
    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u128 f32 char bytes byte_buf unit unit_struct newtype_struct tuple
        tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Problem> for Reader<'de> {
    type Deserializer = Reader<'de>;

    fn into_deserializer(self) -> Reader<'de> {
        self
    }
}

/// Describes the value found, without its content if it may be a secret.
fn found(path: &str, node: &Node) -> String {
    let secret =
        ["producerAuth", "workerAuth", "webhooks.secrets"].iter().any(|it| path.starts_with(it));
    let Kind::Scalar { text, style } = &node.kind else {
        return if matches!(node.kind, Kind::Map(_)) { "a mapping" } else { "a list" }.to_owned();
    };
    if node.is_null() {
        return "nothing".to_owned();
    }
    let plain = *style == Style::Plain && (is_bool(text) || is_number(text));
    match (secret, plain) {
        (true, true) => "a number or boolean".to_owned(),
        (true, false) => "a string".to_owned(),
        (false, true) => shown(text),
        (false, false) => format!("'{}'", shown(text)),
    }
}

fn is_bool(text: &str) -> bool {
    matches!(text, "true" | "True" | "TRUE" | "false" | "False" | "FALSE")
}

fn is_number(text: &str) -> bool {
    let digits = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    digits && (integer(text).is_some() || text.parse::<f64>().is_ok())
}

/// Parses a whole number in YAML notation.
fn integer(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return u64::from_str_radix(digits, 8).ok();
    }
    text.parse().ok()
}
