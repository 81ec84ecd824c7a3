//! `kubectl ipwatch findings` and `kubectl ipwatch ip`: asks the ipwatch of every node, some at once.
//!
//! A node that does not answer in time is named: nothing is known about it. So is a node whose answer has no room beside
//! those of the others, and a node without a pod of ipwatch.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use jiff::Timestamp;
use tokio::time::Instant;

use super::node::{self, Silence};
use super::room::{Allowance, Room};
use super::{CONTAINER, LABEL, Own, Program, said};
use crate::cli::args::Format;
use crate::cli::output::{self, Out};
use crate::cli::show::fleet;
use crate::cli::{ERROR, FINDINGS, Failure, NOT_FOUND};
use crate::contract::{Document, Fleet, FleetNode, SCHEMA};

/// Words that begin a question to all nodes. A pod of such a name is `pod/findings`.
pub(super) const WORDS: [&str; 2] = ["findings", "ip"];

/// Maximum size of the answers of all nodes together, in bytes: of 3,000 nodes, 87 KiB each.
const ROOM: u64 = 256 << 20;

/// Asks the ipwatch of every node.
#[derive(Debug, Parser)]
#[command(name = "kubectl ipwatch", bin_name = "kubectl ipwatch", version, max_term_width = 100)]
#[command(args_override_self = true)]
pub(in crate::cli) struct Asked {
    #[command(flatten)]
    own: Own,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Findings of every node, the worst first
    #[command(after_help = "\
Exit codes: 0 nothing is wrong, 1 findings, 2 no findings but some nodes did not answer or the nodes cannot be listed, or \
an error.

  kubectl ipwatch findings -A              of all namespaces, and those that are about no pod
  kubectl ipwatch findings -n shop         about pods of one namespace
  kubectl ipwatch findings -A -o json      what each node answered, and which did not")]
    Findings {
        /// Of all namespaces, and those that are about no pod
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Show consequences and every cause, not a page of them
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        how: How,
    },
    /// Where an IP is up, which pod has it, since when, and who had it before
    #[command(after_help = "\
Exit codes: 0 it is up or reserved somewhere, 3 nowhere, 2 nowhere but some nodes did not answer or the nodes cannot be \
listed, or an error.

  kubectl ipwatch ip 10.0.3.17")]
    Ip {
        /// The IP
        ip: IpAddr,
        #[command(flatten)]
        how: How,
    },
}

#[derive(Debug, clap::Args)]
struct How {
    /// Nodes that are asked at once
    #[arg(long, value_name = "NUMBER", default_value = "16")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=128))]
    at_once: u8,
    /// Seconds that each node has to answer
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=600))]
    timeout: u16,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shape {
    Table,
    Json,
}

/// A pod of ipwatch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Agent {
    node: String,
    pod: String,
    phase: String,
}

/// What a node without a pod of ipwatch is said to be silent for.
const NO_POD: &str = "no pod of ipwatch is on it";
/// Nodes on which the DaemonSet can run.
const NOT_WINDOWS: &str = "kubernetes.io/os!=windows";

