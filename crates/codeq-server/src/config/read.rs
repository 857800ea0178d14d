//! Converts nodes into values and records every mismatch.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_auth::{JwtConfig, StaticToken};
use ipnet::IpNet;

use super::model::{BackoffPolicy, Durability, LogFormat, UnknownFields, WebhookSecret};
use super::problem::{PROBLEMS_MAX, Problem, Source, Sources};
use super::tree::{Kind, Malformed, Name, Node, Place, Style};
use crate::near::nearest;

/// Maximum number of characters to quote from a value.
const QUOTE_MAX: usize = 40;

/// The origin of nodes.
pub(crate) enum Origin {
    /// The configuration file.
    File(Arc<Path>),
    /// One environment variable.
    Env(String),
}

impl Origin {
    pub(crate) fn source(&self, at: Place) -> Source {
        match self {
            Origin::File(file) => {
                Source::File { file: Arc::clone(file), line: at.line, column: at.column }
            }
            Origin::Env(name) => Source::Env(name.clone()),
        }
    }
}

/// Reads nodes of one origin; records sources and problems.
pub(crate) struct Reader<'a> {
    pub(crate) origin: Origin,
    pub(crate) problems: &'a mut Vec<Problem>,
    pub(crate) sources: &'a mut Sources,
}

impl Reader<'_> {
    /// Whether the maximum number of problems is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() >= PROBLEMS_MAX
    }

    /// Records a problem, unless the maximum is reached.
    pub(crate) fn note(&mut self, key: &str, text: String, at: Place) {
        if !self.is_full() {
            let source = self.origin.source(at);
            self.problems.push(Problem { key: key.to_owned(), text, source });
        }
    }

    /// Records text that is not valid YAML.
    pub(crate) fn malformed(&mut self, key: &str, malformed: Malformed) {
        let Malformed { at, text } = malformed;
        let text = match self.origin {
            Origin::File(_) => text,
            Origin::Env(_) => format!("line {}, column {}: {text}", at.line, at.column),
        };
        self.note(key, text, at);
    }

    /// Records a value of the wrong kind.
    pub(crate) fn wrong<T>(&mut self, path: &str, node: &Node, expected: &str) -> Option<T> {
        self.note(path, format!("found {}, expected {expected}", found(path, node)), node.at);
        None
    }

    /// Records a duplicate key.
    pub(crate) fn twice(&mut self, name: &Name, first: Place) {
        let text = format!("key '{}' is already on line {}", shown(&name.text), first.line);
        self.note("", text, name.at);
    }

    /// Calls `each` for every entry of a mapping that allows only these keys.
    fn fields(
        &mut self,
        node: &Node,
        path: &str,
        known: &[&str],
        mut each: impl FnMut(&mut Self, &str, &Node, &str),
    ) -> Option<()> {
        let Kind::Map(entries) = &node.kind else {
            return self.wrong(path, node, &format!("a mapping with {}", known.join(", ")));
        };
        let mut places = BTreeMap::new();
        for (name, value) in entries {
            if let Some(first) = places.insert(name.text.as_str(), name.at) {
                self.twice(name, first);
            } else if known.contains(&name.text.as_str()) {
                let path = format!("{path}.{}", name.text);
                let source = self.origin.source(value.at);
                self.sources.add(path.clone(), source);
                each(self, &name.text, value, &path);
            } else {
                let near = nearest(&name.text, known.iter().map(|known| (*known, *known)));
                self.note(path, unknown_key(&name.text, near), name.at);
            }
        }
        Some(())
    }
}

/// The message for an unknown key.
pub(crate) fn unknown_key(name: &str, near: Option<&str>) -> String {
    let name = shown(name);
    match near {
        Some(near) => format!("unknown key '{name}', did you mean '{near}'?"),
        None => format!("unknown key '{name}'"),
    }
}

/// Quotes text for a message: truncated, without terminal control characters.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTE_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTE_MAX).is_some() {
        shown.push('…');
    }
    shown
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
        (true, true) => "a number or truth value".to_owned(),
        (true, false) => "a text".to_owned(),
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

/// A type that can be read from a node.
pub(crate) trait Value: Sized {
    /// Reads the value, or records why it cannot.
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<Self>;
}

/// Reads a value into its field; on failure the field keeps its value.
pub(crate) fn take<T: Value>(field: &mut T, node: &Node, path: &str, reader: &mut Reader<'_>) {
    if let Some(value) = T::read(node, path, reader) {
        *field = value;
    }
}

/// The text of an unquoted scalar.
fn plain(node: &Node) -> Option<&str> {
    match &node.kind {
        Kind::Scalar { text, style: Style::Plain | Style::Raw } => Some(text),
        _ => None,
    }
}

macro_rules! whole_numbers {
    ($($type:ty: $expected:expr,)*) => {$(
        impl Value for $type {
            fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<$type> {
                let number = plain(node).and_then(integer).and_then(|n| <$type>::try_from(n).ok());
                number.or_else(|| reader.wrong(path, node, $expected))
            }
        }
    )*};
}

whole_numbers! {
    u16: "a whole number from 0 to 65535",
    u32: "a whole number from 0 to 4294967295",
    u64: "a whole number, 0 or more",
    usize: "a whole number, 0 or more",
}

impl Value for f64 {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<f64> {
        let number = plain(node).and_then(|text| text.parse().ok()).filter(|n: &f64| n.is_finite());
        number.or_else(|| reader.wrong(path, node, "a number"))
    }
}

