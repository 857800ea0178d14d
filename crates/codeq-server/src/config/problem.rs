//! Configuration errors, and the source of each value.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de;

/// Maximum number of problems to report.
pub(crate) const PROBLEMS_MAX: usize = 50;
/// Maximum number of characters to quote from a value.
const QUOTE_MAX: usize = 40;

/// The layer a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// No layer set the value.
    Default,
    /// The configuration file.
    File {
        /// Path as given.
        file: Arc<Path>,
        /// Line, from 1.
        line: u32,
        /// Column in characters, from 1.
        column: u32,
    },
    /// The environment variable with this name.
    Env(String),
    /// The flag with this name, including its dashes.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { file, line, .. } => write!(f, "{}:{line}", file.display()),
            Source::Env(name) => f.write_str(name),
            Source::Flag(name) => f.write_str(name),
        }
    }
}

/// The source of each value, by path, such as `http.maxBodyBytes` or
/// `producerAuth.staticTokens[0].tenant`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sources(BTreeMap<String, Source>);

impl Sources {
    /// The source of a value, or of the nearest parent with a known source.
    pub fn of(&self, path: &str) -> Source {
        let mut path = path;
        loop {
            if let Some(source) = self.0.get(path) {
                return source.clone();
            }
            match path.rfind(['.', '[']).and_then(|end| path.get(..end)) {
                Some(parent) => path = parent,
                None => return Source::Default,
            }
        }
    }

    /// Records the source of a value, or of a part of one.
    pub(crate) fn set(&mut self, path: &str, source: Source) {
        self.0.insert(path.to_owned(), source);
    }
}

/// One problem in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The offending key; empty if the problem concerns the whole file or environment.
    pub key: String,
    /// What is wrong and how to fix it.
    pub text: String,
    /// Source of the offending value.
    pub source: Source,
}

impl Problem {
    /// A problem with a value whose source is filled in later.
    pub(crate) fn of(key: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem { key: key.into(), text: text.into(), source: Source::Default }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Default => {}
            Source::File { file, line, column } => {
                write!(f, "{}:{line}:{column}: ", file.display())?;
            }
            Source::Env(name) => write!(f, "{name}: ")?,
            Source::Flag(name) => write!(f, "{name}: ")?,
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.text)
    }
}

impl std::error::Error for Problem {}

/// A problem made by serde says only what was expected. The reader adds what was found, and where.
impl de::Error for Problem {
    fn custom<T: fmt::Display>(expected: T) -> Problem {
        Problem::of("", expected.to_string())
    }

    fn unknown_variant(_: &str, choices: &'static [&'static str]) -> Problem {
        Problem::custom(match choices {
            [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
            _ => choices.concat(),
        })
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

/// Why a configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}", file.display())]
    File {
        /// Path as given.
        file: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The problems found, at most fifty.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

impl ConfigError {
    /// The individual problems. Empty if the file cannot be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            ConfigError::File { .. } => &[],
            ConfigError::Invalid(problems) => problems,
        }
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}
