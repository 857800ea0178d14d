//! Operator operations, which affect the server and all tenants.

use serde_json::{Value, json};

use super::kinds::{count, list, object, text};
use super::operation::Operation;
use crate::service::Code;

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![("makeBackup", make_backup()), ("reloadConfig", reload_config())]
}

/// The schemas, by name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![("Backup", backup()), ("Reloaded", reloaded())]
}

fn make_backup() -> Operation {
    Operation::new(
        "server",
        "Make a backup",
        "Copies the data of all tenants to a new name below `backup.target` of the configuration, reads the copy back \
         and verifies it, while the server goes on. Everything acknowledged before the request is in it. One at a \
         time. A backup that was begun goes on when the client goes away. `codeq restore` takes the `location`. The \
         body, if there is one, is an empty object.",
    )
    .answers(200, "It is complete and verified.", "Backup")
    .refuses(&[Code::BackupNotConfigured, Code::BackupRunning, Code::BackupFailed])
}

fn reload_config() -> Operation {
    Operation::new(
        "server",
        "Reload the configuration",
        "Reads the configuration again, and the certificate, as `SIGHUP` does. Tokens, issuers, secrets, rates, limits of \
         tenants, networks of webhooks, the place of backups and the log level are taken over at once; the answer names \
         the keys that need a restart. What is wrong with the configuration is said, and then nothing is changed. \
         Streams of a fixed token that was removed or changed end. The body, if there is one, is an empty object.",
    )
    .answers(200, "It is in force.", "Reloaded")
    .refuses(&[Code::InvalidConfiguration])
}

fn reloaded() -> Value {
    let change = json!({
        "key": text("The key."),
        "from": text("Its value before; secrets are masked, of a list there is its length."),
        "to": text("Its value now."),
    });
    let change = object("A key with another value.", &["key", "from", "to"], change);
    let keys = json!({ "type": "string" });
    let properties = json!({
        "changed": list(change, "What is in force from now on."),
        "needsRestart": list(keys, "Keys that differ from what is in force, and will until the next start."),
    });
    object("What a reload came to.", &["changed", "needsRestart"], properties)
}

fn backup() -> Value {
    let properties = json!({
        "location": text("Its address, as `codeq restore` takes it."),
        "bytes": count("How large it is."),
        "tasks": count("The tasks in it, finished ones included."),
        "shards": count("Its shards."),
        "tookMs": count("How long it took, in milliseconds."),
    });
    let required = ["location", "bytes", "tasks", "shards", "tookMs"];
    object("A backup that was made.", &required, properties)
}
