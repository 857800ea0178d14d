//! The layers, put together.

use std::path::{Path, PathBuf};

use super::flags::Flags;
use super::model::{Config, LogFormat};
use super::problem::{ConfigError, PROBLEMS_MAX, Problem, Sources};
use super::{env, file};

/// A configuration that was checked, and who said what.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Where its values came from.
    pub sources: Sources,
    /// The file that was read.
    pub file: Option<PathBuf>,
}

/// Reads all layers and checks the outcome: flags, then the environment, then the file, then defaults; the
/// first that speaks wins. Lists are replaced as a whole.
///
/// The environment is an argument; variables that do not begin with `CODEQ_` are passed over.
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

/// How log lines look, as far as the layers can be read: what is wrong with them is said in that form too.
pub fn log_format(
    path: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> LogFormat {
    let (mut config, mut sources, mut problems) = Default::default();
    if let Some(path) = path {
        // Whoever asks has been told about it.
        let _ = file::apply(&mut config, path, &mut problems, &mut sources);
    }
    env::apply(&mut config, env, &mut problems, &mut sources);
    flags.apply(&mut config, &mut sources);
    config.log_format
}

/// Adds what the checks find. How values go together is checked only if all could be read: a default in
/// place of a value that could not says nothing about it.
fn add_checks(config: &Config, sources: &Sources, problems: &mut Vec<Problem>) {
    let found = if problems.is_empty() { config.check() } else { config.check_fields() };
    for mut problem in found {
        if problems.len() < PROBLEMS_MAX {
            problem.source = sources.of(&problem.key);
            problems.push(problem);
        }
    }
}
