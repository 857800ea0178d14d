//! The configuration file, and after a NUL byte the environment: `NAME=VALUE`.

use codeq_server::config::{DEFAULT_YAML, Flags, load};

thread_local! {
    static FILE: tempfile::NamedTempFile = tempfile::NamedTempFile::new().expect("a file");
}

/// A configuration is accepted, or refused with a message.
pub fn run(data: &[u8]) {
    let (file, variables) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[][..]),
    };
    let variables = String::from_utf8_lossy(variables).into_owned();
    let variables = variables.split('\0').filter_map(|variable| variable.split_once('='));
    let variables = variables.map(|(name, value)| (format!("CODEQ_{name}"), value.to_owned()));
    FILE.with(|path| {
        std::fs::write(path, file).expect("the file can be written");
        match load(Some(path.path()), variables, &Flags::default()) {
            // A configuration that was accepted can be checked again.
            Ok(loaded) => assert!(loaded.config.check().is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

pub fn seeds() -> Vec<Vec<u8>> {
    let uncommented = DEFAULT_YAML.replace("\n# ", "\n").replace("\n  # ", "\n  ");
    let small = "httpAddr: 127.0.0.1:0\nshards: 2\nworkerAuth:\n  staticTokens:\n    - token: secret-secret-secret\n      \
                 subject: w\n      tenant: acme\n      scopes: [codeq:claim]\n      eventTypes: ['*']\n";
    let variables = "durability: os\0SHARDS=4\0HTTP_ADDR=0.0.0.0:8080";
    [DEFAULT_YAML, &uncommented, small, variables, "", "a: {b: [1, 'c', \"d\\n\"]}\n"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}
