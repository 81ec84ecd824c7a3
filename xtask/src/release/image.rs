//! The image as an OCI layout in one tar, without a daemon: an index of one manifest for each architecture, each with one
//! layer. What it holds and how it is started is that of `deploy/container/Containerfile`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::archive::{How, gzip, sha256, tar};
use crate::machine::Machine;
use crate::package::tree::{Programs, install};

const CONTAINERFILE: &str = include_str!("../../../deploy/container/Containerfile");
/// Where directories of the node are mounted.
const MOUNTS: [&str; 8] =
    ["proc", "sys", "run", "etc/cni", "etc/ipwatch", "var/lib/cni", "var/lib/ipwatch", "var/log"];
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The image that is being made.
pub(super) struct Image<'a> {
    pub(super) version: &'a str,
    /// Its name in a registry, without a tag.
    pub(super) name: &'a str,
    pub(super) how: How,
    /// An empty directory.
    pub(super) work: PathBuf,
}

impl Image<'_> {
    /// Writes the layout to `to`, and returns the digest of the index: it names the image of all architectures.
    pub(super) fn pack(&self, programs: &[(Machine, Programs)], to: &Path) -> Result<String> {
        let manifests: Result<Vec<Value>> =
            programs.iter().map(|(machine, programs)| self.manifest(*machine, programs)).collect();
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests?,
            "annotations": self.labels()?,
        });
        let mut descriptor = self.document(INDEX, &index)?;
        let digest = descriptor["digest"].as_str().context("a digest")?.to_owned();
        // skopeo and podman take the tag from the first, containerd the whole name from the second.
        descriptor["annotations"] = json!({
            "org.opencontainers.image.ref.name": self.version,
            "io.containerd.image.name": format!("{}:{}", full_name(self.name), self.version),
        });
        let layout = self.layout();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]});
        fs::write(layout.join("index.json"), index.to_string())?;
        fs::write(layout.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
        tar(&layout, &["oci-layout", "index.json", "blobs"], self.how.epoch, to)?;
        Ok(digest)
    }

    fn layout(&self) -> PathBuf {
        self.work.join("layout")
    }

    /// One architecture: its layer, its configuration, and the descriptor of its manifest.
    fn manifest(&self, machine: Machine, programs: &Programs) -> Result<Value> {
        let root = self.work.join(machine.debian());
        fill(&root, programs)?;
        let layer = self.work.join(format!("{}.tar", machine.debian()));
        tar(&root, &["host", "usr"], self.how.epoch, &layer)?;
        let diff = format!("sha256:{}", sha256(&layer)?);
        let layer = self.blob(LAYER, &gzip(&layer, self.how.effort)?)?;
        let created = self.how.epoch.rfc3339()?;
        let mut config = started(CONTAINERFILE)?;
        config["Labels"] = self.labels()?;
        let config = self.document(
            CONFIG,
            &json!({
                "architecture": machine.debian(),
                "os": "linux",
                "created": created,
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [diff]},
                "history": [{"created": created, "created_by": "cargo xtask release"}],
            }),
        )?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
        });
        let mut descriptor = self.document(MANIFEST, &manifest)?;
        descriptor["platform"] = json!({"architecture": machine.debian(), "os": "linux"});
        Ok(descriptor)
    }

    fn labels(&self) -> Result<Value> {
        Ok(json!({
            "org.opencontainers.image.title": "ipwatch",
            "org.opencontainers.image.version": self.version,
            "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            "org.opencontainers.image.created": self.how.epoch.rfc3339()?,
        }))
    }

    /// Stores a JSON document; its descriptor. serde_json sorts the keys.
    fn document(&self, media_type: &str, document: &Value) -> Result<Value> {
        let file = self.work.join("document.json");
        fs::write(&file, document.to_string())?;
        self.blob(media_type, &file)
    }

    /// Stores a file under its digest; its descriptor.
    fn blob(&self, media_type: &str, file: &Path) -> Result<Value> {
        let (digest, size) = (sha256(file)?, fs::metadata(file)?.len());
        install(file, &self.layout().join("blobs/sha256").join(&digest), 0o644)?;
        Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size}))
    }
}

/// The files of the image.
fn fill(root: &Path, programs: &Programs) -> Result<()> {
    install(&programs.ipwatch, &root.join("usr/bin/ipwatch"), 0o755)?;
    install(&programs.ipam(), &root.join("usr/bin/ipwatch-ipam"), 0o755)?;
    for mount in MOUNTS {
        fs::create_dir_all(root.join("host").join(mount))?;
    }
    symlink("../run", root.join("host/var/run"))?;
    Ok(())
}

/// How the image is started, from the instructions of the Containerfile.
fn started(containerfile: &str) -> Result<Value> {
    let of = |instruction: &str| {
        let mut lines = containerfile.lines();
        let found = lines.find_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '));
        found.with_context(|| format!("the Containerfile has no {instruction}"))
    };
    let env: Vec<&str> = of("ENV")?.split_whitespace().collect();
    let words = |instruction| -> Result<Value> { Ok(serde_json::from_str(of(instruction)?)?) };
    Ok(json!({"Env": env, "Entrypoint": words("ENTRYPOINT")?, "Cmd": words("CMD")?}))
}

/// The name as containerd has it: a name without a registry is one of Docker's.
fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some((registry, _)) if registry.contains(['.', ':']) || registry == "localhost" => {
            name.to_owned()
        }
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_containerfile_makes() {
        let config = started(CONTAINERFILE).unwrap();
        assert_eq!(config["Entrypoint"], json!(["/usr/bin/ipwatch"]));
        assert_eq!(config["Cmd"], json!(["run"]));
        assert_eq!(config["Env"], json!(["IPWATCH_HOST_ROOT=/host", "PATH=/usr/bin"]));
        for mount in MOUNTS {
            let directory = format!("image/host/{mount}");
            assert!(CONTAINERFILE.split_whitespace().any(|word| word == directory), "{directory}");
        }
        let made = CONTAINERFILE.split_whitespace().filter(|word| word.starts_with("image/host/"));
        assert_eq!(made.count(), MOUNTS.len() + 1, "and the link");
    }

    #[test]
    fn names_are_containerds() {
        assert_eq!(full_name("ipwatch"), "docker.io/library/ipwatch");
        assert_eq!(full_name("team/ipwatch"), "docker.io/team/ipwatch");
        assert_eq!(full_name("registry.example/ipwatch"), "registry.example/ipwatch");
        assert_eq!(full_name("localhost:5000/a/ipwatch"), "localhost:5000/a/ipwatch");
    }
}
