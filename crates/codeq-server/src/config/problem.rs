//! What is wrong with a configuration, and where each value came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most problems that are reported at once.
pub(crate) const PROBLEMS_MAX: usize = 50;

/// Which layer said something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody did.
    Default,
    /// The file.
    File {
        /// Its path, as given.
        file: Arc<Path>,
        /// The line, from 1.
        line: u32,
        /// The column in characters, from 1.
        column: u32,
    },
    /// The environment variable of this name.
    Env(String),
    /// The flag of this name, with its dashes.
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

/// Which layer each value came from, by its path, such as `http.maxBodyBytes` or
/// `producerAuth.staticTokens[0].tenant`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sources(BTreeMap<String, Source>);

impl Sources {
    /// Where the value came from: if the path itself is not known, then where what holds it did.
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

    /// A layer has spoken: forgets what earlier layers said about parts of this value.
    pub(crate) fn replace(&mut self, path: &str, source: Source) {
        let inside = |key: &str| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('['));
        self.0.retain(|key, _| !inside(key));
        self.0.insert(path.to_owned(), source);
    }

    /// Where a part of a value stands.
    pub(crate) fn add(&mut self, path: String, source: Source) {
        self.0.insert(path, source);
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key that it is about; empty if it is about the file or the environment as a whole.
    pub key: String,
    /// What is wrong, and what to do.
    pub text: String,
    /// Who said it.
    pub source: Source,
}

impl Problem {
    /// A problem of a value, wherever it came from.
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

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}", file.display())]
    File {
        /// Its path, as given.
        file: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Something in it is wrong: all that was found, at most fifty.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

impl ConfigError {
    /// What is wrong, one by one. Empty if the file cannot be read.
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
