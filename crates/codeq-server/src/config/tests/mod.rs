//! Configuration from an operator's view: files, variables, flags and error messages.

mod bad_files;
mod checks;
mod defaults;
mod layers;
mod reload;
mod secrets;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tempfile::TempDir;

use super::{ConfigError, Flags, Loaded, load};

/// A file `codeq.yaml` in a temporary directory.
struct Fixture {
    dir: TempDir,
}

impl Fixture {
    fn new(yaml: &str) -> Fixture {
        let fixture = Fixture { dir: tempfile::tempdir().unwrap() };
        fs::write(fixture.path(), yaml).unwrap();
        fixture.chmod(0o600);
        fixture
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("codeq.yaml")
    }

    fn chmod(&self, mode: u32) {
        fs::set_permissions(self.path(), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn load(&self, env: &[(&str, &str)], flags: &Flags) -> Result<Loaded, ConfigError> {
        load(Some(&self.path()), variables(env), flags)
    }

    /// The reported problems, one line each, without the directory.
    fn complaints(&self, env: &[(&str, &str)]) -> Vec<String> {
        let error = self.load(env, &Flags::default()).expect_err("is refused");
        self.lines(&error)
    }

    fn lines(&self, error: &ConfigError) -> Vec<String> {
        let dir = format!("{}/", self.dir.path().display());
        error.to_string().replace(&dir, "").lines().map(str::to_owned).collect()
    }
}

fn variables(env: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
}

fn from_yaml(yaml: &str) -> Loaded {
    Fixture::new(yaml).load(&[], &Flags::default()).unwrap()
}

fn from_env(env: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    load(None, variables(env), &Flags::default())
}
