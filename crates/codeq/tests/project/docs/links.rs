//! Every link leads to a file and an anchor that exist, in the repository and on the site.

use std::collections::{BTreeMap, BTreeSet};

use super::pages::{Page, pages, root};

const SUMMARY: &str = "docs/SUMMARY.md";

/// The path in the repository that a link on a page leads to.
fn resolve(page: &str, target: &str) -> String {
    let dir = page.rsplit_once('/').map_or("", |(dir, _)| dir);
    let mut parts: Vec<&str> = dir.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => assert!(parts.pop().is_some(), "{page}: {target} leaves the repository"),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// What is wrong with a link, if anything.
fn problem(
    page: &Page,
    link: &str,
    all: &BTreeMap<&str, &Page>,
    site: &BTreeSet<String>,
) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = match target {
        "" => page.path.clone(),
        target => resolve(&page.path, target),
    };
    let found = root().join(&path);
    let on_site = site.contains(&page.path);
    let heading_exists = || {
        let target = all.get(path.as_str());
        !path.ends_with(".md") || target.is_some_and(|page| page.anchors().contains(anchor))
    };
    let problem = if !found.exists() && !all.contains_key(path.as_str()) {
        "no such file"
    } else if on_site && found.is_dir() {
        "a directory: it has no page on the site"
    } else if on_site && path.ends_with(".md") && !site.contains(&path) {
        "not on the site: docs/SUMMARY.md does not list it"
    } else if !anchor.is_empty() && !heading_exists() {
        "no such heading"
    } else {
        return None;
    };
    Some(format!("{}: {link}: {problem}", page.path))
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let all: BTreeMap<&str, &Page> = pages.iter().map(|page| (page.path.as_str(), page)).collect();
    let listed = all[SUMMARY].links();
    let site: BTreeSet<String> = listed.iter().map(|link| resolve(SUMMARY, link)).collect();
    assert_eq!(site.len(), listed.len(), "{SUMMARY} lists a page twice");
    let links: Vec<(&Page, String)> = pages
        .iter()
        .flat_map(|page| page.links().into_iter().map(move |link| (page, link)))
        .collect();
    assert!(links.len() > 200, "{}", links.len());
    let problems = links.iter().filter_map(|(page, link)| problem(page, link, &all, &site));
    let problems: Vec<String> = problems.collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let missing = all.keys().filter(|path| path.starts_with("docs/") && **path != SUMMARY);
    let missing: Vec<_> = missing.filter(|path| !site.contains(**path)).collect();
    assert!(missing.is_empty(), "{SUMMARY} does not list {missing:?}");
}

/// Examples of what the check finds.
#[test]
fn broken_links_are_found() {
    let text = "# A\n\n[x](b.md#there) `[y](z.md)`\n\n```text\n[n](no.md)\n```\n\n## There, too\n";
    let page = Page { path: "docs/a.md".to_owned(), text: text.to_owned() };
    assert_eq!(page.links(), ["b.md#there"]);
    assert_eq!(page.anchors().into_iter().collect::<Vec<_>>(), ["a", "there-too"]);
    let all = BTreeMap::from([("docs/a.md", &page)]);
    let site = BTreeSet::from([page.path.clone()]);
    for (link, wrong) in [
        ("b.md", "no such file"),
        ("#elsewhere", "no such heading"),
        ("../crates", "a directory"),
        ("install.md", "not on the site"),
    ] {
        let found = problem(&page, link, &all, &site).unwrap();
        assert!(found.contains(wrong), "{found}");
    }
    assert_eq!(problem(&page, "#there-too", &all, &site), None);
    assert_eq!(problem(&page, "https://example.com/", &all, &site), None);
}
