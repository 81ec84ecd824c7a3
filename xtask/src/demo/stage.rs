//! The pods of the demo: network namespaces with an address, the processes in them, and the CNI results that name the
//! pods. All of them are in one directory and are removed with the stage.
//!
//! `tests/e2e/demo.rs` includes this file and runs the demo's commands, so this file must not use anything of this
//! crate.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// Short graces, so that the demo is quick; the README has the usual ones. No runtime is asked: a runtime on this
/// machine never had these pods, and would deny them.
const CONFIG: &str = r#"
[stuck]
grace = "1s"
[holders]
grace = "500ms"
leak_age = "500ms"
[cni]
cache_dirs = ["CACHE"]
[runtime]
sockets = []
ignore = ["/"]
"#;

/// A pod of the demo.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pod {
    name: &'static str,
    number: u8,
    /// Last byte of its IP.
    host: u8,
}

impl Pod {
    pub(crate) const HEALTHY: Pod = Pod::new("web-0", 2, 2);
    pub(crate) const LEAKED: Pod = Pod::new("cart-0", 3, 3);
    pub(crate) const STUCK: Pod = Pod::new("api-0", 4, 4);
    pub(crate) const FIRST: Pod = Pod::new("db-0", 5, 5);
    /// Has the same IP.
    pub(crate) const TWIN: Pod = Pod::new("db-1", 6, 5);

    const fn new(name: &'static str, number: u8, host: u8) -> Self {
        Self { name, number, host }
    }

    /// Its IP. Nothing routes to it: both ends of its veth are in the pod, or in two pods.
    pub(crate) fn ip(self) -> String {
        format!("10.88.7.{}", self.host)
    }

    /// File name of its netns mount.
    pub(crate) fn netns(self) -> String {
        format!("cni-{}", self.name)
    }

    /// Id of its sandbox: 64 hexadecimal digits, as in every runtime.
    fn sandbox(self) -> String {
        format!("de30{:060x}", self.number)
    }
}

/// The pods that were created.
pub(crate) struct Stage {
    dir: PathBuf,
    roles: PathBuf,
    netns: Vec<PathBuf>,
    /// The process that hangs, and the file server that causes it.
    hanging: Option<Actor>,
    server: Option<Actor>,
    others: Vec<Actor>,
}

impl Stage {
    /// An empty stage in `dir`. `roles` is the binary that plays the processes.
    pub(crate) fn new(dir: &Path, roles: &Path) -> Result<Self> {
        let stage = Self {
            dir: dir.to_owned(),
            roles: roles.to_owned(),
            netns: Vec::new(),
            hanging: None,
            server: None,
            others: Vec::new(),
        };
        for dir in [stage.cache(), stage.mount(), stage.dir.join("netns")] {
            fs::create_dir(dir)?;
        }
        Ok(stage)
    }

    /// Directory of the CNI result cache.
    fn cache(&self) -> PathBuf {
        self.dir.join("results")
    }

    /// The daemon's configuration.
    pub(crate) fn config(&self) -> String {
        CONFIG.replace("CACHE", &self.cache().display().to_string())
    }

    fn mount(&self) -> PathBuf {
        self.dir.join("files")
    }

    /// Creates a healthy pod.
    pub(crate) fn healthy(&mut self) -> Result<()> {
        let netns = self.netns(Pod::HEALTHY)?;
        self.others.push(self.actor("park", "pause", Some(&netns), None)?);
        self.others.push(self.actor("park", "nginx", Some(&netns), None)?);
        Ok(())
    }

    /// Creates a pod of which only the mounted netns is left, as if DEL was never called.
    pub(crate) fn leaked(&mut self) -> Result<()> {
        self.netns(Pod::LEAKED).map(|_| ())
    }

