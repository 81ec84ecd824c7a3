//! Tests of the documentation: every link has a target, and the index lists every finding.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::place::repository;

/// The README is read before installing anything; longer text belongs in `docs`.
const README_LINES: usize = 150;

fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in ["", "docs", "docs/contract", "docs/findings", "docs/support", "docs/templates"] {
        for entry in fs::read_dir(repository().join(dir)).unwrap().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "md") {
                found.push(entry.path());
            }
        }
    }
    found
}

/// The anchors of a page, derived from its headings as on GitHub.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// The targets of the links of a page.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    let after = prose.flat_map(|part| part.split("](").skip(1));
    after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// What is wrong with a link, if anything.
fn broken(page: &Path, text: &str, link: &str) -> Option<String> {
    if link.contains("://") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let wrong = || Some(format!("{}: {link}", page.display()));
    if file.is_empty() {
        return if anchors(text).contains(anchor) { None } else { wrong() };
    }
    let target = page.parent()?.join(file);
    if !target.exists() {
        return wrong();
    }
    if anchor.is_empty() {
        return None;
    }
    let there = fs::read_to_string(target).unwrap_or_default();
    if anchors(&there).contains(anchor) { None } else { wrong() }
}

#[test]
fn every_link_leads_somewhere() {
    let mut wrong = Vec::new();
    let mut all = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        all += links(&text).count();
        wrong.extend(links(&text).filter_map(|link| broken(&page, &text, link)));
    }
    assert!(all > 100, "only {all} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_runbook_is_in_the_index() {
    let dir = repository().join("docs/findings");
    let index = fs::read_to_string(dir.join("README.md")).unwrap();
    let listed: BTreeSet<&str> = links(&index).collect();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        assert!(name == "README.md" || listed.contains(name.as_str()), "{name} is not listed");
    }
}

#[test]
fn the_readme_is_short() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    assert!(readme.lines().count() <= README_LINES);
}
