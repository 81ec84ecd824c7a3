//! The bill of materials in SPDX 2.3 JSON: what the static binaries contain, as `cargo tree` resolves it for each
//! architecture, with licences from `cargo metadata` and checksums from `Cargo.lock`; and what is linked beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::archive::sum;
use crate::epoch::Epoch;
use crate::machine::Machine;
use crate::shell::{command, output};
use crate::{build, place};

/// Packages of the workspace that are released, and the target of the last: the kernel half.
const PROGRAMS: [&str; 2] = ["ipwatch", "ipwatch-ipam"];
const KERNEL_HALF: &str = "ipwatch-ebpf";
const BPF: &str = "bpfel-unknown-none";

/// A crate: its name and version.
type Name = (String, String);

/// What cargo knows.
struct Crates {
    /// As in `cargo metadata`, by name and version.
    about: BTreeMap<Name, Value>,
    /// Which crate needs which.
    needs: BTreeSet<(Name, Name)>,
    /// From `Cargo.lock`.
    checksums: BTreeMap<Name, String>,
}

/// The document for these files.
pub(super) fn document(version: &str, epoch: Epoch, files: &[(String, PathBuf)]) -> Result<Value> {
    let crates = Crates::resolve()?;
    let mut packages: Vec<Value> = crates
        .about
        .iter()
        .map(|(name, about)| package(name, about, crates.checksums.get(name)))
        .collect();
    let mut relations: Vec<Value> =
        crates.needs.iter().map(|(from, to)| relation(&id(from), "DEPENDS_ON", &id(to))).collect();
    let own = |name: &str| id(&(name.to_owned(), version.to_owned()));
    for linked in linked()? {
        let to = linked["SPDXID"].as_str().unwrap_or_default().to_owned();
        relations.extend(PROGRAMS.map(|name| relation(&own(name), "STATIC_LINK", &to)));
        packages.push(linked);
    }
    relations.push(relation(&own("ipwatch"), "CONTAINS", &own(KERNEL_HALF)));
    relations.push(relation("SPDXRef-DOCUMENT", "DESCRIBES", &own("ipwatch")));
    relations.push(relation("SPDXRef-DOCUMENT", "DESCRIBES", &own("ipwatch-ipam")));
    let mut described = Vec::new();
    for (name, path) in files {
        let file = file(name, path)?;
        let program = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let made = file["SPDXID"].as_str().unwrap_or_default();
        relations.push(relation(made, "GENERATED_FROM", &own(program)));
        described.push(file);
    }
    // A namespace must be another one for each document: the checksums of the binaries are.
    let unique: Vec<&str> = described
        .iter()
        .filter_map(|file| file["checksums"][1]["checksumValue"].as_str())
        .collect();
    let unique: String = unique.iter().filter_map(|sum| sum.get(..16)).collect();
    Ok(json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("ipwatch-{version}"),
        "documentNamespace": format!("https://spdx.org/spdxdocs/ipwatch-{version}-{unique}"),
        "creationInfo": {"created": epoch.rfc3339()?, "creators": ["Tool: cargo-xtask-release"]},
        "packages": packages,
        "files": described,
        "relationships": relations,
    }))
}

impl Crates {
    fn resolve() -> Result<Self> {
        let mut wanted = BTreeSet::new();
        for machine in [Machine::X86_64, Machine::Arm64] {
            wanted.extend(tree(&PROGRAMS, &machine.triple())?);
        }
        wanted.extend(tree(&[KERNEL_HALF], BPF)?);
        let metadata: Value = serde_json::from_str(&output(&mut metadata()?)?)?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut by_id = BTreeMap::new();
        let mut about = BTreeMap::new();
        for package in list(&metadata["packages"]) {
            let name = (text(&package["name"]), text(&package["version"]));
            if wanted.contains(&name) {
                by_id.insert(text(&package["id"]), name.clone());
                about.insert(name, package);
            }
        }
        let mut needs = BTreeSet::new();
        for node in list(&metadata["resolve"]["nodes"]) {
            let Some(from) = by_id.get(&text(&node["id"])) else { continue };
            // Neither what tests need nor what build scripts need is in a binary.
            let normal =
                |dep: &Value| list(&dep["dep_kinds"]).iter().any(|one| one["kind"].is_null());
            for dep in list(&node["deps"]).iter().filter(|dep| normal(dep)) {
                if let Some(to) = by_id.get(&text(&dep["pkg"])) {
                    needs.insert((from.clone(), to.clone()));
                }
            }
        }
        let lock = std::fs::read_to_string(place::repository().join("Cargo.lock"))?;
        Ok(Self { about, needs, checksums: checksums(&lock) })
    }
}

/// The crates that are built for these packages of the workspace; procedural macros are in no binary.
fn tree(packages: &[&str], target: &str) -> Result<BTreeSet<Name>> {
    let mut cargo =
        build::plain_cargo(&["tree", "--locked", "--prefix", "none", "--format", "{p}"]);
    cargo.args(["--edges", "normal,no-proc-macro", "--target", target]);
    cargo.args(packages.iter().flat_map(|name| ["--package", name]));
    Ok(output(&mut cargo)?.lines().filter_map(listed).collect())
}

/// A line of `cargo tree`: `anyhow v1.0.104`, `ipwatch v0.1.0 (/a/path)`.
fn listed(line: &str) -> Option<Name> {
    let mut words = line.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some((name.to_owned(), version.to_owned()))
}

