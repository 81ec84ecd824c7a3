//! The Helm chart as Helm packages it, with the image's digest in its values: a chart installs exactly the image that was
//! released with it, on every node that the image has an architecture for. `helm package` writes the time of packing into
//! its archive.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::MACHINES;
use super::archive::{How, tar_gz};
use crate::machine::Machine;
use crate::package::tree::{install, write};
use crate::place;

/// Packs the chart in `work`, an empty directory. `image` is the name in a registry and the digest; it is of `machines`.
pub(super) fn pack(
    version: &str,
    image: (&str, &str),
    machines: &[Machine],
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
    let values = with_platforms(&with_image(&values, image)?, machines)?;
    write(&work.join("ipwatch/values.yaml"), &values)?;
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

/// The values with the nodes that the image runs on: an image of all architectures selects none of them.
fn with_platforms(values: &str, machines: &[Machine]) -> Result<String> {
    let before = "  kubernetes.io/arch: amd64\n";
    if values.matches(before).count() != 1 {
        bail!("values.yaml does not have one line {before:?}");
    }
    let after = match machines {
        [one] => format!("  kubernetes.io/arch: {}\n", one.debian()),
        all if MACHINES.iter().all(|machine| all.contains(machine)) => String::new(),
        _ => bail!("no nodeSelector for an image of {machines:?}"),
    };
    Ok(values.replace(before, &after))
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

    #[test]
    fn every_node_that_the_image_runs_on_is_selected() {
        let values =
            fs::read_to_string(place::repository().join("deploy/helm/ipwatch/values.yaml"))
                .unwrap();
        let all = with_platforms(&values, &MACHINES).unwrap();
        assert!(!all.contains("\n  kubernetes.io/arch:"), "arm64 nodes would not be watched");
        assert!(all.contains("\n  kubernetes.io/os: linux\n"));
        let one = with_platforms(&values, &[Machine::Arm64]).unwrap();
        assert!(one.contains("\n  kubernetes.io/arch: arm64\n"));
        assert!(with_platforms("nodeSelector: {}\n", &MACHINES).is_err());
    }
}
