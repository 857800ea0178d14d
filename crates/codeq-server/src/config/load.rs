//! Merges the layers.

use std::path::{Path, PathBuf};

use super::flags::Flags;
use super::model::{Config, LogFormat};
use super::problem::{ConfigError, PROBLEMS_MAX, Problem, Sources};
use super::read::read;
use super::tree::{Kind, Node};
use super::{env, file};

/// A checked configuration and the source of each value.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Source of each value.
    pub sources: Sources,
    /// The file it was read from.
    pub file: Option<PathBuf>,
}

/// Reads all layers and checks the result. Flags override the environment, which overrides the
/// file, which overrides the defaults. Lists are replaced as a whole.
///
/// The environment is an argument; variables without the prefix `CODEQ_` are ignored.
pub fn load(
    path: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> Result<Loaded, ConfigError> {
    let mut problems = Vec::new();
    let tree = path.map(|path| file::tree(path, &mut problems)).transpose()?;
    let (config, sources) = merge(tree, env, flags, &mut problems);
    add_checks(&config, &sources, &mut problems);
    if problems.is_empty() {
        Ok(Loaded { config, sources, file: path.map(Path::to_owned) })
    } else {
        Err(ConfigError::Invalid(problems))
    }
}

/// The log format, as far as the layers are readable, so that configuration errors use it too.
pub fn log_format(
    path: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> LogFormat {
    // `load` reports the same problems.
    let tree = path.and_then(|path| file::tree(path, &mut Vec::new()).ok());
    merge(tree, env, flags, &mut Vec::new()).0.log_format
}

/// The values of all layers, unchecked.
pub(crate) fn merge(
    file: Option<Node>,
    env: impl Iterator<Item = (String, String)>,
    flags: &Flags,
    problems: &mut Vec<Problem>,
) -> (Config, Sources) {
    let mut tree = file.unwrap_or_else(Node::empty);
    env::apply(&mut tree, env, problems);
    let mut config = read(&tree, problems);
    let mut sources = Sources::default();
    tree.walk("", &mut |path, node| {
        // Sections have no source of their own; the elements of lists do.
        if !node.refused.get() && (path.ends_with(']') || !matches!(node.kind, Kind::Map(_))) {
            sources.set(path, node.source.clone());
        }
    });
    flags.apply(&mut config, &mut sources);
    (config, sources)
}

/// Adds the problems the checks find. Checks how values relate only if all were readable: a default
/// in place of an unreadable value would give misleading errors.
fn add_checks(config: &Config, sources: &Sources, problems: &mut Vec<Problem>) {
    let found = if problems.is_empty() { config.check() } else { config.check_fields() };
    for mut problem in found {
        if problems.len() < PROBLEMS_MAX {
            problem.source = sources.of(&problem.key);
            problems.push(problem);
        }
    }
}
