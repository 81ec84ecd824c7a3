//! A release of programs that are scripts: what is packed, twice, and read with the programs of those who get it.

use std::collections::BTreeMap;
use std::fs;

use super::*;
use crate::shell::{make_program, succeeds};

/// A program that says what the packages need of it.
const SPEAKER: &str = r#"#!/bin/sh
case "$1" in
    --version) echo "ipwatch 0.1.0" ;;
    man-pages) echo page > "$2/ipwatch.1"; echo page > "$2/ipwatch-scan.1" ;;
    *) echo "made by $*" ;;
esac
"#;

/// A directory that is removed at the end.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("xtask-release-{name}-{}", std::process::id()));
        empty(&dir).unwrap();
        Self(dir)
    }

    fn out(&self) -> PathBuf {
        self.0.join("dist")
    }

    /// Programs for both architectures, as `--bin-dir` takes them.
    fn programs(&self) -> Vec<(Machine, Programs)> {
        for machine in MACHINES {
            let dir = self.0.join("bin").join(machine.debian());
            fs::create_dir_all(&dir).unwrap();
            for (name, text) in
                [("ipwatch", SPEAKER.to_owned()), ("ipwatch-ipam", machine.triple())]
            {
                make_program(&dir.join(name), &text);
            }
        }
        built(&self.0.join("bin")).unwrap()
    }

    /// Packs a release there.
    fn pack(&self, words: &[&str]) {
        let out = self.out();
        let mut args =
            vec!["--out", out.to_str().unwrap(), "--krew-base-url", "https://a.example/v0"];
        args.extend(words);
        let options = Options::read(&args).unwrap();
        let epoch = Epoch::at(1_795_842_498);
        Release::new(options, epoch, self.programs()).unwrap().pack().unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.out().join(name)).unwrap()
    }

    /// What a program says of a file.
    fn ask(&self, words: &[&str]) -> String {
        output(command(words).current_dir(self.out())).unwrap()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A person without rpmbuild tests the rest; `cargo xtask test` installs it.
fn is_possible() -> bool {
    let there = succeeds(&mut command(&["rpmbuild", "--version"]));
    if !there {
        eprintln!("skipped: no rpmbuild (apt-get install rpm)");
    }
    there
}

#[test]
fn the_files_are_those_of_a_release_and_the_same_twice() {
    if !is_possible() {
        return;
    }
    let (here, there) = (Room::new("here"), Room::new("there-with-a-longer-name"));
    here.pack(&[]);
    there.pack(&[]);
    let mut names: Vec<String> = fs::read_dir(here.out())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = "RELEASE-NOTES.md SHA256SUMS ipwatch-0.1.0-1.aarch64.rpm ipwatch-0.1.0-1.x86_64.rpm \
                    ipwatch-0.1.0-image.tar ipwatch-0.1.0-linux-amd64.tar.gz ipwatch-0.1.0-linux-arm64.tar.gz \
                    ipwatch-0.1.0.spdx.json ipwatch-0.1.0.tgz ipwatch.yaml ipwatch_0.1.0_amd64.deb \
                    ipwatch_0.1.0_arm64.deb kubectl-ipwatch-0.1.0-linux-amd64.tar.gz \
                    kubectl-ipwatch-0.1.0-linux-arm64.tar.gz";
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    for name in &names {
        assert!(
            fs::read(here.out().join(name)).unwrap() == fs::read(there.out().join(name)).unwrap(),
            "{name} differs: diffoscope {0}/{name} of two builds",
            here.out().display()
        );
    }
    assert!(succeeds(
        command(&["sha256sum", "--check", "--strict", "SHA256SUMS"]).current_dir(here.out())
    ));
    assert_eq!(here.read("SHA256SUMS").lines().count(), names.len() - 1, "all but itself");
    packages_say_what_they_are(&here);
    archives_have_no_trace_of_the_build(&here);
    image_is_a_layout(&here);
    chart_names_the_image(&here);
    krew_takes_the_manifest(&here);
    bill_of_materials_is_whole(&here);
    // Again in the same directory.
    here.pack(&["--revision", "2"]);
    let second = here.out().join("ipwatch_0.1.0-2_amd64.deb");
    assert!(second.exists() && !here.out().join("ipwatch_0.1.0_amd64.deb").exists());
}

fn packages_say_what_they_are(room: &Room) {
    for machine in MACHINES {
        let (deb, rpm) = (
            format!("ipwatch_0.1.0_{}.deb", machine.debian()),
            format!("ipwatch-0.1.0-1.{}.rpm", machine.name()),
        );
        let members = room.ask(&["ar", "t", &deb]);
        assert_eq!(members, "debian-binary\ncontrol.tar.xz\ndata.tar.xz\n");
        let fields = room.ask(&["dpkg-deb", "--field", &deb, "Version", "Architecture"]);
        assert_eq!(fields, format!("Version: 0.1.0\nArchitecture: {}\n", machine.debian()));
        let listed = room.ask(&["dpkg-deb", "--contents", &deb]);
        let debian: Vec<&str> =
            listed.lines().filter_map(|line| line.split(" ./").nth(1)).collect();
        let listed = room.ask(&["rpm", "-qpl", &rpm]);
        for file in ["usr/bin/ipwatch", "usr/bin/ipwatch-ipam", "etc/ipwatch/ipwatch.toml"] {
            assert!(debian.contains(&file), "{file} in {debian:?}");
            assert!(listed.lines().any(|line| line == format!("/{file}")), "{file} in {listed}");
        }
        assert!(room.ask(&["rpm", "--checksig", &rpm]).contains("digests OK"));
        let header = "%{ARCH} %{VERSION}-%{RELEASE} %{BUILDHOST} %{BUILDTIME}";
        let header = room.ask(&["rpm", "-qp", "--queryformat", header, &rpm]);
        assert_eq!(header, format!("{} 0.1.0-1 reproducible 1795842498", machine.name()));
        let times = room.ask(&["rpm", "-qp", "--queryformat", "[%{FILEMTIMES}\n]", &rpm]);
        assert!(times.lines().all(|time| time == "1795842498"), "{times}");
    }
}

/// Sorted, of root, of one time, and with modes that are not the umask's.
fn archives_have_no_trace_of_the_build(room: &Room) {
    let tar = |name: &str| {
        let mut tar =
            command(&["tar", "--list", "--verbose", "--utc", "--full-time", "--file", name]);
        output(tar.current_dir(room.out())).unwrap()
    };
    for name in [
        "ipwatch-0.1.0-linux-arm64.tar.gz",
        "kubectl-ipwatch-0.1.0-linux-amd64.tar.gz",
        "ipwatch-0.1.0.tgz",
        "ipwatch-0.1.0-image.tar",
    ] {
        for line in tar(name).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(&words[1], &"0/0", "{name}: {line}");
            assert_eq!(words[3..5], ["2026-11-28", "05:08:18"], "{name}: {line}");
            assert!(matches!(&words[0][4..10], "r-xr-x" | "r--r--"), "{name}: {line}");
        }
    }
    // krew's reader refuses links.
    assert!(!tar("kubectl-ipwatch-0.1.0-linux-amd64.tar.gz").contains("->"));
    assert!(
        !tar("ipwatch-0.1.0-linux-arm64.tar.gz").contains("/etc/ipwatch"),
        "keeps what is configured"
    );
}

