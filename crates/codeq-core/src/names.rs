//! Validation of names from outside, and the mapping from commands to queues.

use std::borrow::Cow;

use crate::limits::{COMMAND_BYTES_MAX, RECORD_NAME_BYTES_MAX, TENANT_BYTES_MAX, WORKER_BYTES_MAX};
use crate::rejection::Rejection;

/// Checks a tenant's name. Names never appear in keys, so none can collide with another; control characters are
/// refused to keep logs readable.
pub fn check_tenant(tenant: &str) -> Result<(), Rejection> {
    if is_name(tenant, TENANT_BYTES_MAX) { Ok(()) } else { Err(Rejection::InvalidTenant) }
}

/// Checks a command's name.
pub fn check_command(command: &str) -> Result<(), Rejection> {
    if is_name(command, COMMAND_BYTES_MAX) { Ok(()) } else { Err(Rejection::InvalidCommand) }
}

/// Checks a worker's identity.
pub fn check_worker(worker: &str) -> Result<(), Rejection> {
    if is_name(worker, WORKER_BYTES_MAX) { Ok(()) } else { Err(Rejection::InvalidWorker) }
}

/// Separates a subject from an instance name in a worker's identity. Unicode reserves this code point for internal use,
/// and no subject may contain it, so an instance can never be mistaken for another subject.
pub const INSTANCE_SEPARATOR: char = '\u{fdd0}';

/// Whether `written` names this worker: verbatim, or in the displayed form `subject/instance`.
pub fn is_worker(identity: &str, written: &str) -> bool {
    let shown = |(subject, name): (&str, &str)| {
        let rest = written.strip_prefix(subject).and_then(|rest| rest.strip_prefix('/'));
        rest == Some(name)
    };
    identity == written || identity.split_once(INSTANCE_SEPARATOR).is_some_and(shown)
}

/// Checks the name of a record.
pub fn check_record_name(name: &str) -> Result<(), Rejection> {
    let good = is_name(name, RECORD_NAME_BYTES_MAX);
    if good { Ok(()) } else { Err(Rejection::InvalidRecord { field: "name".into() }) }
}

/// The queue that a command belongs to: the command in ASCII lowercase.
pub fn queue_name(command: &str) -> Cow<'_, str> {
    if command.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(command.to_ascii_lowercase())
    } else {
        Cow::Borrowed(command)
    }
}

/// The text, cut at a character boundary to at most `max` bytes.
pub fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or(text)
}

fn is_name(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
        for good in ["a", "GENERATE_MASTER", "a/b", "ünï", "..", &"x".repeat(128)] {
            assert_eq!(check_command(good), Ok(()), "{good}");
        }
        for bad in ["", "a\nb", "a\0", "\u{7f}", "\u{85}", &"x".repeat(129)] {
            assert_eq!(check_command(bad), Err(Rejection::InvalidCommand), "{bad:?}");
        }
    }

    #[test]
    fn queues_ignore_ascii_case_only() {
        assert_eq!(queue_name("Generate_MASTER"), "generate_master");
        assert_eq!(queue_name("Ü"), "Ü");
        assert!(matches!(queue_name("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn cuts_between_characters() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        assert_eq!(cut("", 3), "");
    }
}
