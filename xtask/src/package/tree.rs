//! The tree of files that .deb, .rpm and the tarball have in common, in the layout of the node's file system.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::place;
use crate::shell::{command, output, run};

/// Where the documents are.
pub(crate) const DOC: &str = "usr/share/doc/ipwatch";
/// Directories of zsh completions, on Debian and elsewhere.
pub(super) const ZSH: [&str; 2] =
    ["usr/share/zsh/vendor-completions", "usr/share/zsh/site-functions"];

/// Pages of the repository that are packed.
const PAGES: [&str; 8] = [
    "README.md",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "ipwatch-ebpf/LICENSE-GPL2",
];
/// Directories of which every file is packed: the other pages, and what they tell somebody to apply or to load.
const PARTS: [&str; 12] = [
    "docs",
    "docs/contract",
    "docs/findings",
    "docs/images",
    "docs/support",
    "docs/templates",
    "deploy/grafana",
    "deploy/kubernetes",
    "deploy/kubernetes/api",
    "deploy/kubernetes/base",
    "deploy/node-problem-detector",
    "deploy/prometheus",
];

/// The programs that are packed.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// The daemon; the plugin is beside it.
    pub(crate) ipwatch: PathBuf,
    /// A binary that runs here, and prints version, man pages and completions: the same, unless `ipwatch` is another
    /// architecture's.
    pub(crate) speaker: PathBuf,
}

impl Programs {
    /// The CNI plugin, which is built beside the daemon.
    pub(crate) fn ipam(&self) -> PathBuf {
        self.ipwatch.with_file_name("ipwatch-ipam")
    }

    /// The version that the binary prints: `ipwatch 0.1.0`.
    pub(crate) fn version(&self) -> Result<String> {
        let said = output(&mut self.say(&["--version"]))?;
        let version = said.trim().rsplit(' ').next().unwrap_or_default();
        if !version.starts_with(|first: char| first.is_ascii_digit()) {
            bail!("{} says {said:?} of its version", self.speaker.display());
        }
        Ok(version.to_owned())
    }

    fn say(&self, args: &[&str]) -> Command {
        let mut program = Command::new(&self.speaker);
        program.args(args);
        program
    }
}

/// Installs everything under `root`.
pub(crate) fn tree(programs: &Programs, root: &Path, zsh: &str) -> Result<()> {
    install(&programs.ipwatch, &root.join("usr/bin/ipwatch"), 0o755)?;
    // `ipwatch cni install` copies it to where CNI plugins are.
    install(&programs.ipam(), &root.join("usr/bin/ipwatch-ipam"), 0o755)?;
    // The plugin of kubectl is the same program by another name.
    let plugin = root.join("usr/bin/kubectl-ipwatch");
    if !plugin.is_symlink() {
        std::os::unix::fs::symlink("ipwatch", plugin)?;
    }
    let deploy = place::repository().join("deploy/systemd");
    let file = |from: PathBuf, to: &str| install(&from, &root.join(to), 0o644);
    file(deploy.join("ipwatch.service"), "usr/lib/systemd/system/ipwatch.service")?;
    file(deploy.join("ipwatch.catalog"), "usr/lib/systemd/catalog/ipwatch.catalog")?;
    file(deploy.join("ipwatch.sysusers"), "usr/lib/sysusers.d/ipwatch.conf")?;
    documents(root)?;
    spoken(programs, root, zsh)?;
    settle(root)
}

fn documents(root: &Path) -> Result<()> {
    let repository = place::repository();
    let file = |from: PathBuf, to: &str| install(&from, &root.join(to), 0o644);
    // In the layout of the repository, because pages link to each other.
    for page in PAGES {
        file(repository.join(page), &format!("{DOC}/{page}"))?;
    }
    for part in PARTS {
        for entry in fs::read_dir(repository.join(part))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Tests of the rules are for developers.
            if entry.file_type()?.is_file() && !name.ends_with(".test.yml") {
                // The program of node-problem-detector is run from wherever somebody copies it to.
                let runs = entry.metadata()?.permissions().mode() & 0o100 != 0;
                let mode = if runs { 0o755 } else { 0o644 };
                install(&entry.path(), &root.join(format!("{DOC}/{part}/{name}")), mode)?;
            }
        }
    }
    write(&root.join(DOC).join("copyright"), &copyright(repository)?)
}

