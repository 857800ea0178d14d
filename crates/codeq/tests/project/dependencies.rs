//! Rules for dependencies: no versions with known faults, no new licences, no unused crates, and none that would make
//! `codeq-core` impure. Needs no network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

/// The oldest version of a crate that may be used, and the fault of the versions before it. A crate that is not used
/// costs nothing here; one that is added later must meet its minimum at once.
const MINIMUM: &[(&str, &str, &str)] = &[
    ("bytes", "1.11.1", "RUSTSEC-2026-0007"),
    ("crossbeam-epoch", "0.9.20", "RUSTSEC-2026-0204"),
    ("fjall", "3.1.13", "swallowed journal errors, acknowledged batches dropped on reopen"),
    ("h2", "0.4.18", "RUSTSEC-2026-0258 and what its fix broke"),
    ("hickory-proto", "0.26.1", "RUSTSEC-2026-0118, RUSTSEC-2026-0119"),
    ("hickory-resolver", "0.26.1", "RUSTSEC-2026-0118, RUSTSEC-2026-0119"),
    ("hyper", "1.11.0", "busy loop on a half-closed peer; header handling"),
    ("idna", "1.0.0", "RUSTSEC-2024-0421"),
    ("jsonwebtoken", "10.3.0", "CVE-2026-25537: claims of a wrong type count as absent"),
    ("lru", "0.18.2", "RUSTSEC-2026-0253"),
    ("lsm-tree", "3.1.10", "clear() corrupts"),
    ("lz4_flex", "0.11.6", "RUSTSEC-2026-0041"),
    ("memmap2", "0.9.11", "RUSTSEC-2026-0186"),
    ("openraft", "0.9.25", "commits without a quorum"),
    ("protobuf", "3.7.2", "RUSTSEC-2024-0437"),
    ("rand", "0.8.6", "RUSTSEC-2026-0097"),
    ("ring", "0.17.12", "RUSTSEC-2025-0009"),
    ("rustls", "0.23.18", "RUSTSEC-2024-0336, RUSTSEC-2024-0399"),
    ("rustls-webpki", "0.103.13", "RUSTSEC-2026-0049, -0098, -0099, -0104"),
    ("slab", "0.4.11", "RUSTSEC-2025-0047"),
    ("time", "0.3.47", "RUSTSEC-2026-0009"),
    ("tokio", "1.44.2", "RUSTSEC-2025-0023"),
    ("tonic", "0.14.3", "decompression ignores the size limit"),
    ("tracing-subscriber", "0.3.20", "RUSTSEC-2025-0055"),
    ("url", "2.5.4", "RUSTSEC-2024-0421"),
];

/// Faulty versions inside a range that is otherwise fine: crate, first faulty version, first fixed version, fault.
const EXCEPT: &[(&str, &str, &str, &str)] = &[
    ("lz4_flex", "0.12.0", "0.12.1", "RUSTSEC-2026-0041"),
    ("openraft", "0.10.0-0", "0.10.0-alpha.34", "commits without a quorum, stalls"),
    ("rand", "0.9.0", "0.9.3", "RUSTSEC-2026-0097"),
    ("rand", "0.10.0", "0.10.1", "RUSTSEC-2026-0097"),
];

/// Crates that are banned in every version, and why.
const BANNED: &[(&str, &str)] = &[
    ("bincode", "unmaintained; rows and records are postcard"),
    ("native-tls", "one TLS: rustls"),
    ("openssl", "one TLS: rustls"),
    ("openssl-sys", "one TLS: rustls"),
    ("rsa", "RUSTSEC-2023-0071: timing leak, no fix"),
];

/// The licences in use, and no others: a new one is a decision. ISC: the cryptography; BSD-3-Clause:
/// constant-time comparison; Unicode-3.0: host names; Zlib: a hash function that is used to generate the gRPC messages.
const LICENCES: &[&str] = &["Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "Unicode-3.0", "Zlib"];

/// What `codeq-core` must not depend on: threads, clocks, files, the network, randomness.
const IMPURE: &[&str] =
    &["tokio", "rand", "rand_core", "getrandom", "fastrand", "redb", "mio", "parking_lot"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Cargo's metadata of the packages that are built on this machine. They have been downloaded, so no network is needed.
static METADATA: LazyLock<Value> = LazyLock::new(|| {
    let options = ["--format-version=1", "--locked", "--offline", "--filter-platform=host-tuple"];
    let mut cargo = Command::new(env!("CARGO"));
    let said = cargo.arg("metadata").args(options).current_dir(root()).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    serde_json::from_slice(&said.stdout).unwrap()
});

fn list<'a>(of: &'a Value, field: &str) -> &'a [Value] {
    of[field].as_array().unwrap()
}

