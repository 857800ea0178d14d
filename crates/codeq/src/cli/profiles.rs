//! Profiles: the URL and the token of each environment, in a file that only its owner can read.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::failure::{Done, Exit, Failure};

/// How to reach a server.
#[derive(Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    pub url: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// Address of the worker stream, if it cannot be derived from the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_url: Option<String>,
    /// A PEM file with certificates to trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// The file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profiles {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    pub profiles: BTreeMap<String, Profile>,
}

impl Profiles {
    /// `codeq/profiles.json` below `XDG_CONFIG_HOME` or `~/.config`.
    pub fn path() -> Option<PathBuf> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let home = || variable("HOME").map(|home| home.join(".config"));
        variable("XDG_CONFIG_HOME").or_else(home).map(|dir| dir.join("codeq/profiles.json"))
    }

    /// Reads the file. A missing one has no profiles.
    pub fn load() -> Done<Profiles> {
        let Some(path) = Profiles::path() else { return Ok(Profiles::default()) };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Profiles::default());
            }
            Err(error) => {
                let what = format!("cannot read {}: {error}", path.display());
                return Err(Failure::error(what, "check who owns the file"));
            }
        };
        serde_json::from_slice(&text).map_err(|error| {
            let what = format!("{} cannot be parsed: {error}", path.display());
            Failure::error(what, "correct the file, or delete it and add the profiles again")
        })
    }

    /// Changes the file. Concurrent commands change it one after the other.
    pub fn edit<T>(change: impl FnOnce(&mut Profiles) -> Done<T>) -> Done<T> {
        let path = Profiles::path().ok_or_else(|| {
            Failure::error("no directory for profiles is known", "set HOME or XDG_CONFIG_HOME")
        })?;
        let dir = path.parent().unwrap_or(&path);
        let failed = |error: std::io::Error| {
            let what = format!("cannot write {}: {error}", path.display());
            Failure::error(what, "check who owns the directory, or set XDG_CONFIG_HOME")
        };
        // Locks the directory, because the file itself is replaced. The lock ends with this function.
        let _lock = locked(dir).map_err(failed)?;
        let mut profiles = Profiles::load()?;
        let changed = change(&mut profiles)?;
        profiles.write(&path, dir).map_err(failed)?;
        Ok(changed)
    }

    /// Replaces the file. Only its owner can read it, even while it is being written.
    fn write(&self, path: &Path, dir: &Path) -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o600))?;
        let text = serde_json::to_string_pretty(self)?;
        writeln!(file, "{text}")?;
        file.persist(path)?;
        Ok(())
    }

    pub fn get(&self, name: &str) -> Done<&Profile> {
        self.profiles.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.profiles.keys().map(String::as_str).collect();
            let hint = match known.is_empty() {
                true => format!("add it: codeq profile add {name} --url URL --token-file FILE"),
                false => format!("use one of: {}", known.join(", ")),
            };
            Failure::new(Exit::NotFound, format!("there is no profile '{name}'"), hint)
        })
    }

    pub fn current(&self) -> Option<&Profile> {
        self.profiles.get(self.current.as_ref()?)
    }
}

/// Parses a profile's name: one that needs no quotes in a shell.
pub fn profile_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits, '-', '_' and '.'".to_owned()),
    }
}

/// Creates the directory if necessary, and locks it.
fn locked(dir: &Path) -> std::io::Result<fs::File> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let dir = fs::File::open(dir)?;
    dir.lock()?;
    Ok(dir)
}