    /// Creates two pods on one link with the same IP.
    pub(crate) fn duplicate(&mut self) -> Result<()> {
        let (first, twin) = (self.mounted(Pod::FIRST)?, self.mounted(Pod::TWIN)?);
        let there = first.display().to_string();
        let pair = ["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &there];
        ip(&twin, &pair)?;
        for (pod, path) in [(Pod::FIRST, first), (Pod::TWIN, twin)] {
            // The kernel's time of an address has a resolution of 10 ms (`put_cacheinfo`), and the newer one must be
            // known.
            thread::sleep(Duration::from_millis(30));
            self.addressed(pod, &path)?;
            self.others.push(self.actor("park", "postgres", Some(&path), None)?);
        }
        Ok(())
    }

    /// Creates a pod that reads from a file system whose server never answers.
    pub(crate) fn hanging(&mut self) -> Result<()> {
        let mount = self.mount();
        let mut server = self.actor("fuse", "s3fs", None, Some(&mount))?;
        let netns = self.netns(Pod::STUCK)?;
        self.others.push(self.actor("park", "pause", Some(&netns), None)?);
        let reader = self.actor("reader", "java", Some(&netns), Some(&mount.join("hang")))?;
        self.hanging = Some(reader);
        // From now on the read cannot be interrupted.
        let said = server.hear();
        self.server = Some(server);
        if said? != "read" {
            bail!("nobody reads");
        }
        Ok(())
    }

    /// Sends SIGKILL to the process that hangs, if there is one.
    pub(crate) fn kill_hanging(&mut self) -> Result<bool> {
        let Some(actor) = &mut self.hanging else { return Ok(false) };
        actor.child.kill()?;
        Ok(true)
    }

    /// Ends and removes everything. The process that hangs continues when its file server has ended.
    pub(crate) fn clear(&mut self) {
        drop(self.server.take());
        quietly(Command::new("umount").arg("-l").arg(self.mount()));
        drop(self.hanging.take());
        self.others.clear();
        for netns in self.netns.drain(..) {
            quietly(Command::new("umount").arg(netns));
        }
    }

    /// Creates a netns with the pod's IP, mounted as by a runtime, and the CNI result that names the pod.
    fn netns(&mut self, pod: Pod) -> Result<PathBuf> {
        let path = self.mounted(pod)?;
        ip(&path, &["link", "add", "eth0", "type", "veth", "peer", "name", "far0"])?;
        self.addressed(pod, &path)?;
        Ok(path)
    }

    /// Creates the netns only.
    fn mounted(&mut self, pod: Pod) -> Result<PathBuf> {
        let path = self.dir.join("netns").join(pod.netns());
        File::create_new(&path)?;
        let mut unshare = Command::new("unshare");
        unshare.arg(format!("--net={}", path.display())).args(["ip", "link", "set", "lo", "up"]);
        // Before the command runs: it mounts first, and may fail after that.
        self.netns.push(path.clone());
        run(&mut unshare).context("make a network namespace")?;
        Ok(path)
    }

    /// Adds the pod's IP to its device, and writes the CNI result.
    fn addressed(&self, pod: Pod, path: &Path) -> Result<()> {
        ip(path, &["addr", "add", &format!("{}/24", pod.ip()), "dev", "eth0"])?;
        ip(path, &["link", "set", "eth0", "up"])?;
        fs::write(self.cache().join(format!("demo-{}-eth0", pod.sandbox())), cached(pod, path))?;
        Ok(())
    }

    /// Starts a process with this role and name. It ends when this program ends for any reason.
    fn actor(
        &self,
        role: &str,
        comm: &str,
        netns: Option<&Path>,
        arg: Option<&Path>,
    ) -> Result<Actor> {
        let mut command = Command::new(&self.roles);
        command.env("IPWATCH_TEST_ROLE", role).env("IPWATCH_TEST_COMM", comm).args(arg);
        command.envs(netns.map(|path| ("IPWATCH_TEST_NETNS", path)));
        // Its stderr is discarded, and on Ctrl-C we stop it ourselves.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().with_context(|| self.roles.display().to_string())?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().map(BufReader::new);
        let mut actor = Actor { child, _stdin: stdin, stdout };
        match actor.hear()?.as_str() {
            "ready" => Ok(actor),
            _ => bail!("{comm} did not start"),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Runs `ip` in a netns.
fn ip(netns: &Path, words: &[&str]) -> Result<()> {
    run(Command::new("nsenter").arg(format!("--net={}", netns.display())).arg("ip").args(words))
}

/// Runs a command; the error contains its stderr.
fn run(command: &mut Command) -> Result<()> {
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    if !out.status.success() {
        bail!("{command:?}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

/// Runs a command and ignores the result.
fn quietly(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).output();
}

/// The cached result of a successful ADD (libcni/api.go, `cachedInfo`).
fn cached(pod: Pod, netns: &Path) -> String {
    let (sandbox, netns) = (pod.sandbox(), netns.display());
    format!(
        r#"{{"kind": "cniCacheV1", "containerId": "{sandbox}", "ifName": "eth0", "networkName": "demo",
"netns": "{netns}",
"cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "{}"],
            ["K8S_POD_INFRA_CONTAINER_ID", "{sandbox}"]],
"result": {{"cniVersion": "1.0.0", "interfaces": [{{"name": "eth0", "sandbox": "{netns}"}}],
            "ips": [{{"address": "{}/24", "interface": 0}}]}}}}"#,
        pod.name,
        pod.ip()
    )
}

/// A process of a pod. Killed when dropped.
struct Actor {
    child: Child,
    /// The actor ends when this is closed.
    _stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Actor {
    /// The next line of its output; empty if it has ended.
    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if let Some(stdout) = &mut self.stdout {
            stdout.read_line(&mut line)?;
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A process that hangs needs a moment to end; do not wait longer.
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
