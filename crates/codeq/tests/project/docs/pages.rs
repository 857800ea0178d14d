//! Parses the Markdown pages of the repository.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A page, by its path in the repository.
pub struct Page {
    pub path: String,
    pub text: String,
}

/// A fenced block of a page. `line` is where its code begins.
pub struct Block<'a> {
    pub language: &'a str,
    pub code: String,
    pub line: usize,
    /// The last line of prose before the block.
    pub before: &'a str,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The pages below a directory, in order.
fn below(dir: &str, found: &mut Vec<String>) {
    let mut names: Vec<_> = std::fs::read_dir(root().join(dir))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for name in names {
        let path = format!("{dir}/{name}");
        if root().join(&path).is_dir() {
            below(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Every page: those at the root, the documentation, and the format of the log.
pub fn pages() -> Vec<Page> {
    let mut paths = Vec::new();
    below("docs", &mut paths);
    for name in ["README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG"] {
        paths.push(format!("{name}.md"));
    }
    paths.push("crates/codeq-log/FORMAT.md".to_owned());
    paths.into_iter().map(|path| Page { text: read(&path), path }).collect()
}

impl Page {
    pub fn blocks(&self) -> Vec<Block<'_>> {
        let (mut blocks, mut before) = (Vec::new(), "");
        let mut lines = self.text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let Some(language) = line.trim_start().strip_prefix("```") else {
                if !line.trim().is_empty() {
                    before = line;
                }
                continue;
            };
            let code = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let code = code.fold(String::new(), |code, line| code + line + "\n");
            blocks.push(Block { language: language.trim(), code, line: number + 2, before });
            before = "";
        }
        blocks
    }

    /// The text outside of fenced blocks.
    fn prose(&self) -> impl Iterator<Item = &str> {
        let mut inside = false;
        self.text.lines().filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        })
    }

    /// The targets of its links.
    pub fn links(&self) -> Vec<String> {
        let mut links = Vec::new();
        let prose: Vec<&str> = self.prose().collect();
        for paragraph in prose.join("\n").split("\n\n") {
            // What is between backticks is not a link.
            let plain: String = paragraph.split('`').step_by(2).collect();
            let targets = plain.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            links.extend(targets.map(|target| target.trim().to_owned()));
        }
        links
    }

    /// The anchors of its headings, as GitHub and mdBook derive them.
    pub fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        for line in self.prose() {
            let heading = line.trim_start_matches('#');
            if heading.len() == line.len() || !heading.starts_with(' ') {
                continue;
            }
            let heading = heading.trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
            let again = |n: &usize| match n {
                0 => anchor.clone(),
                n => format!("{anchor}-{n}"),
            };
            let free = (0..).map(|n| again(&n)).find(|name| !anchors.contains(name));
            anchors.extend(free);
        }
        anchors
    }
}