/// What the program itself prints.
fn spoken(programs: &Programs, root: &Path, zsh: &str) -> Result<()> {
    let made = |args: &[&str], to: &str| write(&root.join(to), &output(&mut programs.say(args))?);
    made(&["config", "default"], "etc/ipwatch/ipwatch.toml")?;
    // The file may contain headers for a collector.
    fs::set_permissions(root.join("etc/ipwatch/ipwatch.toml"), fs::Permissions::from_mode(0o640))?;
    made(&["completions", "bash"], "usr/share/bash-completion/completions/ipwatch")?;
    made(&["completions", "fish"], "usr/share/fish/vendor_completions.d/ipwatch.fish")?;
    made(&["completions", "zsh"], &format!("{zsh}/_ipwatch"))?;
    let man = root.join("usr/share/man/man1");
    fs::create_dir_all(&man)?;
    run(programs.say(&["man-pages"]).arg(&man))?;
    write(&man.join("kubectl-ipwatch.1"), ".so man1/ipwatch.1\n")?;
    for page in fs::read_dir(&man)?.flatten() {
        compress(&page.path())?;
    }
    Ok(())
}

/// Compresses reproducibly: without name and date.
pub(super) fn compress(file: &Path) -> Result<()> {
    run(command(&["gzip", "-9n"]).arg(file))
}

/// Sets modes that do not depend on the umask of the build: of directories (five digits also clear setgid), and of
/// generated files. What can be run (`X`) stays so.
pub(super) fn settle(root: &Path) -> Result<()> {
    run(command(&["find"]).arg(root).args(["-type", "d", "-exec", "chmod", "00755", "{}", "+"]))?;
    let share = root.join("usr/share");
    let modes = "u=rwX,go=rX";
    run(command(&["find"]).arg(share).args(["-type", "f", "-exec", "chmod", modes, "{}", "+"]))
}

fn copyright(repository: &Path) -> Result<String> {
    let mit = fs::read_to_string(repository.join("LICENSE-MIT"))?;
    Ok(format!(
        "ipwatch is licensed under MIT or Apache-2.0, as you choose. The text of Apache-2.0 is in\n\
         /usr/share/common-licenses/Apache-2.0 on Debian. The kernel half is also under GPL-2.0-only.\n\n{mit}"
    ))
}

/// Copies a file with this mode; its directories are made.
pub(crate) fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Writes a file that everybody may read; its directories are made.
pub(crate) fn write(to: &Path, text: &str) -> Result<()> {
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

    /// Whoever has only a package reads its pages. Code alone is in the source.
    #[test]
    fn what_the_packed_pages_link_to_is_packed() {
        let root = std::env::temp_dir().join(format!("xtask-documents-{}", std::process::id()));
        documents(&root).unwrap();
        let doc = root.join(DOC);
        let mut dead = Vec::new();
        let mut all = 0;
        for page in crate::pages::pages_in(&doc) {
            let text = fs::read_to_string(&page).unwrap();
            for link in crate::pages::links(&text).filter(|link| !link.contains("://")) {
                let file = link.split_once('#').map_or(link, |(file, _)| file);
                all += 1;
                let is_code = file.ends_with(".rs");
                if !is_code && !page.parent().unwrap().join(file).exists() {
                    dead.push(format!("{}: {link}", page.strip_prefix(&doc).unwrap().display()));
                }
            }
        }
        fs::remove_dir_all(&root).unwrap();
        assert!(all > 100, "only {all} links were found");
        assert!(dead.is_empty(), "{}", dead.join("\n"));
    }

    #[test]
    fn a_program_among_the_documents_can_be_run() {
        let root = std::env::temp_dir().join(format!("xtask-program-{}", std::process::id()));
        documents(&root).unwrap();
        settle(&root).unwrap();
        let part = root.join(DOC).join("deploy/node-problem-detector");
        let mode = |name: &str| fs::metadata(part.join(name)).unwrap().permissions().mode() & 0o777;
        let modes = (mode("ipwatch-condition"), mode("ipwatch.json"));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(modes, (0o755, 0o644));
    }

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
