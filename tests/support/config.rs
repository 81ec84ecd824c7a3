//! The `ipwatch.toml` of the daemon under test.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::daemon::probes;

/// Contents of `ipwatch.toml`.
#[derive(Debug, Clone, Default)]
pub struct Config {
    grace: Option<u32>,
    core_dump_grace: Option<u32>,
    probes: String,
    holders: Option<u32>,
    leak_age: Option<u32>,
    runtimes: Vec<String>,
    all_runtimes: bool,
    ignored: Option<Vec<PathBuf>>,
    provisional: bool,
    cache_dirs: Vec<PathBuf>,
    conf_dirs: Vec<PathBuf>,
    data_dirs: Vec<PathBuf>,
    stores: String,
    bin_dirs: Vec<PathBuf>,
    logs: Vec<PathBuf>,
    otlp: Option<String>,
    otlp_lines: String,
    extra: String,
    top: String,
    whole: Option<String>,
}

impl Config {
    /// A configuration with exactly this text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self { whole: Some(text.to_owned()), ..Self::default() }
    }

    /// Grace before a holder counts as stuck, in seconds.
    #[must_use]
    pub fn grace(mut self, seconds: u32) -> Self {
        self.grace = Some(seconds);
        self
    }

    /// Grace while its core is being dumped, in seconds.
    #[must_use]
    pub fn core_dump_grace(mut self, seconds: u32) -> Self {
        self.core_dump_grace = Some(seconds);
        self
    }

    /// Adds a line about the probes.
    #[must_use]
    pub fn probes_line(mut self, line: &str) -> Self {
        self.probes.push_str(line);
        self.probes.push('\n');
        self
    }

    /// Grace before a dead sandbox or a teardown without progress counts, in seconds.
    #[must_use]
    pub fn holders_grace(mut self, seconds: u32) -> Self {
        self.holders = Some(seconds);
        self
    }

    /// Age of a leak if no runtime can be asked, in seconds.
    #[must_use]
    pub fn leak_age(mut self, seconds: u32) -> Self {
        self.leak_age = Some(seconds);
        self
    }

    /// Adds a runtime with the CRI.
    #[must_use]
    pub fn cri(mut self, socket: &Path) -> Self {
        self.runtimes.push(format!("{{ path = {socket:?}, kind = \"cri\" }}"));
        self
    }

    /// Adds a runtime with Docker's API.
    #[must_use]
    pub fn docker(mut self, socket: &Path) -> Self {
        self.runtimes.push(format!("{{ path = {socket:?}, kind = \"docker\" }}"));
        self
    }

    /// Counts every runtime on the machine, including those of other tests. By default runtimes of labs that are not
    /// listed are ignored.
    #[must_use]
    pub fn all_runtimes(mut self) -> Self {
        self.all_runtimes = true;
        self
    }

    /// Ignores the runtimes below these directories, instead of those of all labs.
    #[must_use]
    pub fn ignore_runtimes(mut self, dirs: &[PathBuf]) -> Self {
        self.ignored = Some(dirs.to_vec());
        self
    }

    /// Identities without cookies.
    #[must_use]
    pub fn provisional(mut self) -> Self {
        self.provisional = true;
        self
    }

    /// Sets the CNI result cache.
    #[must_use]
    pub fn cache_dir(mut self, dir: &Path) -> Self {
        self.cache_dirs = vec![dir.to_owned()];
        self
    }

    /// Adds another CNI result cache.
    #[must_use]
    pub fn more_cache(mut self, dir: &Path) -> Self {
        self.cache_dirs.push(dir.to_owned());
        self
    }

    /// Sets the directories of network configurations and of their plugins; those of the host are not used.
    #[must_use]
    pub fn networks(mut self, conf_dirs: &[PathBuf], bin_dir: &Path) -> Self {
        self.conf_dirs.extend_from_slice(conf_dirs);
        self.bin_dirs.push(bin_dir.to_owned());
        self
    }

    /// Adds a directory of host-local's reservations, whether or not a configuration names it. Only with
    /// [`Config::networks`].
    #[must_use]
    pub fn data_dir(mut self, dir: &Path) -> Self {
        self.data_dirs.push(dir.to_owned());
        self
    }

    /// Sets the path of another store: the key in `[ipam]`, and its value. Only with [`Config::networks`].
    #[must_use]
    pub fn store(mut self, key: &str, path: &Path) -> Self {
        let _ = writeln!(self.stores, "{key} = {path:?}");
        self
    }

    /// Sets the logs of runtimes.
    #[must_use]
    pub fn logs(mut self, logs: &[PathBuf]) -> Self {
        self.logs.extend_from_slice(logs);
        self
    }

    /// Sets the collector.
    #[must_use]
    pub fn otlp(mut self, endpoint: &str) -> Self {
        self.otlp = Some(endpoint.to_owned());
        self
    }

    /// Adds a line to `[otlp]`.
    #[must_use]
    pub fn otlp_line(mut self, line: &str) -> Self {
        self.otlp_lines.push_str(line);
        self.otlp_lines.push('\n');
        self
    }

    /// Adds a key outside of any table.
    #[must_use]
    pub fn top(mut self, line: &str) -> Self {
        self.top.push_str(line);
        self.top.push('\n');
        self
    }

    /// Adds any other line.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.extra.push_str(line);
        self.extra.push('\n');
        self
    }

    /// The text of the file. `IPWATCH_TEST_PROBES` (`all`, `kprobe`, `off`) sets the highest permitted rung of the
    /// attach ladder, so that the same tests run on every rung.
    #[must_use]
    pub fn text(&self) -> String {
        if let Some(whole) = &self.whole {
            return whole.clone();
        }
        let mut text = self.top.clone();
        let mut section = |name: &str, line: String| {
            let _ = writeln!(text, "[{name}]\n{line}");
        };
        let mut lines = String::new();
        if let Some(s) = self.grace {
            let _ = writeln!(lines, "grace = \"{s}s\"");
        }
        if let Some(s) = self.core_dump_grace {
            let _ = writeln!(lines, "core_dump_grace = \"{s}s\"");
        }
        if !lines.is_empty() {
            section("stuck", std::mem::take(&mut lines));
        }
        if let Some(s) = self.holders {
            let _ = write!(lines, "grace = \"{s}s\"\nteardown_grace = \"{s}s\"\n");
        }
        if let Some(s) = self.leak_age {
            let _ = writeln!(lines, "leak_age = \"{s}s\"");
        }
        if !lines.is_empty() {
            section("holders", lines);
        }
        // Never the runtimes of this host: they do not know the pods of the tests.
        let mut lines = format!("sockets = [{}]", self.runtimes.join(", "));
        if !self.all_runtimes {
            let labs = || vec![std::env::temp_dir(), "/run".into()];
            let ignored = self.ignored.clone().unwrap_or_else(labs);
            let _ = write!(lines, "\nignore = {ignored:?}");
        }
        section("runtime", lines);
        if self.provisional {
            section("identity", "provisional = true".into());
        }
        let mut cni = String::new();
        if !self.cache_dirs.is_empty() {
            let _ = writeln!(cni, "cache_dirs = {:?}", self.cache_dirs);
        }
        if !self.bin_dirs.is_empty() {
            let _ = writeln!(cni, "bin_dirs = {:?}", self.bin_dirs);
        }
        if !self.logs.is_empty() {
            let _ = writeln!(cni, "logs = {:?}", self.logs);
        }
        if !cni.is_empty() {
            section("cni", cni);
        }
        if !self.conf_dirs.is_empty() {
            // No stores of the host: its reservations do not belong to the lab.
            let lines =
                format!("data_dirs = {:?}\nconf_dirs = {:?}", self.data_dirs, self.conf_dirs);
            section("ipam", format!("{lines}\n{}", self.stores));
        }
        if let Some(endpoint) = &self.otlp {
            section("otlp", format!("endpoint = {endpoint:?}\n{}", self.otlp_lines));
        }
        let mut lines = self.probes.clone();
        // Off unless a test enables it: nearly every test starts a daemon, several at the same time, and each
        // daemon's canary would create netns beside the others.
        if !lines.contains("canary") {
            lines.push_str("canary = false\n");
        }
        match probes().as_str() {
            "kprobe" => lines.push_str("forbid = [\"fentry\"]"),
            "off" => lines.push_str("enabled = false"),
            _ => {}
        }
        if !lines.is_empty() {
            section("probes", lines);
        }
        text + &self.extra
    }
}
