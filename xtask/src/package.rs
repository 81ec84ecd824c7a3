//! `cargo xtask package`: builds a .deb and an .rpm from one tree: binary, unit, catalog, group, configuration, man
//! pages, completions, documents.
//!
//! They are built by dpkg-deb and rpmbuild; the scripts of installation and removal are in `deploy/package`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::machine::Machine;
use crate::shell::{command, output, run};
use crate::{build, place, setup};

/// rpmbuild; dpkg-deb is part of Debian, and of this package elsewhere.
const TOOLS: &[&str] = &["dpkg", "rpm", "gzip"];
/// Directories of zsh completions, on Debian and elsewhere.
const ZSH: [&str; 2] = ["usr/share/zsh/vendor-completions", "usr/share/zsh/site-functions"];

/// Builds both packages, and prints their paths. `--arch arm64` (or amd64) builds for that architecture; `--binary
/// FILE` packs that binary instead of building one.
pub(crate) fn command_line(args: &[&str]) -> Result<()> {
    let own = Machine::own()?;
    let (machine, args) = match args {
        ["--arch", name, rest @ ..] => (Machine::named(name)?, rest),
        _ => (own, args),
    };
    let binary = match args {
        [] => build::release_for(machine)?,
        ["--binary", file] => PathBuf::from(file),
        _ => bail!("usage: cargo xtask package [--arch ARCH] [--binary FILE]"),
    };
    // Another architecture's binary cannot run here to print its version, man pages and completions; this machine's
    // prints the same.
    let speaker = if machine == own { binary.clone() } else { build::release()? };
    for package in packages(&Packed { machine, binary, speaker })? {
        println!("{}", package.display());
    }
    Ok(())
}

/// What is packed.
pub(crate) struct Packed {
    machine: Machine,
    binary: PathBuf,
    /// A binary that runs here.
    speaker: PathBuf,
}

/// Both packages of this binary.
pub(crate) fn packages(packed: &Packed) -> Result<Vec<PathBuf>> {
    setup::packages(TOOLS)?;
    let version = version(&packed.speaker)?;
    let room = place::target().join("package");
    if room.exists() {
        fs::remove_dir_all(&room)?;
    }
    let deb = deb(packed, &version, &room.join("deb"), &room)?;
    let rpm = rpm(packed, &version, &room.join("rpm"))?;
    Ok(vec![deb, rpm])
}

/// A .deb of this binary for each revision, in `room`: dpkg treats revision `-2` as newer.
pub(crate) fn debs(binary: &Path, revisions: &[&str], room: &Path) -> Result<Vec<PathBuf>> {
    setup::packages(&["dpkg", "gzip"])?;
    let version = version(binary)?;
    let packed = Packed { machine: Machine::own()?, binary: binary.into(), speaker: binary.into() };
    let one = |revision: &&str| {
        let version = format!("{version}{revision}");
        deb(&packed, &version, &room.join(format!("deb-{version}")), room)
    };
    revisions.iter().map(one).collect()
}

/// The version that the binary prints: `ipwatch 0.1.0`.
fn version(binary: &Path) -> Result<String> {
    let said = output(&mut program(binary, &["--version"]))?;
    let version = said.trim().rsplit(' ').next().unwrap_or_default();
    if !version.starts_with(|first: char| first.is_ascii_digit()) {
        bail!("{} says {said:?} of its version", binary.display());
    }
    Ok(version.to_owned())
}

fn program(binary: &Path, args: &[&str]) -> std::process::Command {
    let mut program = std::process::Command::new(binary);
    program.args(args);
    program
}

