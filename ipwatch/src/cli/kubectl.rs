//! `kubectl ipwatch …`: finds the node of a pod and asks the ipwatch there.
//!
//! What kubectl finds as `kubectl-ipwatch` in the PATH is this program under another name. It asks by kubectl
//! itself, which has the namespace, the context and the credentials, those of a program among them.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;

use super::Failure;

/// The name under which kubectl finds it.
const NAME: &str = "kubectl-ipwatch";
/// What the manifests and the chart call its pods, and the container in them.
const LABEL: &str = "app.kubernetes.io/name=ipwatch";
const CONTAINER: &str = "ipwatch";
/// Longest answer of kubectl that is read.
const LONGEST: u64 = 1 << 20;

/// Which IP a pod has, and who holds it: asked of the ipwatch on its node.
#[derive(Debug, Parser)]
#[command(name = "kubectl ipwatch", bin_name = "kubectl ipwatch", version, max_term_width = 100)]
#[command(after_help = "\
`kubectl ipwatch POD` is `ipwatch query pod` on its node; options after POD are options of that, and any \
other words are a command of their own: `kubectl ipwatch web-0 query findings`.

`kubectl ipwatch cluster scan` looks at the whole cluster: see `kubectl ipwatch cluster scan --help`.")]
struct Plugin {
    /// The pod's namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// As of kubectl
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// As of kubectl
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Where the pods of ipwatch are
    #[arg(long, value_name = "NAME", default_value = "ipwatch")]
    ipwatch_namespace: String,
    /// NAME, or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pod: String,
    /// For `ipwatch` on its node
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// How kubectl is run.
#[derive(Debug, Clone, Copy)]
struct Program<'a> {
    program: &'a OsStr,
    /// Before all others.
    words: &'a [&'a OsStr],
}

/// Whether this process was started by that name.
pub(super) fn is_meant(program: Option<&OsStr>) -> bool {
    program.map(Path::new).and_then(Path::file_name).is_some_and(|name| name == NAME)
}

/// The command line of the whole program, where that is meant: `kubectl ipwatch cluster scan`.
pub(super) fn whole(args: &[OsString]) -> Option<Vec<OsString>> {
    let first = args.get(1).filter(|word| *word == "cluster")?;
    let rest = args.iter().skip(2).cloned();
    Some([OsString::from("ipwatch"), first.clone()].into_iter().chain(rest).collect())
}

/// Runs this command line.
pub(super) fn main(args: Vec<OsString>) -> Result<ExitCode, clap::Error> {
    let plugin = Plugin::try_parse_from(args)?;
    Ok(match plugin.run(Program { program: OsStr::new("kubectl"), words: &[] }) {
        Ok(code) => code,
        Err(failure) => super::failed(&failure),
    })
}

impl Plugin {
    fn run(&self, kubectl: Program<'_>) -> Result<ExitCode, Failure> {
        let (namespace, name, node) = self.pod(kubectl)?;
        let agent = self.agent(kubectl, &node)?;
        let mut command = self.kubectl(kubectl);
        command.args(["exec", "-n", &self.ipwatch_namespace, &agent, "-c", CONTAINER]);
        if io::stdin().is_terminal() && io::stdout().is_terminal() {
            command.arg("-it");
        }
        command.args(["--", "ipwatch"]);
        let pod = format!("{namespace}/{name}");
        if self.args.first().is_none_or(|first| first.starts_with('-')) {
            command.args(["query", "pod", &pod]);
        }
        command.args(&self.args);
        let status = command.status().map_err(cannot_run)?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(ExitCode::from(code.unwrap_or(super::ERROR)))
    }

    /// Its namespace, name and node.
    fn pod(&self, kubectl: Program<'_>) -> Result<(String, String, String), Failure> {
        let named = ["pod/", "pods/", "po/"].iter().find_map(|kind| self.pod.strip_prefix(kind));
        let (namespace, name) = match (named, self.pod.split_once('/')) {
            (Some(name), _) => (self.namespace.as_deref(), name),
            (None, Some((namespace, name))) => (Some(namespace), name),
            (None, None) => (self.namespace.as_deref(), &*self.pod),
        };
        let mut command = self.asking(kubectl);
        command.args(["get", "pod"]);
        if let Some(namespace) = namespace {
            command.args(["-n", namespace]);
        }
        let fields = r#"{.metadata.namespace}{"\n"}{.metadata.name}{"\n"}{.spec.nodeName}{"\n"}"#;
        command.args(["-o", &format!("jsonpath={fields}"), "--", name]);
        let said = said(command)?;
        let mut lines = said.lines().map(str::to_owned);
        let (Some(namespace), Some(name)) = (lines.next(), lines.next()) else {
            return Err(anyhow::anyhow!("kubectl says nothing of pod {}", self.pod).into());
        };
        match lines.next().filter(|node| !node.is_empty()) {
            Some(node) => Ok((namespace, name, node)),
            None => Err(Failure::NotFound(format!(
                "pod {namespace}/{name} has no node yet: `kubectl describe pod` says why it is not scheduled"
            ))),
        }
    }

