//! The plugin of kubectl for krew: an archive for each architecture, and the manifest that names them.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::archive::{How, sha256, tar_gz};
use crate::machine::Machine;
use crate::package::tree::{Programs, install};
use crate::place;

/// The file that krew runs, by the name under which the program is kubectl's plugin.
const PLUGIN: &str = "kubectl-ipwatch";
const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The name of the archive.
pub(super) fn archive(version: &str, machine: Machine) -> String {
    format!("{PLUGIN}-{version}-linux-{}.tar.gz", machine.debian())
}

/// Packs the archive in `work`, an empty directory. krew unpacks no links, so it is not the tarball of the release.
pub(super) fn pack(programs: &Programs, how: How, work: &Path, to: &Path) -> Result<()> {
    install(&programs.ipwatch, &work.join(PLUGIN), 0o755)?;
    for license in LICENSES {
        install(&place::repository().join(license), &work.join(license), 0o644)?;
    }
    tar_gz(work, &[PLUGIN, LICENSES[0], LICENSES[1]], how, to)
}

/// Writes the manifest, in krew's v1alpha2 (`pkg/index/types.go`). `packed` are the archives, which will be below `base`;
/// without it, the manifest is for `kubectl krew install --manifest FILE --archive FILE`.
pub(super) fn manifest(
    version: &str,
    base: Option<&str>,
    packed: &[(Machine, &Path)],
    to: &Path,
) -> Result<()> {
    let at = |name: String| base.map_or_else(|| name.clone(), |base| format!("{base}/{name}"));
    let platforms: Result<Vec<Value>> = packed
        .iter()
        .map(|(machine, file)| {
            Ok(json!({
                "selector": {"matchLabels": {"os": "linux", "arch": machine.debian()}},
                "uri": at(archive(version, *machine)),
                "sha256": sha256(file)?,
                "bin": PLUGIN,
            }))
        })
        .collect();
    let mut manifest = json!({
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "ipwatch"},
        "spec": {
            "version": format!("v{version}"),
            "shortDescription": "Who holds the IP of a pod",
            "description": "Finds the node of a pod and asks the ipwatch there which process, mount, fd or socket \
                            holds its IP. `kubectl ipwatch cluster scan` compares IPs between nodes.\n",
            "caveats": "ipwatch must run on the nodes: the plugin asks its pods there.\n",
            "platforms": platforms?,
        },
    });
    if let Some(base) = base {
        manifest["spec"]["homepage"] = json!(base);
    }
    // JSON is YAML.
    fs::write(to, format!("{}\n", serde_json::to_string_pretty(&manifest)?))?;
    Ok(())
}