impl Value for bool {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<bool> {
        match plain(node) {
            Some("true" | "True" | "TRUE") => Some(true),
            Some("false" | "False" | "FALSE") => Some(false),
            _ => reader.wrong(path, node, "true or false"),
        }
    }
}

impl Value for String {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<String> {
        match &node.kind {
            Kind::Scalar { text, style: Style::Plain } if is_bool(text) || is_number(text) => {
                reader.wrong(path, node, "a text: put it into quotes")
            }
            Kind::Scalar { text, .. } if !node.is_null() => Some(text.clone()),
            _ => reader.wrong(path, node, "a text"),
        }
    }
}

impl Value for PathBuf {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<PathBuf> {
        String::read(node, path, reader).map(PathBuf::from)
    }
}

impl Value for SocketAddr {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<SocketAddr> {
        let address = match &node.kind {
            Kind::Scalar { text, .. } => text.parse().ok(),
            _ => None,
        };
        let expected = "an address and a port, such as 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080";
        address.or_else(|| reader.wrong(path, node, expected))
    }
}

impl Value for IpNet {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<IpNet> {
        let net = match &node.kind {
            Kind::Scalar { text, .. } => network(text),
            _ => None,
        };
        let expected = "a network or an address, such as 10.0.0.0/8, 192.168.1.7 or fd00::/8";
        net.or_else(|| reader.wrong(path, node, expected))
    }
}

/// Parses a network or a single address. Rejects host bits beyond the prefix as a likely typo.
fn network(text: &str) -> Option<IpNet> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse()).ok().filter(|net: &IpNet| net.trunc() == *net)
}

macro_rules! choices {
    ($($type:ty { $($name:literal => $choice:ident,)* } $expected:literal)*) => {$(
        impl std::str::FromStr for $type {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<$type, &'static str> {
                match text {
                    $($name => Ok(<$type>::$choice),)*
                    _ => Err(concat!("expected ", $expected)),
                }
            }
        }

        impl Value for $type {
            fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<$type> {
                let choice = match &node.kind {
                    Kind::Scalar { text, .. } => text.parse().ok(),
                    _ => None,
                };
                choice.or_else(|| reader.wrong(path, node, $expected))
            }
        }
    )*};
}

choices! {
    Durability {
        "fsync" => Fsync,
        "os" => Os,
    } "fsync or os"
    UnknownFields {
        "refuse" => Refuse,
        "ignore" => Ignore,
    } "refuse or ignore"
    LogFormat {
        "json" => Json,
        "text" => Text,
        "short" => Short,
    } "json, text or short"
    BackoffPolicy {
        "fixed" => Fixed,
        "linear" => Linear,
        "exponential" => Exponential,
        "exp_equal_jitter" => ExpEqualJitter,
        "exp_full_jitter" => ExpFullJitter,
    } "fixed, linear, exponential, exp_equal_jitter or exp_full_jitter"
}

impl<T: Value> Value for Option<T> {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<Option<T>> {
        if node.is_null() { Some(None) } else { T::read(node, path, reader).map(Some) }
    }
}

impl<T: Value> Value for Vec<T> {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<Vec<T>> {
        if node.is_null() {
            return Some(Vec::new());
        }
        let Kind::List(nodes) = &node.kind else {
            return reader.wrong(path, node, "a list");
        };
        let mut values = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let source = reader.origin.source(node.at);
            reader.sources.add(path.clone(), source);
            values.extend(T::read(node, &path, reader));
        }
        Some(values)
    }
}

impl Value for JwtConfig {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<JwtConfig> {
        let mut jwt = JwtConfig::default();
        let known = ["issuer", "audience", "jwksUrl"];
        reader.fields(node, path, &known, |reader, name, node, path| match name {
            "issuer" => take(&mut jwt.issuer, node, path, reader),
            "audience" => take(&mut jwt.audience, node, path, reader),
            _ => take(&mut jwt.jwks_url, node, path, reader),
        })?;
        Some(jwt)
    }
}

impl Value for WebhookSecret {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<WebhookSecret> {
        let mut secret = WebhookSecret::default();
        let known = ["tenant", "secret", "previous"];
        reader.fields(node, path, &known, |reader, name, node, path| match name {
            "tenant" => take(&mut secret.tenant, node, path, reader),
            "secret" => take(&mut secret.secret, node, path, reader),
            _ => take(&mut secret.previous, node, path, reader),
        })?;
        Some(secret)
    }
}

impl Value for StaticToken {
    fn read(node: &Node, path: &str, reader: &mut Reader<'_>) -> Option<StaticToken> {
        let mut token = StaticToken::default();
        let known =
            ["token", "tokenSha256", "subject", "tenant", "scopes", "eventTypes", "workerGroup"];
        reader.fields(node, path, &known, |reader, name, node, path| match name {
            "token" => take(&mut token.token, node, path, reader),
            "tokenSha256" => take(&mut token.token_sha256, node, path, reader),
            "subject" => take(&mut token.subject, node, path, reader),
            "tenant" => take(&mut token.tenant, node, path, reader),
            "scopes" => take(&mut token.scopes, node, path, reader),
            "workerGroup" => take(&mut token.worker_group, node, path, reader),
            _ => take(&mut token.event_types, node, path, reader),
        })?;
        Some(token)
    }
}