/// The layout, read strictly: every blob has its digest and size, and everything that is named is there.
fn image_is_a_layout(room: &Room) {
    let root = room.0.join("layout");
    empty(&root).unwrap();
    let image = room.out().join("ipwatch-0.1.0-image.tar");
    assert!(succeeds(command(&["tar", "-xf"]).arg(&image).arg("-C").arg(&root)));
    let json = |path: &Path| -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let mut seen = Vec::new();
    let mut blob = |descriptor: &serde_json::Value| -> PathBuf {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = root.join("blobs/sha256").join(digest);
        assert_eq!(archive::sha256(&path).unwrap(), digest);
        assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
        seen.push(path.clone());
        path
    };
    assert_eq!(json(&root.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let top = json(&root.join("index.json"));
    assert_eq!(top["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "0.1.0");
    let index = json(&blob(&top["manifests"][0]));
    let manifests = index["manifests"].as_array().unwrap();
    assert_eq!(manifests.len(), MACHINES.len());
    for (about, machine) in manifests.iter().zip(MACHINES) {
        assert_eq!(about["platform"]["architecture"], machine.debian());
        let manifest = json(&blob(about));
        let (config, layer) = (json(&blob(&manifest["config"])), blob(&manifest["layers"][0]));
        assert_eq!(config["architecture"], machine.debian());
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/ipwatch");
        let plain = room.0.join("layer.tar");
        let unpack = format!("gzip -dc {} > {}", layer.display(), plain.display());
        assert!(succeeds(&mut command(&["sh", "-c", &unpack])));
        let diff = format!("sha256:{}", archive::sha256(&plain).unwrap());
        assert_eq!(config["rootfs"]["diff_ids"][0], diff.as_str());
        let plugin =
            command(&["tar", "-xOf", plain.to_str().unwrap(), "usr/bin/ipwatch-ipam"]).output();
        assert_eq!(plugin.unwrap().stdout, machine.triple().into_bytes(), "each its own");
    }
    let there = fs::read_dir(root.join("blobs/sha256")).unwrap().count();
    seen.sort();
    seen.dedup();
    assert_eq!(there, seen.len(), "nothing that is not named");
}

fn chart_names_the_image(room: &Room) {
    let values = room.ask(&["tar", "-xOf", "ipwatch-0.1.0.tgz", "ipwatch/values.yaml"]);
    let digest = values.lines().find_map(|line| line.strip_prefix("  digest: \"sha256:"));
    let digest = digest.unwrap().trim_end_matches('"');
    assert!(room.read("RELEASE-NOTES.md").contains(&format!("`ipwatch@sha256:{digest}`")));
    let index = room.ask(&["tar", "-xOf", "ipwatch-0.1.0-image.tar", "index.json"]);
    assert!(index.contains(digest), "{index}");
    // A file and no link, which would lead out of the archive.
    let rules = room.ask(&["tar", "-xOf", "ipwatch-0.1.0.tgz", "ipwatch/files/alerts.yml"]);
    assert!(rules.starts_with(
        &fs::read_to_string(place::repository().join("deploy/prometheus/alerts.yml")).unwrap()
    ));
}

/// What krew's `ValidatePlugin` and `validatePlatform` ask for.
fn krew_takes_the_manifest(room: &Room) {
    let manifest: serde_json::Value = serde_json::from_str(&room.read("ipwatch.yaml")).unwrap();
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!(
        (&manifest["kind"], &manifest["metadata"]["name"]),
        (&"Plugin".into(), &"ipwatch".into())
    );
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], "v0.1.0");
    assert!(!spec["shortDescription"].as_str().unwrap().contains('\n'));
    for (platform, machine) in spec["platforms"].as_array().unwrap().iter().zip(MACHINES) {
        let name = krew::archive("0.1.0", machine);
        assert_eq!(platform["uri"], format!("https://a.example/v0/{name}"));
        assert_eq!(platform["sha256"], archive::sha256(&room.out().join(&name)).unwrap());
        let selector = platform["selector"]["matchLabels"].as_object().unwrap();
        assert_eq!(selector.len(), 2);
        assert_eq!(
            (&selector["os"], &selector["arch"]),
            (&"linux".into(), &machine.debian().into())
        );
        let bin = platform["bin"].as_str().unwrap();
        assert!(room.ask(&["tar", "-tf", &name]).lines().any(|line| line == bin));
    }
}

fn bill_of_materials_is_whole(room: &Room) {
    let sbom: serde_json::Value =
        serde_json::from_str(&room.read("ipwatch-0.1.0.spdx.json")).unwrap();
    let list = |name: &str| sbom[name].as_array().unwrap().iter();
    let mut ids = BTreeMap::new();
    for one in list("packages").chain(list("files")) {
        let id = one["SPDXID"].as_str().unwrap();
        assert!(id.starts_with("SPDXRef-") && ids.insert(id, one).is_none(), "{id} is there twice");
    }
    for relation in list("relationships") {
        for end in ["spdxElementId", "relatedSpdxElement"] {
            let id = relation[end].as_str().unwrap();
            assert!(id == "SPDXRef-DOCUMENT" || ids.contains_key(id), "{relation}");
        }
    }
    assert_eq!(list("files").count(), 2 * MACHINES.len());
    let libc = |name: &&serde_json::Value| name["name"].as_str().unwrap().starts_with("libc6-dev");
    assert!(list("packages").any(|package| package["name"] == "rust-std"));
    assert!(list("packages").filter(libc).count() >= 1, "what is linked statically");
}

#[test]
fn checksums_are_signed_and_verified() {
    if !succeeds(&mut command(&["sh", "-c", "command -v ssh-keygen"])) {
        eprintln!("skipped: no ssh-keygen (apt-get install openssh-client)");
        return;
    }
    let room = Room::new("sign");
    let key = room.0.join("key");
    let mut make =
        command(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "someone@somewhere", "-f"]);
    assert!(succeeds(make.arg(&key)));
    fs::create_dir(room.out()).unwrap();
    fs::write(room.out().join("a"), "a").unwrap();
    sign::checksums(&room.out(), &["a".to_owned()]).unwrap();
    sign::sign(&room.out(), &key).unwrap();
    let first = room.read("SHA256SUMS.sig");
    // The command of the notes and of docs/release.md.
    let verify = "ssh-keygen -Y verify -n ipwatch-release -I ipwatch -f allowed_signers -s SHA256SUMS.sig < SHA256SUMS";
    let verifies = || succeeds(Command::new("sh").args(["-c", verify]).current_dir(room.out()));
    assert!(verifies());
    assert!(!room.read("allowed_signers").contains("someone"));
    let sums = room.read("SHA256SUMS");
    fs::write(room.out().join("SHA256SUMS"), sums.replace("  a", "  b")).unwrap();
    assert!(!verifies(), "another file");
    fs::write(room.out().join("SHA256SUMS"), sums).unwrap();
    sign::sign(&room.out(), &key).unwrap();
    assert_eq!(room.read("SHA256SUMS.sig"), first, "the same again");
}
