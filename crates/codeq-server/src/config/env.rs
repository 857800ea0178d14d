//! The environment layer.

use super::keys::KEYS;
use super::problem::{PROBLEMS_MAX, Problem, Source, shown};
use super::tree::{Node, parse};
use crate::suggest::nearest;

/// Names the configuration file. The program reads it, not this module.
pub const FILE_VARIABLE: &str = "CODEQ_CONFIG";

/// Variables with this prefix that are not server settings.
const OTHERS: [&str; 8] = [
    FILE_VARIABLE,
    "CODEQ_WRITE_FIXTURE",
    // For clients, which may share the server's environment.
    "CODEQ_TOKEN",
    "CODEQ_HTTP_URL",
    "CODEQ_PRODUCER_URL",
    "CODEQ_WORKER_URL",
    "CODEQ_CA_FILE",
    "CODEQ_PROFILE",
];

/// Puts the variables into the tree. Empty ones are ignored.
pub(crate) fn apply(
    tree: &mut Node,
    env: impl Iterator<Item = (String, String)>,
    problems: &mut Vec<Problem>,
) {
    let mut variables: Vec<_> = env.filter(|(name, _)| name.starts_with("CODEQ_")).collect();
    variables.sort();
    for (name, value) in variables {
        if value.is_empty() || OTHERS.contains(&name.as_str()) {
            continue;
        }
        let node = match KEYS.iter().find(|key| key.variable() == name) {
            Some(key) if !key.list => Ok((key, Node::raw(value, Source::Env(name)))),
            Some(key) => match parse(&value, &Source::Env(name)) {
                Ok(node) => Ok((key, node)),
                Err(problem) => Err(Problem { key: key.path.clone(), ..problem }),
            },
            None if is_service_link(&name) => continue,
            None => Err(unknown(&name)),
        };
        match node {
            Ok((key, node)) => tree.set(&key.path, node),
            Err(problem) if problems.len() < PROBLEMS_MAX => problems.push(problem),
            Err(_) => {}
        }
    }
}

fn unknown(name: &str) -> Problem {
    let names: Vec<String> = KEYS.iter().map(|key| key.variable()).collect();
    let pairs = names.iter().map(|full| (without_prefix(full), full.as_str()));
    let near = nearest(without_prefix(name), pairs);
    let text = match near {
        Some(near) => format!("unknown variable, did you mean {near}?"),
        None => "unknown variable; `codeq config default` shows every key".to_owned(),
    };
    Problem { key: String::new(), text, source: Source::Env(shown(name)) }
}

fn without_prefix(name: &str) -> &str {
    name.strip_prefix("CODEQ_").unwrap_or(name)
}

/// Whether Kubernetes set this variable for a service whose name begins with `codeq`. It does so in
/// every pod of the namespace, and the server would fail to start for no apparent reason.
fn is_service_link(name: &str) -> bool {
    let Some((_, port)) = name.split_once("_PORT") else {
        return name.ends_with("_SERVICE_HOST");
    };
    if port.is_empty() || name.contains("_SERVICE_PORT_") {
        return true;
    }
    let number = port.trim_start_matches('_').split('_').next().unwrap_or_default();
    number.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_variables_of_kubernetes() {
        for link in [
            "CODEQ_SERVICE_HOST",
            "CODEQ_SERVICE_PORT",
            "CODEQ_SERVICE_PORT_HTTP",
            "CODEQ_PORT",
            "CODEQ_PORT_8080_TCP",
            "CODEQ_PORT_8080_TCP_ADDR",
            "CODEQ_HEADLESS_PORT_8080_TCP_PROTO",
        ] {
            assert!(is_service_link(link), "{link}");
        }
        for other in ["CODEQ_PORTS", "CODEQ_PORT_HTTP", "CODEQ_SHARD", "CODEQ_SERVICE"] {
            assert!(!is_service_link(other), "{other}");
        }
        assert!(!KEYS.iter().any(|key| is_service_link(&key.variable())));
    }
}
