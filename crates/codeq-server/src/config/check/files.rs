//! Checks the TLS files: both or neither, and a private key that not everybody can read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::config::model::TlsConfig;
use crate::config::problem::Problem;

/// Mode bit: world-readable.
const OTHERS_READ: u32 = 0o004;

pub(super) fn check(tls: &TlsConfig, problems: &mut Vec<Problem>) {
    match (&tls.cert_file, &tls.key_file) {
        (None, None) => {}
        (Some(_), None) => problems.push(missing("tls.keyFile", "tls.certFile")),
        (None, Some(_)) => problems.push(missing("tls.certFile", "tls.keyFile")),
        (Some(cert), Some(key)) => {
            mode("tls.certFile", cert, problems);
            if mode("tls.keyFile", key, problems).is_some_and(|mode| mode & OTHERS_READ != 0) {
                let text = format!(
                    "everybody on this machine can read the private key: chmod 600 {} (in \
                     Kubernetes: defaultMode 0400 of the volume)",
                    key.display()
                );
                problems.push(Problem::of("tls.keyFile", text));
            }
        }
    }
}

fn missing(key: &str, other: &str) -> Problem {
    Problem::of(key, format!("missing, but {other} is set: TLS needs both"))
}

/// The file's mode; reports a problem if it is missing or not a regular file.
fn mode(key: &str, path: &Path, problems: &mut Vec<Problem>) -> Option<u32> {
    let text = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => return Some(metadata.permissions().mode()),
        Ok(_) => format!("{} is not a file", path.display()),
        Err(error) => format!("{}: {error}", path.display()),
    };
    problems.push(Problem::of(key, text));
    None
}
