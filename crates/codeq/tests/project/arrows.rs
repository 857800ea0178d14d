//! Dependencies go one way, between the crates of the workspace and between the modules of a crate. Reads `Cargo.lock`
//! and the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which of our crates a crate may depend on, tests included. A crate is listed after those that it depends on.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("codeq-core", &[]),
    ("codeq-disk", &[]),
    ("codeq-net", &[]),
    ("codeq-proto", &[]),
    ("codeq-auth", &["codeq-core"]),
    ("codeq-log", &["codeq-disk"]),
    ("codeq-store", &["codeq-core", "codeq-disk"]),
    ("codeq-engine", &["codeq-core", "codeq-disk", "codeq-log", "codeq-store"]),
    ("codeq-raft", &["codeq-core", "codeq-disk", "codeq-engine", "codeq-log", "codeq-store"]),
    (
        "codeq-sim",
        &["codeq-core", "codeq-disk", "codeq-engine", "codeq-log", "codeq-raft", "codeq-store"],
    ),
    (
        "codeq-crash",
        &["codeq-core", "codeq-disk", "codeq-engine", "codeq-log", "codeq-sim", "codeq-store"],
    ),
    ("codeq-webhooks", &["codeq-core", "codeq-engine"]),
    (
        "codeq-server",
        &[
            "codeq-auth",
            "codeq-core",
            "codeq-disk",
            "codeq-engine",
            "codeq-net",
            "codeq-proto",
            // For its tests, which also run over a cluster of one.
            "codeq-raft",
            "codeq-webhooks",
        ],
    ),
    // The server for its feature `testing` only.
    ("codeq-client", &["codeq-proto", "codeq-server"]),
    (
        "codeq",
        &[
            // For the fuzz targets.
            "codeq-auth",
            "codeq-client",
            "codeq-core",
            "codeq-disk",
            "codeq-engine",
            "codeq-log",
            // For the fuzz targets.
            "codeq-net",
            "codeq-proto",
            "codeq-server",
            "codeq-sim",
            "codeq-store",
        ],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

/// The crates of the workspace and those of ours that each depends on, from `Cargo.lock`.
fn crates() -> BTreeMap<String, BTreeSet<String>> {
    let lock = read(&root().join("Cargo.lock"));
    let is_ours = |name: &str| name == "codeq" || name.starts_with("codeq-");
    let packages = lock.split("[[package]]\n").skip(1).filter_map(|package| {
        let name = package.strip_prefix("name = \"")?.split('"').next()?;
        let lines =
            package.lines().filter_map(|line| line.strip_prefix(" \"")?.strip_suffix("\","));
        let known = lines.filter(|known| is_ours(known) && *known != name).map(str::to_owned);
        is_ours(name).then(|| (name.to_owned(), known.collect()))
    });
    packages.collect()
}

#[test]
fn crates_know_only_what_is_below_them() {
    let crates = crates();
    let listed: BTreeSet<&str> = MAY_KNOW.iter().map(|(name, _)| *name).collect();
    let there: BTreeSet<&str> = crates.keys().map(String::as_str).collect();
    assert_eq!(listed, there, "the table lists the crates of the workspace");
    let mut below = BTreeSet::new();
    for (name, may_know) in MAY_KNOW {
        for known in *may_know {
            assert!(below.contains(known), "{name} stands above {known} and may not know it");
        }
        for known in crates.get(*name).unwrap() {
            assert!(may_know.contains(&known.as_str()), "{name} may not know {known}");
        }
        below.insert(*name);
    }
}

/// The source files below a directory, without tests.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in children(dir) {
        if path.is_dir() && !path.ends_with("tests") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file without comments and without the tests at its end.
fn code(path: &Path) -> String {
    let text = read(path);
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&text);
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The first names of a path, or of each path of a group in braces.
fn first_names(path: &str) -> Vec<String> {
    let ident = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![ident(path)] };
    let (mut depth, mut names) = (1, vec![ident(group)]);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => names.push(ident(group.get(at + 1..).unwrap_or_default())),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// What the root of a crate takes from its modules: under which name, from which module.
fn taken(root: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut taken = BTreeMap::new();
    for statement in root.split("use ").skip(1) {
        let statement = statement.split(';').next().unwrap_or_default();
        let statement = statement.trim_start_matches("crate::").trim_start_matches("self::");
        let Some((module, rest)) = statement.split_once("::") else { continue };
        if modules.contains(module) {
            let names = rest.split(['{', '}', ',']).filter_map(|path| path.rsplit("::").next());
            let names = names.filter_map(|name| name.rsplit(" as ").next()).map(str::trim);
            taken.extend(names.map(|name| (name.to_owned(), module.to_owned())));
        }
    }
    taken
}

/// Which module of a crate knows which, and a file that shows it. A module is a file or directory in `src`; what the
/// crate's root takes from a module counts as that module's.
fn arrows(src: &Path) -> BTreeMap<(String, String), String> {
    let is_root = |name: &str| name == "lib" || name == "main";
    let modules: BTreeSet<String> =
        children(src).iter().map(|path| name(path)).filter(|name| !is_root(name)).collect();
    let roots = ["lib.rs", "main.rs"].map(|root| src.join(root));
    let root = roots.iter().filter(|root| root.exists()).map(|root| code(root)).collect::<String>();
    let taken = taken(&root, &modules);
    let mut arrows = BTreeMap::new();
    for file in sources(src) {
        let path = file.strip_prefix(src).unwrap();
        let from = name(path.iter().next().unwrap().as_ref());
        if is_root(&from) {
            continue;
        }
        // In this file, `super` repeated this often is the root of the crate.
        let depth = path.iter().count() - usize::from(path.ends_with("mod.rs"));
        let code = code(&file);
        let paths = ["crate::".to_owned(), "super::".repeat(depth)];
        for found in paths.iter().flat_map(|path| code.split(path.as_str()).skip(1)) {
            for known in first_names(found) {
                let known = taken.get(&known).unwrap_or(&known);
                if modules.contains(known) && *known != from {
                    let at = path.display().to_string();
                    arrows.entry((from.clone(), known.clone())).or_insert(at);
                }
            }
        }
    }
    arrows
}

/// Everything that can be reached from a module.
fn reached(from: &str, arrows: &BTreeMap<(String, String), String>) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(next) = open.pop() {
        for (_, to) in arrows.keys().filter(|(from, _)| from == next) {
            if reached.insert(to.clone()) {
                open.push(to);
            }
        }
    }
    reached
}

