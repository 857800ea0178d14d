//! A program on a page is a file that is run: the block that follows `<!-- file: PATH -->` is that file.
//!
//! `CODEQ_WRITE_DOCS=1 cargo test -p codeq --test codeq project::docs` writes the files into the pages.

use super::pages::{pages, read, root};

const MARKER: &str = "<!-- file: ";
const LANGUAGES: [&str; 6] = ["bash", "python", "ts", "js", "go", "rust"];
/// Its functions are run by the tests of the callbacks (codeq-server/tests/callbacks/documented.rs).
const TESTED_ELSEWHERE: &str = "docs/webhooks.md";

#[test]
fn programs_on_pages_are_the_files_that_are_run() {
    let write = std::env::var_os("CODEQ_WRITE_DOCS").is_some();
    let mut count = 0;
    for page in pages() {
        let mut text = page.text.clone();
        for block in page.blocks() {
            let file = block.before.strip_prefix(MARKER).and_then(|rest| rest.strip_suffix(" -->"));
            let Some(file) = file else {
                let program = LANGUAGES.contains(&block.language) && page.path != TESTED_ELSEWHERE;
                assert!(!program, "{}:{}: which file is this program?", page.path, block.line);
                continue;
            };
            count += 1;
            let program = read(file);
            if write {
                let block =
                    |code: &str| format!("{MARKER}{file} -->\n```{}\n{code}```\n", block.language);
                let old = page.text.split(&format!("{MARKER}{file} -->\n")).nth(1).unwrap();
                let old = old.split_once('\n').unwrap().1.split("```\n").next().unwrap();
                text = text.replace(&block(old), &block(&program));
            } else {
                assert!(
                    block.code == program,
                    "{} shows another program than {file}: CODEQ_WRITE_DOCS=1 cargo test -p codeq --test codeq project::docs",
                    page.path
                );
            }
        }
        if text != page.text {
            std::fs::write(root().join(&page.path), text).unwrap();
        }
    }
    assert!(count >= 5, "{count}");
}