fn text<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or_else(|| panic!("no {field}: {of}"))
}

struct Package {
    name: String,
    version: String,
    source: Option<String>,
    dependencies: Vec<String>,
}

/// The packages of `Cargo.lock`. The file is written by cargo: one field a line.
fn packages() -> Vec<Package> {
    let lock = read("Cargo.lock");
    let packages: Vec<Package> = lock.split("[[package]]").skip(1).map(package).collect();
    assert!(packages.len() > 20, "Cargo.lock was not understood");
    packages
}

fn package(text: &str) -> Package {
    let field = |name: &str| {
        let prefix = format!("{name} = \"");
        let value = text.lines().find_map(|line| line.strip_prefix(&prefix)?.strip_suffix('"'));
        value.map(str::to_owned)
    };
    let dependencies = text.lines().filter_map(|line| {
        let entry = line.strip_prefix(" \"")?.strip_suffix("\",")?;
        Some(entry.split(' ').next().unwrap_or(entry).to_owned())
    });
    Package {
        name: field("name").unwrap(),
        version: field("version").unwrap(),
        source: field("source"),
        dependencies: dependencies.collect(),
    }
}

/// A version that compares as the rules of semantic versioning say, as far as they are used here: numbers
/// by value, and a pre-release before its release.
type Version = (Vec<u64>, bool, Vec<u64>);

fn version(text: &str) -> Version {
    let text = text.split('+').next().unwrap_or(text);
    let (release, pre) = text.split_once('-').map_or((text, None), |(a, b)| (a, Some(b)));
    let numbers =
        |text: &str| -> Vec<u64> { text.split('.').filter_map(|part| part.parse().ok()).collect() };
    (numbers(release), pre.is_none(), pre.map(numbers).unwrap_or_default())
}

/// Why the version must not be used.
fn fault(name: &str, found: &str) -> Option<&'static str> {
    let is_old =
        |(of, least, _): &&(&str, &str, &str)| *of == name && version(found) < version(least);
    let is_except = |(of, from, to, _): &&(&str, &str, &str, &str)| {
        *of == name && (version(from)..version(to)).contains(&version(found))
    };
    let old = MINIMUM.iter().find(is_old).map(|(_, _, fault)| *fault);
    old.or_else(|| EXCEPT.iter().find(is_except).map(|(_, _, _, fault)| *fault))
}

#[test]
fn no_dependency_is_older_than_its_minimum() {
    for Package { name, version, .. } in packages() {
        if let Some(fault) = fault(&name, &version) {
            panic!("{name} {version} must not be used: {fault}");
        }
    }
}

#[test]
fn minimums_are_compared_by_number() {
    for (name, found, fine) in [
        ("bytes", "1.9.0", false),
        ("bytes", "1.11.0", false),
        ("bytes", "1.11.1", true),
        ("bytes", "1.12.1", true),
        ("h2", "0.4.9", false),
        ("openraft", "0.9.24", false),
        ("openraft", "0.9.25", true),
        ("openraft", "0.10.0-alpha.9", false),
        ("openraft", "0.10.0-alpha.34", true),
        ("openraft", "0.10.0", true),
        ("lz4_flex", "0.11.6", true),
        ("lz4_flex", "0.12.0", false),
        ("lz4_flex", "0.12.1", true),
        ("wasi", "0.11.1+wasi-snapshot-preview1", true),
    ] {
        assert_eq!(fault(name, found).is_none(), fine, "{name} {found}");
    }
}

#[test]
fn banned_crates_are_absent_and_everything_is_from_the_registry() {
    for Package { name, source, .. } in packages() {
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| *banned == name) {
            panic!("{name} is banned: {why}");
        }
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        let own = name == "codeq" || name.starts_with("codeq-");
        assert_eq!(source.as_deref(), if own { None } else { Some(registry) }, "{name}");
    }
}

