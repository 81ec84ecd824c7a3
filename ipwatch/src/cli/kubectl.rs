//! `kubectl ipwatch …`: finds the node of a pod and queries the ipwatch on it, or queries that of every node (`fleet`).
//!
//! kubectl runs this program as a plugin if it is in the PATH under the name `kubectl-ipwatch`. The plugin calls
//! kubectl for each request, because kubectl has the namespace, the context and the credentials, including those of
//! exec plugins.

pub(super) mod fleet;
mod node;
mod room;

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser};

use super::Failure;

/// The name under which kubectl finds the plugin.
const NAME: &str = "kubectl-ipwatch";
/// Label and container name of ipwatch's pods in the manifests and the chart.
const LABEL: &str = "app.kubernetes.io/name=ipwatch";
const CONTAINER: &str = "ipwatch";
/// Maximum size of an answer of kubectl, in bytes.
const LONGEST: u64 = 4 << 20;
/// How much of the end of kubectl's stderr is kept, in bytes.
const TAIL: usize = 4 << 10;
/// How long to wait for the end of its stderr once it has ended: a program that it has started may keep that open.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Options of the plugin, accepted before a pod, after it, and for `cluster scan`, as kubectl does. ipwatch has no
/// options of these names.
const OWN: [&str; 4] = ["--namespace", "--kubeconfig", "--context", "--ipwatch-namespace"];

/// Which IP a pod has, and who holds it: asked of the ipwatch on its node.
#[derive(Debug, Parser)]
#[command(name = "kubectl ipwatch", bin_name = "kubectl ipwatch", version, max_term_width = 100)]
#[command(args_override_self = true)]
#[command(after_help = "\
`kubectl ipwatch POD` is `ipwatch query pod` on its node; other options after POD are options of that, and any \
other words are a command of their own: `kubectl ipwatch web-0 query findings`.

`kubectl ipwatch findings -A` shows the findings of every node, `kubectl ipwatch ip IP` on which node an IP is up and who \
had it, and `kubectl ipwatch cluster scan` looks at the whole cluster: see each with --help. A pod of the name `findings`, \
`ip` or `cluster` is `pod/cluster`.

Exit codes are those of ipwatch on the node; where kubectl itself fails, or no ipwatch could be asked, it is 2.")]
pub(super) struct Plugin {
    #[command(flatten)]
    own: Own,
    /// NAME, or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pod: String,
    /// For `ipwatch` on its node
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Options of every command of the plugin.
#[derive(Debug, Args)]
struct Own {
    /// The pod's namespace
    #[arg(short, long, value_name = "NAME", global = true)]
    namespace: Option<String>,
    /// As of kubectl
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// As of kubectl
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
    /// Where the pods of ipwatch are
    #[arg(long, value_name = "NAME", default_value = "ipwatch", global = true)]
    ipwatch_namespace: String,
}

/// How to run kubectl.
#[derive(Debug, Clone, Copy)]
struct Program<'a> {
    program: &'a OsStr,
    /// Arguments before all others.
    words: &'a [&'a OsStr],
}

/// Whether this process was started under the plugin's name.
pub(super) fn is_meant(program: Option<&OsStr>) -> bool {
    program.map(Path::new).and_then(Path::file_name).is_some_and(|name| name == NAME)
}

/// Who handles a command line.
#[derive(Debug)]
pub(super) enum Meant {
    /// The main program: `kubectl ipwatch cluster scan`, rewritten as its own command line.
    Whole(Vec<OsString>),
    /// The plugin.
    Plugin(Plugin),
    /// A question to every node.
    Fleet(fleet::Asked),
}

/// Parses a command line.
pub(super) fn read(args: Vec<OsString>) -> Result<Meant, clap::Error> {
    let (own, rest) = sorted(args)?;
    if rest.first().is_some_and(|word| word == "cluster") {
        return whole(own, rest).map(Meant::Whole);
    }
    if rest.first().is_some_and(|word| fleet::WORDS.iter().any(|own| word == own)) {
        return fleet::read(own, rest).map(Meant::Fleet);
    }
    let own = own.into_iter().flat_map(|(name, value)| [OsString::from(name), value]);
    let words = std::iter::once(OsString::from(NAME)).chain(own).chain(rest);
    Plugin::try_parse_from(words).map(Meant::Plugin)
}

