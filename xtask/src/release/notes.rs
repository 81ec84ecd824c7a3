//! The notes of a release: what changed, from the changelog, and how to check the files.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

/// What the notes name beside the changes.
pub(super) struct About<'a> {
    pub(super) version: &'a str,
    /// The image's name in a registry, and its digest.
    pub(super) image: (&'a str, &'a str),
    /// Names of the files, with what each is.
    pub(super) files: Vec<(String, &'static str)>,
    pub(super) signed: bool,
}

/// The notes, in Markdown.
pub(super) fn notes(about: &About<'_>, changelog: &str) -> Result<String> {
    let mut text = format!("# ipwatch {}\n\n", about.version);
    let changes = section(changelog, about.version).context("the changelog has no section")?;
    text.push_str(changes.trim());
    text.push_str("\n\n## Files\n\n| File | |\n|---|---|\n");
    for (name, what) in &about.files {
        writeln!(text, "| `{name}` | {what} |")?;
    }
    let (image, digest) = about.image;
    writeln!(text, "\nThe image, on every architecture: `{image}@{digest}`")?;
    text.push_str("\n## Check what you have downloaded\n\n");
    if about.signed {
        text.push_str(SIGNED);
    }
    text.push_str("    sha256sum --check --ignore-missing SHA256SUMS\n");
    Ok(text)
}

const SIGNED: &str = "    ssh-keygen -Y verify -n ipwatch-release -I ipwatch -f allowed_signers -s SHA256SUMS.sig \
                      < SHA256SUMS\n";

/// The changes of a version: its own section, or what is not released yet. Links to files of the repository become their
/// names: there is no repository beside the notes.
fn section(changelog: &str, version: &str) -> Option<String> {
    let of = |name: &str| {
        let start = changelog.find(&format!("\n## [{name}]"))? + 1;
        let (_, rest) = changelog[start..].split_once('\n')?;
        Some(rest.find("\n## ").map_or(rest, |end| &rest[..end]))
    };
    Some(without_links(of(version).or_else(|| of("Unreleased"))?))
}

fn without_links(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, tail)) = after.split_once(')') else { break };
        match before.rsplit_once('[') {
            Some((ahead, name)) if !target.contains("://") => {
                kept.push_str(ahead);
                kept.push_str(name);
            }
            _ => {
                kept.push_str(before);
                let _ = write!(kept, "]({target})");
            }
        }
        rest = tail;
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- soon, see [docs/a.md](docs/a.md#b)\n\n## [0.2.0] - \
                       2026-11-28\n\n### Fixed\n\n- then [x](https://example.org/x)\n\n## [0.1.0]\n\n- first\n";

    #[test]
    fn a_version_has_its_own_section() {
        let section = |version| section(LOG, version).unwrap();
        assert_eq!(section("0.2.0").trim(), "### Fixed\n\n- then [x](https://example.org/x)");
        assert_eq!(section("0.1.0").trim(), "- first");
        assert_eq!(section("0.3.0").trim(), "### Added\n\n- soon, see docs/a.md");
        assert_eq!(super::section("# Changelog\n", "0.1.0"), None);
    }

    #[test]
    fn the_changelog_of_this_repository_becomes_notes() {
        let file = crate::place::repository().join("CHANGELOG.md");
        let changelog = std::fs::read_to_string(file).unwrap();
        let notes = section(&changelog, env!("CARGO_PKG_VERSION")).unwrap();
        let headings: Vec<&str> = notes.lines().filter(|line| line.starts_with('#')).collect();
        assert_eq!(headings, ["### Added", "### Changed", "### Fixed"], "each once, in this order");
        assert!(!notes.contains("](docs/") && notes.contains("docs/release.md"), "no link is left");
        assert!(!notes.trim_start().starts_with('#'), "it begins with a summary");
    }

    #[test]
    fn only_what_is_signed_is_verified() {
        let mut about = About {
            version: "0.1.0",
            image: ("ipwatch", "sha256:aa"),
            files: vec![("a.deb".into(), "Debian")],
            signed: false,
        };
        let text = notes(&about, LOG).unwrap();
        assert!(text.starts_with("# ipwatch 0.1.0\n\n- first\n"), "{text}");
        assert!(text.contains("| `a.deb` | Debian |") && text.contains("ipwatch@sha256:aa"));
        assert!(!text.contains("ssh-keygen"));
        about.signed = true;
        assert!(notes(&about, LOG).unwrap().contains("ssh-keygen -Y verify"));
    }
}