    /// The ipwatch of a node.
    fn agent(&self, kubectl: Program<'_>, node: &str) -> Result<String, Failure> {
        let mut command = self.asking(kubectl);
        let running = format!("spec.nodeName={node},status.phase=Running");
        command.args(["get", "pods", "-n", &self.ipwatch_namespace, "-l", LABEL]);
        command.args(["--field-selector", &running]);
        command.args(["-o", r#"jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}"#]);
        let said = said(command)?;
        let first = said.lines().find(|line| !line.is_empty()).map(str::to_owned);
        first.ok_or_else(|| {
            Failure::NotFound(format!(
                "no pod of ipwatch runs on node {node} (in namespace {}, with {LABEL}): is its DaemonSet there? \
                 --ipwatch-namespace names another namespace",
                self.ipwatch_namespace
            ))
        })
    }

    /// For a question, which does not wait for ever.
    fn asking(&self, kubectl: Program<'_>) -> Command {
        let mut command = self.kubectl(kubectl);
        command.arg("--request-timeout=30s");
        command
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

/// What kubectl answers. What it complains of stands on stderr.
fn said(mut command: Command) -> Result<String, Failure> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(cannot_run)?;
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(LONGEST).read_to_string(&mut said);
        read.map_err(|error| anyhow::anyhow!("cannot read what kubectl says: {error}"))?;
    }
    let status = child.wait().map_err(cannot_run)?;
    if status.success() {
        Ok(said)
    } else {
        Err(anyhow::anyhow!("kubectl does not tell: see above").into())
    }
}

fn cannot_run(error: io::Error) -> Failure {
    anyhow::anyhow!("cannot run kubectl: {error}: is it in the PATH?").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kubectl that writes down how it was called.
    fn run(line: &str, node: &str, agents: &str) -> (Result<ExitCode, Failure>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let (program, log) = (dir.path().join("kubectl"), dir.path().join("log"));
        let script = format!(
            "printf '%s\\n' \"$*\" >> '{}'\ncase \"$*\" in\n*'get pods '*) printf '{agents}' ;;\n\
             *'get pod '*) printf 'shop\\nweb-0\\n{node}\\n' ;;\n*' -- ipwatch fail'*) exit 7 ;;\nesac\n",
            log.display()
        );
        std::fs::write(&program, script).unwrap();
        let words = std::iter::once("kubectl-ipwatch").chain(line.split_whitespace());
        let plugin = Plugin::try_parse_from(words).unwrap();
        let ended =
            plugin.run(Program { program: OsStr::new("sh"), words: &[program.as_os_str()] });
        let log = crate::bounded::read_text(&log, 1 << 20).unwrap_or_default();
        (ended, log.lines().map(str::to_owned).collect())
    }

    fn asked(line: &str) -> String {
        let (ended, log) = run(line, "node-1", "ipwatch-x\\n");
        assert_eq!(format!("{:?}", ended.unwrap()), format!("{:?}", ExitCode::SUCCESS));
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
    fn its_exit_code_is_that_of_ipwatch_there() {
        let (ended, _) = run("web-0 fail", "node-1", "ipwatch-x\\n");
        assert_eq!(format!("{:?}", ended.unwrap()), format!("{:?}", ExitCode::from(7)));
    }

    #[test]
    fn what_is_missing_is_said() {
        let error = |node: &str, agents: &str| {
            let (ended, _) = run("web-0", node, agents);
            let Err(Failure::NotFound(text)) = ended else { panic!("{ended:?}") };
            text
        };
        assert!(error("", "").contains("shop/web-0 has no node yet"));
        assert!(error("node-1", "").contains("no pod of ipwatch runs on node node-1"));
        let plugin = Plugin::try_parse_from(["kubectl-ipwatch", "web-0"]).unwrap();
        let absent = Program { program: OsStr::new("/nonexistent/kubectl"), words: &[] };
        let absent = plugin.run(absent).unwrap_err().to_string();
        assert!(absent.contains("is it in the PATH?"), "{absent}");
    }

    #[test]
    fn the_name_decides_and_the_cluster_is_the_programs_own() {
        assert!(is_meant(Some(OsStr::new("/usr/bin/kubectl-ipwatch"))));
        assert!(!is_meant(Some(OsStr::new("/usr/bin/ipwatch"))) && !is_meant(None));
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            whole(&words("kubectl-ipwatch cluster scan -o json")),
            Some(words("ipwatch cluster scan -o json"))
        );
        assert_eq!(whole(&words("kubectl-ipwatch web-0 cluster")), None);
    }
}