/// Parses the command line of a question to all nodes.
pub(super) fn read(
    own: Vec<(&'static str, OsString)>,
    rest: Vec<OsString>,
) -> Result<Asked, clap::Error> {
    let own = own.into_iter().flat_map(|(name, value)| [OsString::from(name), value]);
    let words = std::iter::once(OsString::from(super::NAME)).chain(own).chain(rest);
    Asked::try_parse_from(words)
}

/// Asks, and prints the answers.
pub(in crate::cli) fn main(asked: &Asked) -> ExitCode {
    let kubectl = Program { program: "kubectl".as_ref(), words: &[] };
    let mut print = |out: &Out, text: &str| out.raw(text.as_bytes());
    match asked.run(kubectl, ROOM, &mut print) {
        Ok(code) => ExitCode::from(code),
        Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Err(failure) => crate::cli::failed(&failure),
    }
}

/// How an answer is printed.
type Print<'a> = dyn FnMut(&Out, &str) -> Result<(), Failure> + 'a;

impl Asked {
    fn how(&self) -> &How {
        match &self.what {
            What::Findings { how, .. } | What::Ip { how, .. } => how,
        }
    }

    /// `room`: the maximum size of the answers of all nodes.
    fn run(&self, kubectl: Program<'_>, room: u64, print: &mut Print<'_>) -> Result<u8, Failure> {
        let format = match self.how().output {
            Shape::Table => Format::Table,
            Shape::Json => Format::Json,
        };
        let out = Out::of(format);
        let namespace = match self.what {
            What::Findings { all_namespaces: false, .. } => Some(self.namespace(kubectl)?),
            _ => None,
        };
        let agents = self.agents(kubectl)?;
        if agents.is_empty() {
            // Not NotFound: nobody was asked, and its exit code says that an IP is nowhere.
            return Err(anyhow::anyhow!(
                "no pod with {LABEL} is in namespace {}: is the DaemonSet of ipwatch there? \
                 --ipwatch-namespace names another namespace",
                self.own.ipwatch_namespace
            )
            .into());
        }
        let (others, nodes_unlisted) = match self.nodes(kubectl) {
            Ok(mut nodes) => {
                for agent in &agents {
                    nodes.remove(&agent.node);
                }
                (nodes, None)
            }
            Err(why) => (BTreeSet::new(), Some(why.to_string())),
        };
        let mut nodes = self.ask_all(kubectl, agents, room);
        nodes.extend(others.into_iter().map(|node| FleetNode {
            node,
            pod: String::new(),
            error: Some(NO_POD.to_owned()),
            documents: Vec::new(),
        }));
        nodes.sort_by(|a, b| (&a.node, &a.pod).cmp(&(&b.node, &b.pod)));
        let taken_at = Timestamp::now().to_string();
        let fleet = Fleet { schema: SCHEMA.to_owned(), taken_at, nodes, nodes_unlisted };
        let (text, code) = self.answer(&fleet, namespace.as_deref(), &out)?;
        print(&out, &text)?;
        Ok(code)
    }

    /// The text in the chosen format, and the exit code.
    fn answer(
        &self,
        fleet: &Fleet,
        namespace: Option<&str>,
        out: &Out,
    ) -> Result<(String, u8), Failure> {
        let silent =
            fleet.nodes_unlisted.is_some() || fleet.nodes.iter().any(|node| node.error.is_some());
        let (text, found, nothing) = match &self.what {
            What::Findings { all, .. } => {
                let flags = self.own.flags();
                let agents =
                    fleet::Agents { namespace: &self.own.ipwatch_namespace, flags: &flags };
                let view = out.view_at(&fleet.taken_at, *all);
                let (text, found) = fleet::findings(fleet, namespace, &agents, view);
                (text, found.then_some(FINDINGS), 0)
            }
            What::Ip { ip, .. } => {
                let (text, found) = fleet::ip(fleet, *ip, out.view_at(&fleet.taken_at, false));
                (text, found.then_some(0), NOT_FOUND)
            }
        };
        let code = found.unwrap_or(if silent { ERROR } else { nothing });
        let text = match out.format {
            Format::Json => {
                let text = serde_json::to_string_pretty(fleet).map_err(anyhow::Error::from)?;
                output::quiet(&(text + "\n"))
            }
            _ => text,
        };
        Ok((text, code))
    }

    /// The namespace that was named, or that of the context.
    fn namespace(&self, kubectl: Program<'_>) -> Result<String, Failure> {
        if let Some(namespace) = &self.own.namespace {
            return Ok(namespace.clone());
        }
        let mut command = self.own.kubectl(kubectl);
        command.args(["config", "view", "--minify", "-o", "jsonpath={..namespace}"]);
        let told = said(command)?;
        let name = told.trim();
        Ok(if name.is_empty() { "default" } else { name }.to_owned())
    }

    /// Every pod of ipwatch that has a node, by node.
    fn agents(&self, kubectl: Program<'_>) -> Result<Vec<Agent>, Failure> {
        let mut command = self.own.asking(kubectl);
        command.args(["get", "pods", "-n", &self.own.ipwatch_namespace, "-l", LABEL]);
        let fields = r#"{.spec.nodeName}{"\t"}{.metadata.name}{"\t"}{.status.phase}{"\n"}"#;
        command.args(["-o", &format!("jsonpath={{range .items[*]}}{fields}{{end}}")]);
        Ok(agents(&said(command)?))
    }

    /// Every node on which a pod of ipwatch could be.
    fn nodes(&self, kubectl: Program<'_>) -> Result<BTreeSet<String>, Failure> {
        let mut command = self.own.asking(kubectl);
        command.args(["get", "nodes", "-l", NOT_WINDOWS]);
        command.args(["-o", r#"jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}"#]);
        let told = said(command)?;
        Ok(told.lines().filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// The answers of these nodes.
    fn ask_all(&self, kubectl: Program<'_>, agents: Vec<Agent>, room: u64) -> Vec<FleetNode> {
        let all = agents.len();
        let room = &Room::new(room, all);
        let left = Mutex::new(VecDeque::from(agents));
        let (told, answers) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..usize::from(self.how().at_once).min(all) {
                let (told, left) = (told.clone(), &left);
                scope.spawn(move || {
                    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    while let Some(agent) = next() {
                        let allowance = Arc::new(room.allow());
                        let answered = self.ask(kubectl, &agent, &allowance);
                        let Agent { node, pod, .. } = agent;
                        let (documents, error) = match answered {
                            Ok(documents) => {
                                allowance.keep();
                                (documents, None)
                            }
                            Err(why) => (Vec::new(), Some(why.to_string())),
                        };
                        // The receiver lives as long as this scope.
                        let _ = told.send(FleetNode { node, pod, error, documents });
                    }
                });
            }
            drop(told);
            let mut progress = Progress::new(all);
            let mut nodes = Vec::with_capacity(all);
            for node in answers {
                progress.step(node.error.is_some());
                nodes.push(node);
            }
            progress.clear();
            nodes
        })
    }

    fn ask(
        &self,
        kubectl: Program<'_>,
        agent: &Agent,
        allowance: &Arc<Allowance>,
    ) -> Result<Vec<Document>, Silence> {
        if agent.phase != "Running" {
            return Err(Silence::Refused(format!("its pod {} is {}", agent.pod, agent.phase)));
        }
        let patience = Duration::from_secs(self.how().timeout.into());
        let deadline = Instant::now() + patience;
        let ask = |words: &[&str]| {
            node::ask(self.exec(kubectl, agent, words), deadline, patience, allowance)
        };
        match &self.what {
            What::Findings { .. } => Ok(vec![ask(&["findings"])?]),
            What::Ip { ip, .. } => {
                let ip = ip.to_string();
                ["ip", "history", "ipam"].iter().map(|what| ask(&[what, &ip])).collect()
            }
        }
    }

    fn exec(&self, kubectl: Program<'_>, agent: &Agent, words: &[&str]) -> Command {
        let mut command = self.own.kubectl(kubectl);
        command.args(["exec", "-n", &self.own.ipwatch_namespace, &agent.pod, "-c", CONTAINER]);
        command.args(["--", "ipwatch", "query"]).args(words).args(["-o", "json"]);
        command
    }
}

/// Lines of node, pod and phase. A pod without a node has not been scheduled: its node is one without a pod.
fn agents(told: &str) -> Vec<Agent> {
    let agent = |line: &str| {
        let mut words = line.split('\t').map(str::to_owned);
        let (node, pod, phase) = (words.next()?, words.next()?, words.next()?);
        (!node.is_empty()).then_some(Agent { node, pod, phase })
    };
    let mut agents: Vec<Agent> = told.lines().filter_map(agent).collect();
    // Where an old pod of the DaemonSet has not gone yet, the one that runs is asked.
    agents.sort_by(|a, b| {
        let of = |agent: &Agent| (agent.node.clone(), agent.phase != "Running");
        of(a).cmp(&of(b))
    });
    agents.dedup_by(|later, first| later.node == first.node);
    agents
}

/// One line on a terminal, rewritten as nodes answer.
struct Progress {
    all: usize,
    asked: usize,
    silent: usize,
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    const EVERY: Duration = Duration::from_millis(100);

    fn new(all: usize) -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self { all, asked: 0, silent: 0, shown: None, is_terminal }
    }

    fn step(&mut self, silent: bool) {
        self.asked += 1;
        self.silent += usize::from(silent);
        if self.is_terminal && self.shown.is_none_or(|at| at.elapsed() >= Self::EVERY) {
            self.shown = Some(Instant::now());
            let Self { all, asked, silent, .. } = self;
            let _ = write!(io::stderr(), "\r{asked} of {all} nodes asked, {silent} did not answer");
        }
    }

    fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
pub(in crate::cli) mod tests;
