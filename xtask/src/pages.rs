//! Tests of the documentation: every link has a target, the index lists every finding, and the commands by which README
//! installs ipwatch are few and right.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::place::repository;

/// The README is read before installing anything; longer text belongs in `docs`.
const README_LINES: usize = 150;

/// The pages of the repository, or of a directory with its layout.
pub(crate) fn pages_in(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in ["", "docs", "docs/contract", "docs/findings", "docs/support", "docs/templates"] {
        for entry in fs::read_dir(root.join(dir)).unwrap().flatten() {
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
pub(crate) fn links(text: &str) -> impl Iterator<Item = &str> {
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
    for page in pages_in(repository()) {
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

/// Commands of one way to install, at most.
const COMMANDS: usize = 5;

/// The blocks of commands in a section of README.
fn blocks(section: &str) -> Vec<Vec<String>> {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, rest) = readme.split_once(&format!("\n## {section}\n")).unwrap();
    let (text, _) = rest.split_once("\n## ").unwrap();
    let mut blocks: Vec<Vec<String>> = vec![Vec::new()];
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(line) => {
                let command = line.split_once("  #").map_or(line, |(command, _)| command);
                blocks.last_mut().unwrap().push(command.trim().to_owned());
            }
            None => blocks.push(Vec::new()),
        }
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

#[test]
fn a_new_user_needs_five_commands_by_package_and_by_helm() {
    let [package, helm] = &blocks("Install")[..] else {
        panic!("two ways: {:?}", blocks("Install"))
    };
    let version = env!("CARGO_PKG_VERSION");
    for block in [package, helm] {
        assert!(block.len() <= COMMANDS, "{block:#?}");
        assert!(block.iter().all(|line| !line.ends_with('\\')), "a command a line: {block:#?}");
    }
    assert_eq!(package[0], "cargo xtask package");
    assert_eq!(package[1], "apt install ./target/package/ipwatch_*_amd64.deb");
    assert!(package[2..].iter().all(|line| line.starts_with("ipwatch ")), "{package:#?}");
    // The files are those that a release has, and the values those of the chart.
    let chart = format!("ipwatch-{version}.tgz");
    assert!(helm[0].contains(&format!("oci-archive:ipwatch-{version}-image.tar ")), "{}", helm[0]);
    let install = helm.iter().find(|line| line.starts_with("helm install ")).unwrap();
    assert!(install.starts_with(&format!("helm install ipwatch {chart} --namespace ipwatch ")));
    let image = install.split_once(" --set image.repository=").expect("an image").1;
    assert!(helm[0].contains(&format!(" docker://{image}:{version}")), "the image that is pushed");
    let values = fs::read_to_string(repository().join("deploy/helm/ipwatch/values.yaml")).unwrap();
    assert!(values.contains("\nimage:\n") && values.contains("\n  repository: "));
    let label = "kubectl label namespace ipwatch pod-security.kubernetes.io/enforce=privileged";
    assert!(
        helm.iter().any(|line| line == label),
        "else no pod is admitted where that is enforced"
    );
    assert_eq!(helm.last().unwrap(), "kubectl ipwatch findings -A");
}