/// Whether the licences in use satisfy an expression of SPDX, such as `(MIT OR Apache-2.0) AND ISC`. Some packages
/// still write `/` for `OR`.
fn is_allowed(expression: &str) -> bool {
    fn satisfied<'a>(words: &mut impl Iterator<Item = &'a str>) -> bool {
        let (mut any, mut all) = (false, true);
        loop {
            all &= match words.next() {
                Some("(") => satisfied(words),
                licence => licence.is_some_and(|licence| LICENCES.contains(&licence)),
            };
            let mut operator = words.next();
            if operator == Some("WITH") {
                // An exception makes it another licence.
                (all, _) = (false, words.next());
                operator = words.next();
            }
            match operator {
                Some("AND") => {}
                Some("OR") => (any, all) = (any | all, true),
                _ => return any | all,
            }
        }
    }
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    satisfied(&mut spaced.split_whitespace())
}

#[test]
fn licence_expressions_are_evaluated() {
    for (expression, allowed) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("MIT/GPL-3.0", true),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("ISC AND (GPL-3.0 OR MPL-2.0)", false),
        ("Apache-2.0 WITH LLVM-exception OR MIT", true),
        ("Apache-2.0 WITH LLVM-exception", false),
        ("MIT AND (GPL-3.0 OR (ISC AND Zlib)) AND ISC", true),
    ] {
        assert_eq!(is_allowed(expression), allowed, "{expression}");
    }
}

#[test]
fn every_licence_is_one_that_is_in_use() {
    for package in list(&METADATA, "packages") {
        let licence = text(package, "license");
        assert!(is_allowed(licence), "{}: {licence}", text(package, "name"));
    }
}

/// The Rust sources below a directory, one after the other.
fn sources(dir: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    all
}

#[test]
fn every_dependency_is_used() {
    let mut named = BTreeSet::new();
    for package in list(&METADATA, "packages").iter().filter(|package| package["source"].is_null())
    {
        let mut sources = sources(Path::new(text(package, "manifest_path")).parent().unwrap());
        // Sources elsewhere that the tests of these crates include.
        let elsewhere = match text(package, "name") {
            "codeq" => Some("fuzz/src"),
            "codeq-raft" => Some("crates/codeq-engine/tests"),
            "codeq-server" => Some("crates/codeq-raft/tests"),
            _ => None,
        };
        if let Some(dir) = elsewhere {
            sources.push_str(&self::sources(&root().join(dir)));
        }
        for dependency in list(package, "dependencies") {
            let dependency = text(dependency, "name");
            named.insert(dependency);
            let name = dependency.replace('-', "_");
            let used =
                ["::", ";", " as "].iter().any(|after| sources.contains(&(name.clone() + after)));
            assert!(used, "{} does not use {dependency}", text(package, "name"));
        }
    }
    let manifest = read("Cargo.toml");
    let shared = manifest.split("[workspace.dependencies]").nth(1).unwrap().split("\n[").next();
    for name in shared.unwrap().lines().filter_map(|line| line.split([' ', '=']).next()) {
        assert!(name.is_empty() || named.contains(name), "nobody uses {name} of Cargo.toml");
    }
}

/// The dependencies of the rules as they are built, tests left out: what `Cargo.lock` says of those that the
/// manifest names.
fn reachable_from_core() -> BTreeSet<String> {
    let manifest = read("crates/codeq-core/Cargo.toml");
    let section = manifest.split("[dependencies]").nth(1).unwrap();
    let section = section.split("\n[").next().unwrap();
    let named = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    let mut open: Vec<String> = named.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    assert!(open.contains(&"serde".to_owned()), "the manifest was not understood");
    let graph: BTreeMap<String, Vec<String>> =
        packages().into_iter().map(|package| (package.name, package.dependencies)).collect();
    let mut reached = BTreeSet::new();
    while let Some(name) = open.pop() {
        if reached.insert(name.clone()) {
            open.extend(graph.get(&name).into_iter().flatten().cloned());
        }
    }
    reached
}

#[test]
fn the_rules_depend_on_nothing_impure() {
    let reached = reachable_from_core();
    for name in IMPURE {
        assert!(!reached.contains(*name), "codeq-core depends on {name}");
    }
    assert!(!reached.iter().any(|name| name.starts_with("codeq")), "arrows go down only");
}

#[test]
fn clippy_forbids_clocks_and_hash_order_in_the_rules() {
    let config = read("crates/codeq-core/clippy.toml");
    for path in [
        "std::time::SystemTime::now",
        "std::time::Instant::now",
        "std::collections::HashMap",
        "std::collections::HashSet",
        "std::thread::spawn",
    ] {
        assert!(config.contains(&format!("path = \"{path}\"")), "{path} is allowed");
    }
}
