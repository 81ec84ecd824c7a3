//! The command line as clap sees it: every command, and the options of most.

mod cni;
mod global;
mod query;
mod time;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::engine::ArgValueCandidates as From;

pub(super) use self::cni::{CniCommand, CniPlaces, CniWhat};
pub(super) use self::global::{Format, Global, Output};
pub(super) use self::query::{Earlier, Observation, Query, Within};
use self::time::{duration, grace, seconds, settle};
use super::{complete, examples};

/// The command that writes files.
const REPORT: &str = "report";

/// Which IP sits in which network namespace, and who holds it there.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 fine, 1 `scan` or `cluster scan` found something, `check` says no or `fix` skipped something, 2 error or usage, \
                  3 not found, \
                  4 `check --strict` in no pool."
)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

impl Cli {
    /// This command line, the program's name first.
    ///
    /// # Errors
    /// Help and version, which are none, and whatever cannot be meant.
    pub(super) fn read(args: Vec<OsString>) -> Result<Self, clap::Error> {
        Self::try_parse_from(args)?.checked()
    }

    /// What clap cannot know: only addresses and their holders make a tree.
    fn checked(self) -> Result<Self, clap::Error> {
        let Global { output, .. } = &self.global;
        let tree = match &self.command {
            Command::Query(query) => query.what.has_tree(),
            _ => false,
        };
        if *output == Output::Format(Format::Tree) && !tree {
            let help = "there is no tree of this: `-o tree` goes with `query ip`, `query netns`, \
                        `query pod` and `query pid`";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, help));
        }
        Ok(self)
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Monitor this node until stopped
    #[command(after_help = examples::RUN)]
    Run(Run),
    /// Look once, without a daemon; exit code 1 if something is wrong
    #[command(after_help = examples::SCAN)]
    Scan(Scan),
    /// Check what no single node can know, through the API server
    #[command(after_help = examples::CLUSTER)]
    Cluster(ClusterCommand),
    /// Ask the daemon
    #[command(after_help = examples::QUERY)]
    Query(Query),
    /// Check whether an IP can be given to a new container on this node; exit code 1 if not
    #[command(after_help = examples::CHECK)]
    Check(Check),
    /// Follow findings and addresses as they change
    #[command(after_help = examples::WATCH)]
    Watch(Watched),
    /// Show the node on one screen as it changes: ranges, findings, addresses, conflicts, sources
    #[command(after_help = examples::TOP)]
    Top,
    /// Explain a finding: what happened, what will fail next, and what to do
    #[command(after_help = examples::EXPLAIN)]
    Explain(Explain),
    /// Do what a finding's FIX says, if that is certain: shows the plan, asks, and checks each item again
    #[command(after_help = examples::FIX)]
    Fix(Fix),
    /// Write a report of a finding, an IP or a pod: one file for the incident channel or the post-mortem
    #[command(name = REPORT, after_help = examples::REPORT)]
    Report(Reported),
    /// Acknowledge a finding: no pages until it resolves or --for expires
    #[command(after_help = examples::ACK)]
    Ack(Acked),
    /// Withdraw an acknowledgement: the finding may page again
    #[command(after_help = examples::UNACK)]
    Unack(Unacked),
    /// Show what can be seen on this node, and why not more
    #[command(after_help = examples::DOCTOR)]
    Doctor(Doctor),
    /// Show the configuration: every key, whether a file is valid, what a daemon started from this shell would use
    #[command(after_help = examples::CONFIG)]
    Config(ConfigCommand),
    /// Prevent that pods are given IPs that are still up: `ipwatch-ipam` in this node's CNI networks
    #[command(after_help = examples::CNI)]
    Cni(CniCommand),
    /// Record what the sources see, one JSON document per line, for `replay`
    #[command(after_help = examples::RECORD)]
    Record(Record),
    /// Show what is found in a recording
    #[command(after_help = examples::REPLAY)]
    Replay(Replay),
    /// Print a completion script
    #[command(after_help = examples::COMPLETIONS)]
    Completions(Completions),
    /// Write manual pages, one per command
    #[command(hide = true)]
    ManPages(ManPages),
}

impl Command {
    /// Whether it reads the node, or talks with its daemon.
    pub(super) fn is_about_the_node(&self) -> bool {
        !matches!(
            self,
            Command::Replay(_)
                | Command::Cluster(_)
                | Command::Completions(_)
                | Command::ManPages(_)
                | Command::Config(ConfigCommand { what: ConfigWhat::Default })
        )
    }
}

/// The daemon's configuration.
#[derive(Debug, Args)]
pub(super) struct Configured {
    /// Configuration file [default: /etc/ipwatch/ipwatch.toml where it exists]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Doctor {
    #[command(flatten)]
    pub(super) configured: Configured,
    /// First generate each event once, in network namespaces of ipwatch's own, and check that it is
    /// reported
    #[arg(long)]
    pub(super) canary: bool,
}

#[derive(Debug, Args)]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    pub(super) what: ConfigWhat,
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigWhat {
    /// Print a file with every key, its meaning and its default, commented out
    Default,
    /// Check a file; if it is invalid: exit code 2, and one line that says where and why
    Check {
        /// The file [default: /etc/ipwatch/ipwatch.toml]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print what a daemon started from this shell would use; secrets are not shown
    Show(Configured),
}

#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) configured: Configured,
    /// Directory of findings and history
    #[arg(long, value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Scan {
    #[command(flatten)]
    pub(super) configured: Configured,
    /// How long a process may take to exit before it counts as stuck, such as 2s or 1m30s
    #[arg(long, value_name = "TIME", value_parser = grace)]
    pub(super) grace: Option<Duration>,
    /// Include consequences, not only their causes
    #[arg(long)]
    pub(super) all: bool,
}

