//! Parses YAML into a tree whose nodes know their source.
//!
//! Supports only what a configuration needs: one document of mappings with text keys, lists and
//! scalars. Rejects anchors, aliases, merge keys and tags, so that a file means exactly what it
//! shows and cannot expand when read.

use std::cell::Cell;
use std::sync::Arc;

use granit_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

use super::problem::{Problem, Source};

/// Maximum nesting depth.
const DEPTH_MAX: usize = 16;
/// Maximum number of nodes.
const NODES_MAX: usize = 50_000;

/// A value and its source.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) source: Source,
    pub(crate) kind: Kind,
    /// Set once a problem is reported: from then on the node counts as absent.
    pub(crate) refused: Cell<bool>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Neither mapping nor list.
    Scalar { text: String, style: Style },
    /// Entries in file order; may contain duplicate keys.
    Map(Vec<(Name, Node)>),
    /// Elements in file order.
    List(Vec<Node>),
}

/// How a scalar was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Unquoted: its text determines its type.
    Plain,
    /// Quoted: always text.
    Quoted,
    /// Not from YAML: takes whatever type is expected.
    Raw,
}

/// A key and its source.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) source: Source,
    /// Line, from 1, in the file or the variable.
    pub(crate) line: usize,
}

impl Node {
    fn new(source: Source, kind: Kind) -> Node {
        Node { source, kind, refused: Cell::new(false) }
    }

    /// An empty mapping.
    pub(crate) fn empty() -> Node {
        Node::new(Source::Default, Kind::Map(Vec::new()))
    }

    /// A value that does not come from YAML.
    pub(crate) fn raw(text: String, source: Source) -> Node {
        Node::new(source, Kind::Scalar { text, style: Style::Raw })
    }

    /// Whether the value is absent.
    pub(crate) fn is_null(&self) -> bool {
        match &self.kind {
            Kind::Scalar { style: Style::Quoted, .. } | Kind::Map(_) | Kind::List(_) => false,
            Kind::Scalar { text, .. } => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
        }
    }

    /// Replaces the value at a dotted path.
    pub(crate) fn set(&mut self, path: &str, value: Node) {
        if !matches!(self.kind, Kind::Map(_)) {
            *self = Node::empty();
        }
        let Kind::Map(entries) = &mut self.kind else { return };
        let (name, rest) = path.split_once('.').unwrap_or((path, ""));
        let known = entries.iter().position(|(key, node)| key.text == name && !node.refused.get());
        let at = known.unwrap_or(entries.len());
        if known.is_none() {
            let name = Name { text: name.to_owned(), source: value.source.clone(), line: 1 };
            entries.push((name, Node::empty()));
        }
        match entries.get_mut(at) {
            Some((_, node)) if rest.is_empty() => *node = value,
            Some((_, node)) => node.set(rest, value),
            None => {}
        }
    }

    /// Visits every node with its path.
    pub(crate) fn walk(&self, path: &str, visit: &mut impl FnMut(&str, &Node)) {
        visit(path, self);
        match &self.kind {
            Kind::Scalar { .. } => {}
            Kind::Map(entries) => {
                entries.iter().for_each(|(name, node)| node.walk(&join(path, &name.text), visit));
            }
            Kind::List(nodes) => {
                let nodes = nodes.iter().enumerate();
                nodes.for_each(|(index, node)| node.walk(&format!("{path}[{index}]"), visit));
            }
        }
    }
}

/// The path of an entry of a mapping.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Parses a text from this source. An empty text is an empty mapping.
pub(crate) fn parse(text: &str, source: &Source) -> Result<Node, Problem> {
    let options = granit_parser::options! { emit_comments: false };
    let events = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder { events, source, nodes: 0 };
    let mut root = None;
    loop {
        let (event, at) = builder.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            Event::StreamEnd => break,
            _ if root.is_some() => {
                return Err(
                    builder.malformed(at, "a second document begins here; only one is allowed")
                );
            }
            event => root = Some(builder.node(event, at, 0)?),
        }
    }
    Ok(root.filter(|root| !root.is_null()).unwrap_or_else(Node::empty))
}

struct Builder<'a> {
    events: Parser<'a, StrInput<'a>>,
    source: &'a Source,
    nodes: usize,
}

impl<'a> Builder<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Marker), Problem> {
        match self.events.next_event() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, start)),
            Some(Err(error)) => Err(self.malformed(*error.marker(), &error.info())),
            None => Ok((Event::StreamEnd, Marker::default())),
        }
    }

    fn node(&mut self, event: Event<'a>, at: Marker, depth: usize) -> Result<Node, Problem> {
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX {
            return Err(self.malformed(at, "too deep or too large for a configuration"));
        }
        if event.is_alias() || event.anchor_id().is_some() {
            return Err(
                self.malformed(at, "anchors and aliases are not supported; write the value out")
            );
        }
        if event.tag().is_some() {
            return Err(self.malformed(at, "tags are not supported; write the value without it"));
        }
        let kind = match event {
            Event::Scalar(text, style, ..) => {
                let style = if style == ScalarStyle::Plain { Style::Plain } else { Style::Quoted };
                Kind::Scalar { text: text.into_owned(), style }
            }
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.map(depth)?,
            _ => return Err(self.malformed(at, "a value is missing here")),
        };
        Ok(Node::new(self.source(at), kind))
    }

    fn list(&mut self, depth: usize) -> Result<Kind, Problem> {
        let mut elements = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Kind::List(elements)),
                (event, at) => elements.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Kind, Problem> {
        let mut entries = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Kind::Map(entries));
            }
            let name = match self.node(event, at, depth + 1)?.kind {
                Kind::Scalar { text, .. } => {
                    Name { text, source: self.source(at), line: at.line() }
                }
                Kind::Map(_) | Kind::List(_) => {
                    return Err(self.malformed(at, "a key must be a string"));
                }
            };
            let (event, at) = self.next()?;
            entries.push((name, self.node(event, at, depth + 1)?));
        }
    }

    fn source(&self, at: Marker) -> Source {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (line, column) = (number(at.line()), number(at.col().saturating_add(1)));
        match self.source {
            Source::File { file, .. } => Source::File { file: Arc::clone(file), line, column },
            other => other.clone(),
        }
    }

    fn malformed(&self, at: Marker, text: &str) -> Problem {
        let text = match self.source {
            Source::File { .. } => text.to_owned(),
            _ => format!("line {}, column {}: {text}", at.line(), at.col().saturating_add(1)),
        };
        Problem { key: String::new(), text, source: self.source(at) }
    }
}