/// Groups of modules that depend on each other, directly or not.
fn cycles(arrows: &BTreeMap<(String, String), String>) -> BTreeSet<BTreeSet<String>> {
    let modules: BTreeSet<&String> = arrows.keys().map(|(from, _)| from).collect();
    let reached: BTreeMap<&String, BTreeSet<String>> =
        modules.iter().map(|module| (*module, reached(module, arrows))).collect();
    let mut groups = BTreeSet::new();
    for (module, known) in &reached {
        let knows_it = |other: &&String| reached.get(other).is_some_and(|it| it.contains(*module));
        let group: BTreeSet<String> = known.iter().filter(knows_it).cloned().collect();
        if !group.is_empty() {
            groups.insert(group);
        }
    }
    groups
}

#[test]
fn modules_of_a_crate_know_each_other_one_way_only() {
    let mut wrong = String::new();
    for dir in children(&root().join("crates")) {
        let arrows = arrows(&dir.join("src"));
        let found = cycles(&arrows);
        wrong.extend(found.iter().map(|group| told(&name(&dir), group, &arrows)));
    }
    assert!(wrong.is_empty(), "modules that know each other:\n{wrong}");
}

fn told(of: &str, group: &BTreeSet<String>, arrows: &BTreeMap<(String, String), String>) -> String {
    let inside = arrows.iter().filter(|((a, b), _)| group.contains(a) && group.contains(b));
    let lines = inside.map(|((from, to), at)| format!("  {from} -> {to}, in {at}\n"));
    format!("{of}: {group:?}\n{}", lines.collect::<String>())
}

#[test]
fn cycles_are_found() {
    let arrows = |pairs: &[(&str, &str)]| -> BTreeMap<(String, String), String> {
        let owned = pairs.iter().map(|(a, b)| ((a.to_string(), b.to_string()), String::new()));
        owned.collect()
    };
    assert_eq!(cycles(&arrows(&[("a", "b"), ("b", "c"), ("a", "c")])), BTreeSet::new());
    let found = cycles(&arrows(&[("a", "b"), ("b", "c"), ("c", "b"), ("d", "d")]));
    let group = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(found, BTreeSet::from([group(&["b", "c"]), group(&["d"])]));
    assert_eq!(first_names("a::b::C;"), ["a"]);
    assert_eq!(first_names("{a::{B, C}, d, E};\nuse x::{y, z}"), ["a", "d", "E"]);
}