/// Installs the contents of both packages under `root`.
fn tree(packed: &Packed, root: &Path, zsh: &str) -> Result<()> {
    let repository = place::repository();
    let deploy = repository.join("deploy/systemd");
    install(&packed.binary, &root.join("usr/bin/ipwatch"), 0o755)?;
    // Built beside it. `ipwatch cni install` copies it to where CNI plugins are.
    let ipam = packed.binary.with_file_name("ipwatch-ipam");
    install(&ipam, &root.join("usr/bin/ipwatch-ipam"), 0o755)?;
    // The plugin of kubectl is the same program by another name.
    let plugin = root.join("usr/bin/kubectl-ipwatch");
    if !plugin.is_symlink() {
        std::os::unix::fs::symlink("ipwatch", plugin)?;
    }
    let file = |from: PathBuf, to: &str| install(&from, &root.join(to), 0o644);
    file(deploy.join("ipwatch.service"), "usr/lib/systemd/system/ipwatch.service")?;
    file(deploy.join("ipwatch.catalog"), "usr/lib/systemd/catalog/ipwatch.catalog")?;
    file(deploy.join("ipwatch.sysusers"), "usr/lib/sysusers.d/ipwatch.conf")?;
    let doc = "usr/share/doc/ipwatch";
    file(repository.join("README.md"), &format!("{doc}/README.md"))?;
    // In the layout of the repository, because pages link to each other. Templates are only for developers.
    for part in ["docs", "docs/findings", "docs/contract", "docs/images", "docs/support"] {
        for entry in fs::read_dir(repository.join(part))?.flatten() {
            if entry.file_type()?.is_file() {
                let name = entry.file_name();
                file(entry.path(), &format!("{doc}/{part}/{}", name.to_string_lossy()))?;
            }
        }
    }
    write(&root.join(doc).join("copyright"), &copyright(repository)?)?;
    let made = |args: &[&str], to: &str| {
        write(&root.join(to), &output(&mut program(&packed.speaker, args))?)
    };
    made(&["config", "default"], "etc/ipwatch/ipwatch.toml")?;
    // The file may contain headers for a collector.
    fs::set_permissions(root.join("etc/ipwatch/ipwatch.toml"), fs::Permissions::from_mode(0o640))?;
    made(&["completions", "bash"], "usr/share/bash-completion/completions/ipwatch")?;
    made(&["completions", "fish"], "usr/share/fish/vendor_completions.d/ipwatch.fish")?;
    made(&["completions", "zsh"], &format!("{zsh}/_ipwatch"))?;
    let man = root.join("usr/share/man/man1");
    fs::create_dir_all(&man)?;
    run(program(&packed.speaker, &["man-pages"]).arg(&man))?;
    write(&man.join("kubectl-ipwatch.1"), ".so man1/ipwatch.1\n")?;
    for page in fs::read_dir(&man)?.flatten() {
        compress(&page.path())?;
    }
    Ok(())
}

/// Compresses reproducibly: without name and date.
fn compress(file: &Path) -> Result<()> {
    run(command(&["gzip", "-9n"]).arg(file))
}

fn deb(packed: &Packed, version: &str, root: &Path, room: &Path) -> Result<PathBuf> {
    tree(packed, root, ZSH[0])?;
    let repository = place::repository();
    let parts = repository.join("deploy/package");
    let changes = root.join("usr/share/doc/ipwatch/CHANGELOG.md");
    install(&repository.join("CHANGELOG.md"), &changes, 0o644)?;
    compress(&changes)?;
    let changelog = root.join("usr/share/doc/ipwatch/changelog");
    write(&changelog, &debian_changelog(version)?)?;
    compress(&changelog)?;
    let overrides = root.join("usr/share/lintian/overrides/ipwatch");
    install(&parts.join("lintian-overrides"), &overrides, 0o644)?;
    let arch = packed.machine.debian();
    let size = output(command(&["du", "-sk", "--apparent-size"]).arg(root))?;
    let size = size.split_whitespace().next().unwrap_or("0");
    let control = fs::read_to_string(parts.join("control"))?
        .replace("@VERSION@", version)
        .replace("@ARCH@", arch)
        .replace("@SIZE@", size);
    write(&root.join("DEBIAN/control"), &control)?;
    write(&root.join("DEBIAN/conffiles"), "/etc/ipwatch/ipwatch.toml\n")?;
    write(&root.join("DEBIAN/md5sums"), &sums(root)?)?;
    for script in ["postinst", "prerm", "postrm"] {
        install(&parts.join(script), &root.join("DEBIAN").join(script), 0o755)?;
    }
    settle(root)?;
    let package = room.join(format!("ipwatch_{version}_{arch}.deb"));
    run(command(&["dpkg-deb", "--build", "--root-owner-group", "-Zxz"]).arg(root).arg(&package))?;
    Ok(package)
}

