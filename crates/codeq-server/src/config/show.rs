//! The configuration in effect with the source of each value, without secrets.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::keys::KEYS;
use super::load::Loaded;

impl Loaded {
    /// YAML with each value's source as a comment. Secrets are masked. Fails if a path is not UTF-8.
    pub fn to_yaml(&self) -> Result<String, serde_json::Error> {
        let config = serde_json::to_value(&self.config)?;
        let mut yaml = String::new();
        let mut open: Vec<&str> = Vec::new();
        for key in KEYS.iter() {
            let mut sections: Vec<&str> = key.path.split('.').collect();
            let name = sections.pop().unwrap_or(&key.path);
            let common = open.iter().zip(&sections).take_while(|(a, b)| a == b).count();
            for (depth, section) in sections.iter().enumerate().skip(common) {
                line(&mut yaml, depth, &format!("{section}:"));
            }
            let value =
                format!("{name}: {}  # {}", get(&config, &key.path), self.sources.of(&key.path));
            line(&mut yaml, sections.len(), &value);
            open = sections;
        }
        Ok(yaml)
    }

    /// `{"config": …, "sources": {"httpAddr": "default", …}}`. Secrets are masked. Fails if a path
    /// is not UTF-8.
    pub fn to_json(&self) -> Result<Value, serde_json::Error> {
        let source = |path: &str| Value::String(self.sources.of(path).to_string());
        let sources: Map<String, Value> =
            KEYS.iter().map(|key| (key.path.clone(), source(&key.path))).collect();
        Ok(json!({ "config": serde_json::to_value(&self.config)?, "sources": sources }))
    }
}

fn line(yaml: &mut String, depth: usize, text: &str) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(yaml, "{:indent$}{text}", "", indent = 2 * depth);
}

/// The value at a path, as JSON, which is also YAML.
pub(super) fn get(config: &Value, path: &str) -> Value {
    let value = path.split('.').try_fold(config, |value, name| value.get(name));
    value.cloned().unwrap_or(Value::Null)
}
