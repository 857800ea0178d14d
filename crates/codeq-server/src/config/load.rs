//! Merges the layers.

use std::path::{Path, PathBuf};

use super::flags::Flags;
use super::model::{Config, LogFormat};
use super::problem::{ConfigError, PROBLEMS_MAX, Problem, Sources};
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
    let mut config = Config::default();
    let mut sources = Sources::default();
    let mut problems = Vec::new();
    if let Some(path) = path {
        file::apply(&mut config, path, &mut problems, &mut sources)?;
    }
    env::apply(&mut config, env, &mut problems, &mut sources);
    flags.apply(&mut config, &mut sources);
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
    let (mut config, mut sources, mut problems) = Default::default();
    if let Some(path) = path {
        // `load` reports the same problems.
        let _ = file::apply(&mut config, path, &mut problems, &mut sources);
    }
    env::apply(&mut config, env, &mut problems, &mut sources);
    flags.apply(&mut config, &mut sources);
    config.log_format
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
