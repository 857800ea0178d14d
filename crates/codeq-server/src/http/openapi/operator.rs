//! The operations of operators: they concern the server, and all tenants.

use serde_json::{Value, json};

use super::kinds::{count, object, text};
use super::operation::Operation;

/// The documentation by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![("makeBackup", make_backup())]
}

/// The schemas by name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![("Backup", backup())]
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
    .refuses(&["backup_not_configured", "backup_running", "backup_failed"])
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
