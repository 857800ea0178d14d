//! The environment layer.

use super::keys::KEYS;
use super::model::Config;
use super::problem::{PROBLEMS_MAX, Problem, Source, Sources};
use super::read::{Origin, Reader, shown};
use super::tree::{Node, parse};
use crate::near::nearest;

/// Names the configuration file. The program reads it, not this module.
pub const FILE_VARIABLE: &str = "CODEQ_CONFIG";

/// Variables with this prefix that are not server settings.
const OTHERS: [&str; 7] = [
    FILE_VARIABLE,
    "CODEQ_WRITE_FIXTURE",
    // For clients, which may share the server's environment.
    "CODEQ_TOKEN",
    "CODEQ_HTTP_URL",
    "CODEQ_PRODUCER_URL",
    "CODEQ_WORKER_URL",
    "CODEQ_CA_FILE",
];

/// Applies the variables. Empty ones are ignored.
pub(crate) fn apply(
    config: &mut Config,
    env: impl Iterator<Item = (String, String)>,
    problems: &mut Vec<Problem>,
    sources: &mut Sources,
) {
    let mut variables: Vec<_> = env.filter(|(name, _)| name.starts_with("CODEQ_")).collect();
    variables.sort();
    for (name, value) in variables {
        if value.is_empty() || OTHERS.contains(&name.as_str()) {
            continue;
        }
        let Some(key) = KEYS.iter().find(|key| key.variable() == name) else {
            if !is_service_link(&name) && problems.len() < PROBLEMS_MAX {
                problems.push(unknown(&name));
            }
            continue;
        };
        let mut reader = Reader { origin: Origin::Env(name), problems, sources };
        if !key.list {
            key.set(config, &Node::raw(&value), &mut reader);
            continue;
        }
        match parse(&value) {
            Ok(node) => key.set(config, &node, &mut reader),
            Err(malformed) => reader.malformed(key.path, malformed),
        }
    }
}

fn unknown(name: &str) -> Problem {
    let names: Vec<String> = KEYS.iter().map(|key| key.variable()).collect();
    let short = |name: &'static str, full: &str| full.strip_prefix(name).map(str::to_owned);
    let shorts: Vec<String> = names.iter().filter_map(|full| short("CODEQ_", full)).collect();
    let pairs = shorts.iter().zip(&names).map(|(short, full)| (short.as_str(), full.as_str()));
    let near = nearest(name.strip_prefix("CODEQ_").unwrap_or(name), pairs);
    let text = match near {
        Some(near) => format!("unknown variable, did you mean {near}?"),
        None => "unknown variable; `codeq config default` shows every key".to_owned(),
    };
    Problem { key: String::new(), text, source: Source::Env(shown(name)) }
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