#[derive(Debug, Args)]
pub(super) struct ClusterCommand {
    #[command(subcommand)]
    pub(super) what: ClusterWhat,
}

#[derive(Debug, Subcommand)]
pub(super) enum ClusterWhat {
    /// Look twice, without a daemon, for IPs allocated to pods and nodes that are gone, and IPs that two
    /// pods have; exit code 1 if something is wrong
    Scan(ClusterScan),
}

#[derive(Debug, Args)]
pub(super) struct ClusterScan {
    /// A kubeconfig [default: as KUBECONFIG says, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// One of its contexts [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Time between the two looks, such as 5s, so that what is under way is over by then
    #[arg(long, value_name = "TIME", value_parser = settle, default_value = "5s")]
    pub(super) settle: Duration,
}

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The IP
    #[arg(value_name = "IP", add = From::new(complete::ips))]
    pub(super) ip: IpAddr,
    /// Ignore what this container already has: its id, or the first 12 characters or more
    #[arg(long, value_name = "ID")]
    pub(super) container: Option<String>,
    /// Exit with 4 if nobody has the IP but no IPAM pool of this node contains it
    #[arg(long)]
    pub(super) strict: bool,
}

#[derive(Debug, Args)]
pub(super) struct Watched {
    #[command(subcommand)]
    pub(super) what: Option<Followed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub(super) enum Followed {
    /// ARP and NDP entries as they change, and findings about them
    Neigh,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// A finding's id or the beginning of it, a finding code (prints its runbook), an IP,
    /// NAMESPACE/NAME of a pod, a netns, or an error of kubelet or a runtime as it was logged; `-`
    /// reads it from stdin
    #[arg(value_name = "WHAT", required = true, add = From::new(complete::findings_and_codes))]
    pub(super) what: Vec<String>,
    /// Show every item of proof in full
    #[arg(long)]
    pub(super) evidence: bool,
}

#[derive(Debug, Args)]
pub(super) struct Fix {
    /// The finding's id or the beginning of it, or the name of a network: every leak in it
    #[arg(value_name = "FINDING|NETWORK", add = From::new(complete::findings))]
    pub(super) what: String,
    /// Show what would be changed, and change nothing [default without a terminal]
    #[arg(long, conflicts_with = "yes")]
    pub(super) dry_run: bool,
    /// Make the changes without asking
    #[arg(short, long)]
    pub(super) yes: bool,
    /// Only reservations of these IPs
    #[arg(long, value_name = "IP", num_args = 1.., value_delimiter = ',')]
    pub(super) only: Vec<IpAddr>,
    /// Restore what the newest such run moved away, except IPs that were given out since
    #[arg(long)]
    pub(super) undo: bool,
    /// The run to undo instead of the newest one: the name of its directory
    #[arg(long, value_name = "RUN", requires = "undo")]
    pub(super) run: Option<String>,
    /// For Whereabouts and Calico in the API server: a kubeconfig of who may change their objects
    /// [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Where the record of each run, and what it moved away, is kept; for root alone
    /// [default: fix in the daemon's state directory, /var/lib/ipwatch/fix]
    #[arg(long, value_name = "DIR")]
    pub(super) record_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Reported {
    /// A finding's id or the beginning of it, an IP, or NAMESPACE/NAME of a pod
    #[arg(value_name = "FINDING|IP|POD", add = From::new(complete::findings))]
    pub(super) what: String,
    /// An HTML page that is complete in itself: no script, no request
    #[arg(long, group = "form")]
    html: bool,
    /// Markdown [default if `-o` names no file]
    #[arg(long, group = "form")]
    md: bool,
    /// JSON, schema ipwatch/v1
    #[arg(long, group = "form")]
    json: bool,
    /// Replace names and IPs, the same name by the same stand-in. Pids, numbers of netns and times
    /// stay
    #[arg(long)]
    pub(super) redact: bool,
}

/// The forms of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Html,
    Markdown,
    Json,
}

impl Reported {
    /// The form that was asked for.
    pub(super) fn form(&self) -> Option<Written> {
        [(self.html, Written::Html), (self.md, Written::Markdown), (self.json, Written::Json)]
            .into_iter()
            .find_map(|(wanted, form)| wanted.then_some(form))
    }
}

#[derive(Debug, Args)]
pub(super) struct Acked {
    /// The finding's id or the beginning of it
    #[arg(value_name = "FINDING", add = From::new(complete::findings))]
    pub(super) finding: String,
    /// For how long, such as 8h [default: until the finding resolves]
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    pub(super) lasts: Option<Duration>,
    /// Why, or who is working on it
    #[arg(long, value_name = "TEXT")]
    pub(super) note: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Unacked {
    /// The finding's id or the beginning of it
    #[arg(value_name = "FINDING", add = From::new(complete::findings))]
    pub(super) finding: String,
}

#[derive(Debug, Args)]
pub(super) struct Record {
    #[command(flatten)]
    pub(super) configured: Configured,
    /// The file to write; `-` is stdout
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(super) out: PathBuf,
    /// Stop after this long, such as 30s or 10m [default: at Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) duration: Option<Duration>,
}

#[derive(Debug, Args)]
pub(super) struct Replay {
    /// A file that `ipwatch record` wrote
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Include consequences, not only their causes
    #[arg(long)]
    pub(super) all: bool,
}

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(super) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManPages {
    /// Directory to write them to
    #[arg(value_name = "DIR")]
    pub(super) dir: PathBuf,
}

#[cfg(test)]
mod tests;
