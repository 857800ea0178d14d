//! The YAML file layer.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::model::Config;
use super::problem::{ConfigError, PROBLEMS_MAX, Problem, Source};
use super::read::read;
use super::tree::{Node, parse};

/// Largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Mode bit: world-readable.
const OTHERS_READ: u32 = 0o004;

/// Parses the file. Checks it on its own too, so that a variable that overrides a wrong value does not hide the
/// mistake.
pub(crate) fn tree(path: &Path, problems: &mut Vec<Problem>) -> Result<Node, ConfigError> {
    let (text, mode) =
        contents(path).map_err(|error| ConfigError::File { file: path.to_owned(), error })?;
    let source = Source::File { file: Arc::from(path), line: 1, column: 1 };
    let tree = parse(&text, &source).unwrap_or_else(|problem| {
        problems.push(problem);
        Node::empty()
    });
    let config = read(&tree, problems);
    if mode & OTHERS_READ != 0 {
        let found = readable_secrets(&config, path);
        let found = found.map(|text| Problem { key: String::new(), text, source: source.clone() });
        let room = PROBLEMS_MAX.saturating_sub(problems.len());
        problems.extend(found.take(room));
    }
    Ok(tree)
}

/// The file's text, and its mode when it was read.
fn contents(path: &Path) -> io::Result<(String, u32)> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    let mut text = String::new();
    // Read one byte more to tell a file that is too large from one that just fits.
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("larger than {FILE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok((text, metadata.permissions().mode()))
}

/// What is wrong if everybody can read the file.
fn readable_secrets(config: &Config, path: &Path) -> impl Iterator<Item = String> {
    let mut auth = [&config.producer_auth, &config.worker_auth].into_iter();
    let tokens = auth.any(|auth| auth.static_tokens.iter().any(|token| token.token.is_some()));
    let secrets = !config.webhooks.secrets.is_empty();
    let path = path.display().to_string();
    let found = [
        (tokens, "the tokens", ", or give tokenSha256 instead of token"),
        (secrets, "webhooks.secrets", ""),
    ];
    found.into_iter().filter(|(found, ..)| *found).map(move |(_, what, instead)| {
        format!("everybody on this machine can read {what} in this file: chmod 600 {path}{instead}")
    })
}
