//! The Helm chart as Helm packages it, with the image's digest in its values: a chart installs exactly the image that was
//! released with it. `helm package` writes the time of packing into its archive.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::archive::{How, tar_gz};
use crate::package::tree::{install, write};
use crate::place;

/// Packs the chart in `work`, an empty directory. `image` is the name in a registry and the digest.
pub(super) fn pack(
    version: &str,
    image: (&str, &str),
    how: How,
    work: &Path,
    to: &Path,
) -> Result<()> {
    let source = place::repository().join("deploy/helm/ipwatch");
    let about = fs::read_to_string(source.join("Chart.yaml"))?;
    for line in [format!("version: {version}"), format!("appVersion: \"{version}\"")] {
        ensure!(
            about.lines().any(|one| one == line),
            "deploy/helm/ipwatch/Chart.yaml has no {line}"
        );
    }
    copy(&source, &work.join("ipwatch"))?;
    let values = fs::read_to_string(source.join("values.yaml"))?;
    write(&work.join("ipwatch/values.yaml"), &with_image(&values, image)?)?;
    tar_gz(work, &["ipwatch"], how, to)
}

/// The values with the image's name and digest.
fn with_image(values: &str, (name, digest): (&str, &str)) -> Result<String> {
    let mut text = values.to_owned();
    for (before, after) in [
        ("  repository: ipwatch\n", format!("  repository: {name}\n")),
        ("  digest: \"\"\n", format!("  digest: \"{digest}\"\n")),
    ] {
        if text.matches(before).count() != 1 {
            bail!("values.yaml does not have one line {before:?}");
        }
        text = text.replace(before, &after);
    }
    Ok(text)
}

/// Copies a directory; a link to a file of the repository becomes that file, as in `helm package`.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)?.flatten() {
        let (path, copied): (PathBuf, PathBuf) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &copied)?;
        } else {
            install(&path, &copied, 0o644)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_name_the_image() {
        let values =
            fs::read_to_string(place::repository().join("deploy/helm/ipwatch/values.yaml"))
                .unwrap();
        let text = with_image(&values, ("registry.example/ipwatch", "sha256:aa")).unwrap();
        assert!(text.contains("\n  repository: registry.example/ipwatch\n"));
        assert!(text.contains("\n  digest: \"sha256:aa\"\n"));
        assert_eq!(text.lines().count(), values.lines().count());
        assert!(with_image("image:\n", ("a", "b")).is_err());
    }
}
