//! The YAML file layer.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::keys;
use super::model::Config;
use super::problem::{ConfigError, Problem, Sources};
use super::read::{Origin, Reader};
use super::tree::{Place, parse};

/// Largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Mode bit: world-readable.
const OTHERS_READ: u32 = 0o004;

/// Applies the file.
pub(crate) fn apply(
    config: &mut Config,
    path: &Path,
    problems: &mut Vec<Problem>,
    sources: &mut Sources,
) -> Result<(), ConfigError> {
    let (text, mode) =
        read(path).map_err(|error| ConfigError::File { file: path.to_owned(), error })?;
    let mut reader = Reader { origin: Origin::File(Arc::from(path)), problems, sources };
    match parse(&text) {
        Ok(node) => keys::apply(config, &node, "", &mut reader),
        Err(malformed) => reader.malformed("", malformed),
    }
    if mode & OTHERS_READ != 0 {
        refuse_readable_tokens(config, &mut reader, path);
    }
    Ok(())
}

/// The file's text, and its mode when it was read.
fn read(path: &Path) -> io::Result<(String, u32)> {
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

/// Rejects plain tokens in a world-readable file.
fn refuse_readable_tokens(config: &Config, reader: &mut Reader<'_>, path: &Path) {
    let auth = [&config.producer_auth, &config.worker_auth];
    if auth.iter().flat_map(|auth| &auth.static_tokens).any(|token| token.token.is_some()) {
        let text = format!(
            "everybody on this machine can read the tokens in this file: chmod 600 {}, or give \
             tokenSha256 instead of token",
            path.display()
        );
        reader.note("", text, Place { line: 1, column: 1 });
    }
    if !config.webhooks.secrets.is_empty() {
        let text = format!(
            "everybody on this machine can read webhooks.secrets in this file: chmod 600 {}",
            path.display()
        );
        reader.note("", text, Place { line: 1, column: 1 });
    }
}