/// A changelog in Debian's format, with the minimum that its tools require, and the date of the file.
fn debian_changelog(version: &str) -> Result<String> {
    let changes = place::repository().join("CHANGELOG.md");
    let date = output(command(&["date", "--utc", "--rfc-email", "--reference"]).arg(&changes))?;
    Ok(format!(
        "ipwatch ({version}) unstable; urgency=medium\n\n  * What changed: CHANGELOG.md.gz.\n\n \
         -- The ipwatch authors <ipwatch@localhost>  {date}"
    ))
}

/// Sets modes that do not depend on the umask of the build: of directories (five digits also clear setgid), and of
/// generated files.
fn settle(root: &Path) -> Result<()> {
    run(command(&["find"]).arg(root).args(["-type", "d", "-exec", "chmod", "00755", "{}", "+"]))?;
    let share = root.join("usr/share");
    run(command(&["find"]).arg(share).args(["-type", "f", "-exec", "chmod", "0644", "{}", "+"]))
}

/// The checksums for `dpkg --verify`.
fn sums(root: &Path) -> Result<String> {
    let mut find = command(&["find", "usr", "-type", "f", "-exec", "md5sum", "{}", "+"]);
    output(find.current_dir(root))
}

fn rpm(packed: &Packed, version: &str, room: &Path) -> Result<PathBuf> {
    let tree_root = room.join("tree");
    tree(packed, &tree_root, ZSH[1])?;
    settle(&tree_root)?;
    let spec = fs::read_to_string(place::repository().join("deploy/package/ipwatch.spec"))?
        .replace("@VERSION@", version)
        .replace("@TREE@", &tree_root.to_string_lossy());
    let file = room.join("ipwatch.spec");
    write(&file, &spec)?;
    let define = |name: &str, value: &str| ["--define".to_owned(), format!("{name} {value}")];
    let mut build = command(&["rpmbuild", "-bb", "--quiet", "--target", packed.machine.name()]);
    build.args(define("_topdir", &room.join("build").to_string_lossy()));
    // The tree is built and stripped; rpmbuild must not process it further.
    build.args(define("__os_install_post", "%{nil}")).args(define("debug_package", "%{nil}"));
    build.args(define("_build_id_links", "none")).args(define("_binary_payload", "w9.gzdio"));
    run(build.arg(&file))?;
    let made = output(command(&["find", "-name", "*.rpm"]).current_dir(room.join("build")))?;
    let made = made.lines().next().context("rpmbuild made no package")?;
    let from = room.join("build").join(made);
    let name = from.file_name().context("a package without a name")?.to_owned();
    let package = place::target().join("package").join(name);
    fs::copy(&from, &package)?;
    Ok(package)
}

fn copyright(repository: &Path) -> Result<String> {
    let mit = fs::read_to_string(repository.join("LICENSE-MIT"))?;
    Ok(format!(
        "ipwatch is licensed under MIT or Apache-2.0, as you choose. The text of Apache-2.0 is in\n\
         /usr/share/common-licenses/Apache-2.0 on Debian. The kernel half is also under GPL-2.0-only.\n\n{mit}"
    ))
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

fn write(to: &Path, text: &str) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(to, text)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn modes_do_not_depend_on_the_umask() {
        let root = std::env::temp_dir().join(format!("xtask-package-{}", std::process::id()));
        let (man, bin) = (root.join("usr/share/man"), root.join("usr/bin"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        fs::create_dir_all(&man).unwrap();
        fs::create_dir_all(&bin).unwrap();
        for (file, given) in [(man.join("page"), 0o600), (bin.join("program"), 0o755)] {
            fs::write(&file, "").unwrap();
            set(&file, given).unwrap();
        }
        set(&man, 0o700).unwrap();
        set(&root, 0o2770).unwrap();
        settle(&root).unwrap();
        let found = [&root, &man, &man.join("page"), &bin.join("program")].map(|path| mode(path));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [0o755, 0o755, 0o644, 0o755]);
    }
}