/// The options of the plugin with their values, and all other words.
type Sorted = (Vec<(&'static str, OsString)>, Vec<OsString>);

/// Sorts the words of a command line. Words after `--` are not options.
fn sorted(args: Vec<OsString>) -> Result<Sorted, clap::Error> {
    let (mut own, mut rest) = (Vec::new(), Vec::new());
    let mut words = args.into_iter().skip(1);
    while let Some(word) = words.next() {
        if word == "--" {
            rest.push(word);
            rest.extend(words);
            break;
        }
        let Some((name, value)) = word.to_str().and_then(own_option) else {
            rest.push(word);
            continue;
        };
        let value = match value {
            Some(value) => OsString::from(value),
            None => {
                // If an option were taken for the value, it would be lost.
                let next = words.next().filter(|next| !next.as_encoded_bytes().starts_with(b"-"));
                next.ok_or_else(|| misused(format!("{name} needs a value")))?
            }
        };
        own.push((name, value));
    }
    Ok((own, rest))
}

/// The plugin's option that a word is, by its long name, with the value if the word contains it.
fn own_option(word: &str) -> Option<(&'static str, Option<&str>)> {
    if let Some(value) = word.strip_prefix("-n") {
        let value = value.strip_prefix('=').unwrap_or(value);
        return Some((OWN[0], Some(value).filter(|value| !value.is_empty())));
    }
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    Some((OWN.into_iter().find(|own| *own == name)?, value))
}

/// The command line of the main program, with the options for the cluster after `scan`.
fn whole(
    own: Vec<(&'static str, OsString)>,
    rest: Vec<OsString>,
) -> Result<Vec<OsString>, clap::Error> {
    let mut words = vec![OsString::from("ipwatch")];
    words.extend(rest);
    let scan = words.iter().position(|word| word == "scan");
    let mut said = Vec::new();
    for (name, value) in own.into_iter().rev() {
        if name.ends_with("namespace") {
            let why = format!(
                "`cluster scan` looks at all namespaces: leave {name} out; a pod of the name `cluster` is `pod/cluster`"
            );
            return Err(misused(why));
        }
        // `cluster --help` needs no options; of an option that is given twice the last counts.
        if let Some(scan) = scan.filter(|_| !said.contains(&name)) {
            said.push(name);
            words.splice(scan + 1..scan + 1, [OsString::from(name), value]);
        }
    }
    Ok(words)
}

/// A usage error.
fn misused(why: String) -> clap::Error {
    Plugin::command().error(ErrorKind::InvalidValue, why)
}

/// Runs the plugin.
pub(super) fn main(plugin: &Plugin) -> ExitCode {
    match plugin.run(Program { program: OsStr::new("kubectl"), words: &[] }) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => super::failed(&failure),
    }
}

impl Plugin {
    /// Returns the exit code of ipwatch on the node.
    fn run(&self, kubectl: Program<'_>) -> Result<u8, Failure> {
        let (namespace, name, node) = self.pod(kubectl)?;
        let agent = self.agent(kubectl, &node)?;
        let mut command = self.own.kubectl(kubectl);
        command.args(["exec", "-n", &self.own.ipwatch_namespace, &agent, "-c", CONTAINER]);
        if io::stdin().is_terminal() && io::stdout().is_terminal() {
            command.arg("-it");
        }
        command.args(["--", "ipwatch"]);
        let pod = format!("{namespace}/{name}");
        if self.args.first().is_none_or(|first| first.starts_with('-')) {
            command.args(["query", "pod", &pod]);
        }
        command.args(&self.args);
        let mut child = command.stderr(Stdio::piped()).spawn().map_err(cannot_run)?;
        let tail = child.stderr.take().map(|from| complaints(from, &mut io::stderr()));
        let tail = tail.unwrap_or_default();
        let status = child.wait().map_err(cannot_run)?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(match code.unwrap_or(super::ERROR) {
            // kubectl's own failures also end with 1, which in ipwatch means findings.
            super::FINDINGS if !is_theirs(&tail) => super::ERROR,
            code => code,
        })
    }

    /// Namespace, name and node of the pod.
    fn pod(&self, kubectl: Program<'_>) -> Result<(String, String, String), Failure> {
        let named = ["pod/", "pods/", "po/"].iter().find_map(|kind| self.pod.strip_prefix(kind));
        let (namespace, name) = match (named, self.pod.split_once('/')) {
            (Some(name), _) => (self.own.namespace.as_deref(), name),
            (None, Some((namespace, name))) => (Some(namespace), name),
            (None, None) => (self.own.namespace.as_deref(), &*self.pod),
        };
        let mut command = self.own.asking(kubectl);
        command.args(["get", "pod"]);
        if let Some(namespace) = namespace {
            command.args(["-n", namespace]);
        }
        let fields = r#"{.metadata.namespace}{"\n"}{.metadata.name}{"\n"}{.spec.nodeName}{"\n"}"#;
        command.args(["-o", &format!("jsonpath={fields}"), "--", name]);
        let said = said(command)?;
        let mut lines = said.lines().map(str::to_owned);
        let (Some(namespace), Some(name)) = (lines.next(), lines.next()) else {
            return Err(anyhow::anyhow!("kubectl knows no pod {}", self.pod).into());
        };
        match lines.next().filter(|node| !node.is_empty()) {
            Some(node) => Ok((namespace, name, node)),
            None => Err(anyhow::anyhow!(
                "pod {namespace}/{name} has no node yet: `kubectl describe pod` says why it is not scheduled"
            )
            .into()),
        }
    }

    /// The ipwatch pod of a node.
    fn agent(&self, kubectl: Program<'_>, node: &str) -> Result<String, Failure> {
        let mut command = self.own.asking(kubectl);
        let running = format!("spec.nodeName={node},status.phase=Running");
        command.args(["get", "pods", "-n", &self.own.ipwatch_namespace, "-l", LABEL]);
        command.args(["--field-selector", &running]);
        command.args(["-o", r#"jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}"#]);
        let said = said(command)?;
        let first = said.lines().find(|line| !line.is_empty()).map(str::to_owned);
        first.ok_or_else(|| {
            anyhow::anyhow!(
                "no pod of ipwatch runs on node {node} (in namespace {}, with {LABEL}): is its DaemonSet there? \
                 --ipwatch-namespace names another namespace",
                self.own.ipwatch_namespace
            )
            .into()
        })
    }
}

impl Own {
    /// kubectl with a timeout, for questions.
    fn asking(&self, kubectl: Program<'_>) -> Command {
        let mut command = self.kubectl(kubectl);
        command.arg("--request-timeout=30s");
        command
    }

    /// The options that name the cluster, for a command that is printed.
    fn flags(&self) -> Vec<String> {
        let file = self.kubeconfig.as_ref().map(|path| path.to_string_lossy().into_owned());
        let named = [("--kubeconfig", file), ("--context", self.context.clone())];
        let given = named.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        given.flatten().collect()
    }

    fn kubectl(&self, kubectl: Program<'_>) -> Command {
        let mut command = Command::new(kubectl.program);
        command.args(kubectl.words);
        if let Some(path) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(path);
        }
        if let Some(context) = &self.context {
            command.args(["--context", context]);
        }
        command
    }
}

/// Copies the stderr of a program to `out` as it arrives. Returns the end of it.
fn complaints(mut stderr: impl Read, out: &mut dyn Write) -> Vec<u8> {
    let (mut tail, mut part) = (Vec::new(), [0; 1 << 10]);
    loop {
        let read = match stderr.read(&mut part) {
            Ok(0) => return tail,
            Ok(read) => part.get(..read).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return tail,
        };
        // A closed stderr is ignored: there is nowhere to report it.
        let _ = out.write_all(read).and_then(|()| out.flush());
        tail.extend_from_slice(read);
        tail.drain(..tail.len().saturating_sub(TAIL));
    }
}

/// Whether the exit code comes from the program in the container: kubectl prints that as its last line (client-go
/// 1.20, tools/remotecommand/v4.go).
fn is_theirs(complaints: &[u8]) -> bool {
    let last = complaints.trim_ascii_end().rsplit(|byte| *byte == b'\n').next();
    last.is_some_and(|last| last.starts_with(b"command terminated with exit code "))
}

/// The stdout of kubectl. Its stderr is copied to ours. If it fails, its last line there is the error.
fn said(mut command: Command) -> Result<String, Failure> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(cannot_run)?;
    let (told, came) = mpsc::sync_channel(1);
    if let Some(stderr) = child.stderr.take() {
        // Nobody may be waiting any more.
        let copy = move || drop(told.send(complaints(stderr, &mut io::stderr())));
        thread::Builder::new().spawn(copy).map_err(cannot_run)?;
    }
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(LONGEST + 1).read_to_string(&mut said);
        read.map_err(|error| anyhow::anyhow!("cannot read the output of kubectl: {error}"))?;
    }
    let status = child.wait().map_err(cannot_run)?;
    let tail = came.recv_timeout(LAST_WORDS).unwrap_or_default();
    if said.len() as u64 > LONGEST {
        // Whoever is missing from the part that was read must not be taken for absent.
        Err(anyhow::anyhow!("kubectl prints more than {} MiB", LONGEST >> 20).into())
    } else if status.success() {
        Ok(said)
    } else {
        let why = node::last_line(&tail).unwrap_or_else(|| "it said nothing".to_owned());
        Err(anyhow::anyhow!("kubectl failed: {why}").into())
    }
}

fn cannot_run(error: io::Error) -> Failure {
    anyhow::anyhow!("cannot run kubectl: {error}: is it in the PATH?").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kubectl that records its arguments.
    fn run(line: &str, node: &str, agents: &str) -> (Result<u8, Failure>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let (program, log) = (dir.path().join("kubectl"), dir.path().join("log"));
        let script = format!(
            "printf '%s\\n' \"$*\" >> '{}'\ncase \"$*\" in\n*'get pods '*) printf '{agents}' ;;\n\
             *'get pod '*) printf 'shop\\nweb-0\\n{node}\\n' ;;\n\
             *' -- ipwatch fail '*) echo \"command terminated with exit code ${{*##* }}\" >&2; exit \"${{*##* }}\" ;;\n\
             *' -- ipwatch refused '*) echo 'Error from server (Forbidden)' >&2; exit \"${{*##* }}\" ;;\nesac\n",
            log.display()
        );
        std::fs::write(&program, script).unwrap();
        let Ok(Meant::Plugin(plugin)) = read(words(line)) else { panic!("{line}") };
        let ended =
            plugin.run(Program { program: OsStr::new("sh"), words: &[program.as_os_str()] });
        let log = crate::bounded::read_text(&log, 1 << 20).unwrap_or_default();
        (ended, log.lines().map(str::to_owned).collect())
    }

    fn words(line: &str) -> Vec<OsString> {
        std::iter::once(NAME).chain(line.split_whitespace()).map(OsString::from).collect()
    }

    fn asked(line: &str) -> String {
        let (ended, log) = run(line, "node-1", "ipwatch-x\\n");
        assert_eq!(ended.unwrap(), 0);
        log.last().unwrap().clone()
    }

    #[test]
    fn the_ipwatch_on_its_node_is_asked() {
        let exec = "exec -n ipwatch ipwatch-x -c ipwatch -- ipwatch";
        assert_eq!(asked("web-0"), format!("{exec} query pod shop/web-0"));
        assert_eq!(asked("web-0 -o tree"), format!("{exec} query pod shop/web-0 -o tree"));
        assert_eq!(asked("web-0 query findings --all"), format!("{exec} query findings --all"));
        let (_, log) = run(
            "--context c --kubeconfig k --ipwatch-namespace mon -n shop pod/web-0 fail",
            "node-1",
            "a\\nb\\n",
        );
        assert!(
            log[0].starts_with(
                "--kubeconfig k --context c --request-timeout=30s get pod -n shop -o jsonpath="
            ),
            "{log:?}"
        );
        assert!(log[0].ends_with(" -- web-0"), "{log:?}");
        assert!(log[1].contains("get pods -n mon -l app.kubernetes.io/name=ipwatch --field-selector spec.nodeName=node-1,status.phase=Running"));
        assert_eq!(log[2], "--kubeconfig k --context c exec -n mon a -c ipwatch -- ipwatch fail");
    }

    #[test]
    fn what_leads_to_the_cluster_may_stand_before_a_pod_and_after_it() {
        let before = run("-n shop --context c --kubeconfig k web-0 -o tree", "node-1", "a\\n").1;
        assert!(before[0].contains("--kubeconfig k --context c ") && before[0].contains("-n shop"));
        for line in [
            "web-0 -n shop --context c --kubeconfig k -o tree",
            "web-0 -o tree -nshop --context=c --kubeconfig=k",
            "--context x -n=other web-0 --namespace=shop --context c -o tree --kubeconfig k",
        ] {
            assert_eq!(run(line, "node-1", "a\\n").1, before, "{line}");
        }
        // After `--`, options belong to the command.
        let exec = "exec -n ipwatch ipwatch-x -c ipwatch -- ipwatch";
        assert_eq!(asked("web-0 query -- -n"), format!("{exec} query -- -n"));
        for line in ["web-0 -n", "web-0 --context -o tree", "-n", "--context", "web-0 -n="] {
            let error = read(words(line)).unwrap_err();
            assert!(error.use_stderr() && error.to_string().contains("needs a value"), "{error}");
        }
    }

    #[test]
    fn no_option_of_ipwatch_on_a_node_is_taken_for_one_of_the_plugin() {
        fn look(command: &clap::Command, path: &str) {
            for one in command.get_arguments() {
                let long = one.get_long().map(|long| format!("--{long}"));
                let own = long.is_some_and(|long| OWN.contains(&&*long));
                assert!(!own && one.get_short() != Some('n'), "{path}: {:?}", one.get_id());
            }
            // `cluster` runs here, and `fix` refuses to run in the daemon's container.
            let there = |one: &&clap::Command| !["cluster", "fix"].contains(&one.get_name());
            for one in command.get_subcommands().filter(there) {
                look(one, &format!("{path} {}", one.get_name()));
            }
        }
        look(&crate::cli::args::Cli::command(), "ipwatch");
    }

    #[test]
    fn its_exit_code_is_that_of_ipwatch_there() {
        let code = |line: &str| run(line, "node-1", "ipwatch-x\\n").0.unwrap();
        for there in [0, 1, 2, 3, 7] {
            assert_eq!(code(&format!("web-0 fail {there}")), there);
        }
        // If kubectl itself fails, 1 must not be returned: it would mean that something was found.
        assert_eq!(code("web-0 refused 1"), crate::cli::ERROR);
        assert_eq!(code("web-0 refused 127"), 127);
    }

    #[test]
    fn what_it_complains_of_is_passed_on_and_its_end_is_kept() {
        let script = "i=0; while [ $i -lt 2000 ]; do echo \"line $i\" >&2; i=$((i+1)); done";
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = Vec::new();
        let tail = complaints(child.stderr.take().unwrap(), &mut out);
        child.wait().unwrap();
        assert_eq!(out.split(|byte| *byte == b'\n').count(), 2001);
        assert!(tail.len() == TAIL && out.ends_with(&tail));
        assert!(is_theirs(b"ipwatch: x\ncommand terminated with exit code 1\n"));
        assert!(!is_theirs(b"command terminated with exit code 1\nerror: lost\n"));
        assert!(!is_theirs(b"") && !is_theirs(b"ipwatch: command terminated with exit code 1"));
    }

    #[test]
    fn what_is_missing_is_said() {
        let error = |node: &str, agents: &str| {
            let (ended, _) = run("web-0 query ip 10.0.3.17", node, agents);
            // Nobody was asked: the exit code must not be that of an IP that is nowhere.
            let Err(failure @ Failure::Other(_)) = ended else { panic!("{ended:?}") };
            failure.to_string()
        };
        assert!(error("", "").contains("shop/web-0 has no node yet"));
        assert!(error("node-1", "").contains("no pod of ipwatch runs on node node-1"));
        let Ok(Meant::Plugin(plugin)) = read(words("web-0")) else { panic!("no plugin") };
        let absent = Program { program: OsStr::new("/nonexistent/kubectl"), words: &[] };
        let absent = plugin.run(absent).unwrap_err().to_string();
        assert!(absent.contains("is it in the PATH?"), "{absent}");
    }

    #[test]
    fn the_name_decides_and_the_cluster_is_the_programs_own() {
        assert!(is_meant(Some(OsStr::new("/usr/bin/kubectl-ipwatch"))));
        assert!(!is_meant(Some(OsStr::new("/usr/bin/ipwatch"))) && !is_meant(None));
        let to = "ipwatch cluster scan --kubeconfig k --context c -o json";
        for (line, meant) in [
            ("cluster scan -o json", "ipwatch cluster scan -o json"),
            ("--kubeconfig k --context c cluster scan -o json", to),
            ("--kubeconfig=k cluster scan --context c -o json", to),
            ("cluster scan -o json --kubeconfig k --context=c", to),
            ("--context x cluster scan --kubeconfig k --context c -o json", to),
            ("cluster --help", "ipwatch cluster --help"),
            ("--context c cluster", "ipwatch cluster"),
        ] {
            let Ok(Meant::Whole(whole)) = read(words(line)) else { panic!("{line}") };
            assert_eq!(whole, meant.split(' ').collect::<Vec<_>>(), "{line}");
        }
        for line in ["-n shop cluster scan", "cluster scan --ipwatch-namespace x"] {
            let error = read(words(line)).unwrap_err().to_string();
            assert!(error.contains("all namespaces"), "{error}");
        }
        for line in ["web-0 cluster", "pod/cluster", "shop/cluster -n x", "-n shop po/cluster"] {
            assert!(matches!(read(words(line)), Ok(Meant::Plugin(_))), "{line}");
        }
    }
}