fn metadata() -> Result<std::process::Command> {
    let mut cargo = build::plain_cargo(&["metadata", "--locked", "--format-version", "1"]);
    for target in [Machine::X86_64.triple(), Machine::Arm64.triple(), BPF.to_owned()] {
        cargo.args(["--filter-platform", &target]);
    }
    Ok(cargo)
}

/// The checksums of `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<Name, String> {
    let value = |package: &str, key: &str| {
        let mut lines = package.lines();
        let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        found.map(|rest| rest.trim_end_matches('"').to_owned())
    };
    let of = |package: &str| {
        let name = (value(package, "name")?, value(package, "version")?);
        Some((name, value(package, "checksum")?))
    };
    lock.split("[[package]]").filter_map(of).collect()
}

fn package(name: &Name, about: &Value, checksum: Option<&String>) -> Value {
    let registry = about["source"].as_str().is_some_and(|source| source.starts_with("registry+"));
    // Older crates write `MIT/Apache-2.0`.
    let license = about["license"]
        .as_str()
        .map_or_else(|| "NOASSERTION".into(), |license| license.replace('/', " OR "));
    let mut package = json!({
        "SPDXID": id(name),
        "name": name.0,
        "versionInfo": name.1,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": license,
        "copyrightText": "NOASSERTION",
    });
    if registry {
        package["downloadLocation"] =
            json!(format!("https://crates.io/api/v1/crates/{}/{}/download", name.0, name.1));
        package["externalRefs"] = purl(&format!("pkg:cargo/{}@{}", name.0, name.1));
    }
    if let Some(checksum) = checksum {
        package["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": checksum}]);
    }
    package
}

/// What the linker adds to the crates: Rust's standard library, and the C library of each architecture.
fn linked() -> Result<Vec<Value>> {
    let beside = |name: &str, version: &str, license: &str| {
        package(&(name.to_owned(), version.to_owned()), &json!({"license": license}), None)
    };
    let rustc = output(command(&["rustc", "-vV"]).current_dir(place::repository()))?;
    let release = rustc.lines().find_map(|line| line.strip_prefix("release: "));
    let release = release.context("rustc has no version")?;
    let mut found = vec![beside("rust-std", release, "MIT OR Apache-2.0")];
    let own = Machine::own()?;
    for machine in [Machine::X86_64, Machine::Arm64] {
        let name = if machine == own { "libc6-dev".to_owned() } else { machine.cross_libc() };
        let mut query = command(&["dpkg-query", "-W", "-f=${Version}", &name]);
        // Another distribution's is not known by dpkg.
        let Ok(version) = output(&mut query) else { continue };
        let mut libc = beside(&name, version.trim(), "LGPL-2.1-or-later");
        libc["externalRefs"] =
            purl(&format!("pkg:deb/debian/{name}@{}", version.replace('+', "%2B")));
        found.push(libc);
    }
    Ok(found)
}

fn purl(locator: &str) -> Value {
    json!([{
        "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator,
    }])
}

fn file(name: &str, path: &Path) -> Result<Value> {
    Ok(json!({
        "SPDXID": format!("SPDXRef-File-{}", plain(name)),
        "fileName": format!("./{name}"),
        "fileTypes": ["BINARY"],
        // SPDX asks for SHA1.
        "checksums": [
            {"algorithm": "SHA1", "checksumValue": sum("sha1sum", path)?},
            {"algorithm": "SHA256", "checksumValue": sum("sha256sum", path)?},
        ],
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }))
}

fn relation(from: &str, kind: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

fn id((name, version): &Name) -> String {
    format!("SPDXRef-Package-{}-{}", plain(name), plain(version))
}

/// An identifier has letters, digits, dots and dashes.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str, version: &str) -> Name {
        (name.to_owned(), version.to_owned())
    }

    #[test]
    fn lines_of_cargo_are_read() {
        assert_eq!(listed("anyhow v1.0.104"), Some(name("anyhow", "1.0.104")));
        assert_eq!(listed("ipwatch v0.1.0 (/a b/ipwatch)"), Some(name("ipwatch", "0.1.0")));
        assert_eq!(listed(""), None);
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"registry\"\n\
                    checksum = \"00ff\"\n\n[[package]]\nname = \"ipwatch\"\nversion = \"0.1.0\"\n";
        let sums = checksums(lock);
        assert_eq!(sums.get(&name("a", "1.0.0")).map(String::as_str), Some("00ff"));
        assert_eq!(sums.len(), 1, "a crate of the workspace has none");
    }

    #[test]
    fn what_is_in_the_binaries_is_listed() {
        let crates = Crates::resolve().unwrap();
        let has = |wanted: &str| crates.about.keys().any(|(name, _)| name == wanted);
        for wanted in ["ipwatch", "ipwatch-ipam", "ipwatch-ebpf", "aya-ebpf", "redb", "ring"] {
            assert!(has(wanted), "{wanted}");
        }
        for other in ["xtask", "proptest", "serde_derive", "cc"] {
            assert!(!has(other), "{other} is in no binary");
        }
        for (name, about) in &crates.about {
            let (foreign, known) = (about["source"].is_string(), crates.checksums.get(name));
            assert_eq!(foreign, known.is_some_and(|sum| sum.len() == 64), "{name:?}");
            assert!(about["license"].is_string(), "{name:?}");
        }
        let from: BTreeSet<&str> =
            crates.needs.iter().map(|((from, _), _)| from.as_str()).collect();
        assert!(from.contains("ipwatch") && from.contains("ipwatch-ebpf"));
    }
}
