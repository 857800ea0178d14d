//! Parses YAML into a tree whose nodes know their position.
//!
//! Supports only what a configuration needs: one document of mappings with text keys, lists and
//! scalars. Rejects anchors, aliases, merge keys and tags, so that a file means exactly what it
//! shows and cannot expand when read.

use granit_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

/// Maximum nesting depth.
const DEPTH_MAX: usize = 16;
/// Maximum number of nodes.
const NODES_MAX: usize = 50_000;

/// A position in a text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// A value and its position.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) at: Place,
    pub(crate) kind: Kind,
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

/// A key and its position.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) at: Place,
}

/// Why a text could not be parsed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) at: Place,
    pub(crate) text: String,
}

impl Node {
    /// A value that does not come from YAML.
    pub(crate) fn raw(text: &str) -> Node {
        let kind = Kind::Scalar { text: text.to_owned(), style: Style::Raw };
        Node { at: Place { line: 1, column: 1 }, kind }
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
}

/// Parses a text. An empty text is an empty mapping.
pub(crate) fn parse(text: &str) -> Result<Node, Malformed> {
    let options = granit_parser::options! { emit_comments: false };
    let events = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder { events, nodes: 0 };
    let mut root = None;
    loop {
        let (event, at) = builder.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            Event::StreamEnd => break,
            _ if root.is_some() => {
                return Err(malformed(at, "a second document begins here; one is allowed"));
            }
            event => root = Some(builder.node(event, at, 0)?),
        }
    }
    let nothing = Node { at: Place { line: 1, column: 1 }, kind: Kind::Map(Vec::new()) };
    Ok(root.filter(|root| !root.is_null()).unwrap_or(nothing))
}

struct Builder<'a> {
    events: Parser<'a, StrInput<'a>>,
    nodes: usize,
}

impl<'a> Builder<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Place), Malformed> {
        match self.events.next_event() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, place(&start))),
            Some(Err(error)) => Err(malformed(place(error.marker()), &error.info())),
            None => Ok((Event::StreamEnd, Place { line: 1, column: 1 })),
        }
    }

    fn node(&mut self, event: Event<'a>, at: Place, depth: usize) -> Result<Node, Malformed> {
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX {
            return Err(malformed(at, "too deep or too large for a configuration"));
        }
        if event.is_alias() || event.anchor_id().is_some() {
            return Err(malformed(
                at,
                "anchors and aliases are not supported; write the value out",
            ));
        }
        if event.tag().is_some() {
            return Err(malformed(at, "tags are not supported; write the value without it"));
        }
        let kind = match event {
            Event::Scalar(text, style, ..) => {
                let style = if style == ScalarStyle::Plain { Style::Plain } else { Style::Quoted };
                Kind::Scalar { text: text.into_owned(), style }
            }
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.map(depth)?,
            _ => return Err(malformed(at, "a value is missing here")),
        };
        Ok(Node { at, kind })
    }

    fn list(&mut self, depth: usize) -> Result<Kind, Malformed> {
        let mut elements = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Kind::List(elements)),
                (event, at) => elements.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Kind, Malformed> {
        let mut entries = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Kind::Map(entries));
            }
            let name = match self.node(event, at, depth + 1)?.kind {
                Kind::Scalar { text, .. } => Name { text, at },
                Kind::Map(_) | Kind::List(_) => {
                    return Err(malformed(at, "a key must be a text"));
                }
            };
            let (event, at) = self.next()?;
            entries.push((name, self.node(event, at, depth + 1)?));
        }
    }
}

fn place(marker: &Marker) -> Place {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Place { line: number(marker.line()), column: number(marker.col().saturating_add(1)) }
}

fn malformed(at: Place, text: &str) -> Malformed {
    Malformed { at, text: text.to_owned() }
}
