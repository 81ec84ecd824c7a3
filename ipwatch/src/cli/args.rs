//! The command line as clap sees it.

mod global;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::engine::ArgValueCandidates as From;
use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

pub(super) use self::global::{Format, Global, Output};
use super::{complete, examples};
use crate::api::Prefix;

/// The command that writes files.
const REPORT: &str = "report";

/// The shortest grace of `scan`, as in the configuration.
const SHORTEST_GRACE: Duration = Duration::from_millis(100);

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
    /// Show the configuration: every key, whether a file is valid, what is in force
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
    /// Print what the daemon would use if it were started now; secrets are not shown
    Show(Configured),
}

#[derive(Debug, Args)]
pub(super) struct CniCommand {
    #[command(flatten)]
    pub(super) places: CniPlaces,
    #[command(subcommand)]
    pub(super) what: CniWhat,
}

/// Where everything is, if not where kubeadm, k3s, RKE2 and CRI-O have it.
#[derive(Debug, Args)]
pub(super) struct CniPlaces {
    /// Directory of network configurations, instead of the usual ones; may be given several times
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) conf_dir: Vec<PathBuf>,
    /// Directory of CNI plugins, instead of the usual ones; may be given several times
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) bin_dir: Vec<PathBuf>,
    /// Where ipwatch-ipam keeps what it has parked [default: /var/lib/cni/ipwatch-ipam]
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) parked_dir: Option<PathBuf>,
    /// Where libcni keeps results [default: /var/lib/cni/results]
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum CniWhat {
    /// Wrap the IPAM plugin of every network that can be wrapped with ipwatch-ipam
    Install {
        /// Show what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Only replace the copies of the program that are installed already, as an upgrade of the package does
        #[arg(long, conflicts_with = "dry_run")]
        program_only: bool,
    },
    /// Undo install in every network, and release all parked IPs
    Uninstall {
        /// Show what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Show which networks are wrapped, which IPs are parked, and the counters
    Status,
    /// Release parked IPs that are no longer held
    Release {
        /// Only those of this network
        #[arg(value_name = "NETWORK")]
        network: Option<String>,
        /// Also release IPs that are still held: the next pod may be given such an IP
        #[arg(long)]
        force: bool,
    },
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
pub(super) struct Query {
    /// Repeat the query whenever something changes
    #[arg(short, long, global = true)]
    pub(super) watch: bool,
    #[command(subcommand)]
    pub(super) what: Observation,
}

#[derive(Debug, Subcommand)]
pub(super) enum Observation {
    /// Addresses: one IP, those of a prefix, or all
    #[command(after_help = examples::IP)]
    Ip {
        #[command(flatten)]
        within: Within,
        /// Also show what shares a link or a router with each address
        #[arg(long, requires = "prefix")]
        reach: bool,
        /// Show loopback and link-local addresses as well
        #[arg(long)]
        all: bool,
    },
    /// Addresses of one netns, or of every netns
    #[command(after_help = examples::NETNS)]
    Netns {
        /// Its cookie, inode or nsid, or the path or name of its mount
        #[arg(value_name = "NETNS", add = From::new(complete::netns))]
        netns: Option<String>,
        /// Show loopback and link-local addresses as well
        #[arg(long)]
        all: bool,
    },
    /// Pods: their sandboxes, addresses and holders
    #[command(after_help = examples::POD)]
    Pod {
        /// NAMESPACE/NAME, NAME, or a prefix of its uid or container id
        #[arg(value_name = "POD", add = From::new(complete::pods))]
        pod: Option<String>,
        /// Show loopback and link-local addresses as well
        #[arg(long)]
        all: bool,
    },
    /// Addresses of the netns that a process holds
    #[command(after_help = examples::PID)]
    Pid {
        /// Process or thread id
        #[arg(value_name = "PID")]
        pid: u32,
        /// Show loopback and link-local addresses as well
        #[arg(long)]
        all: bool,
    },
    /// What is wrong
    #[command(after_help = examples::FINDINGS)]
    Findings {
        /// A finding's id or the beginning of it, a code, an IP, or NAMESPACE/NAME
        #[arg(value_name = "WHAT", add = From::new(complete::findings_and_codes))]
        what: Option<String>,
        /// Include resolved findings and consequences
        #[arg(long)]
        all: bool,
    },
    /// Who had an IP from when to when, newest first
    #[command(after_help = examples::HISTORY)]
    History(Earlier),
    /// ARP and NDP entries
    #[command(after_help = examples::NEIGH)]
    Neigh(Within),
    /// What IPAM can hand out, what is taken, and where it disagrees with the kernel and the runtime
    #[command(after_help = examples::IPAM)]
    Ipam {
        /// An IP or a prefix, or the name of a network: every reservation of it
        #[arg(value_name = "IP|NETWORK", add = From::new(complete::networks))]
        what: Option<String>,
    },
}

impl Observation {
    /// Whether everything is to be shown.
    pub(super) fn all(&self) -> bool {
        match self {
            Self::Ip { all, .. }
            | Self::Netns { all, .. }
            | Self::Pod { all, .. }
            | Self::Pid { all, .. }
            | Self::Findings { all, .. } => *all,
            Self::History(_) | Self::Neigh(_) | Self::Ipam { .. } => false,
        }
    }

    /// Whether the answer is one that `-o tree` draws.
    fn has_tree(&self) -> bool {
        matches!(
            self,
            Observation::Ip { .. }
                | Observation::Netns { .. }
                | Observation::Pod { .. }
                | Observation::Pid { .. }
        )
    }
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
pub(super) struct Within {
    /// An IP or a prefix, as 10.0.3.17 or 10.0.0.0/24
    #[arg(value_name = "IP", add = From::new(complete::ips))]
    pub(super) prefix: Option<Prefix>,
}

#[derive(Debug, Args)]
pub(super) struct Earlier {
    #[command(flatten)]
    pub(super) within: Within,
    /// Only IPs of this pod: NAME, NAMESPACE/NAME or its uid
    #[arg(long, value_name = "POD", add = From::new(complete::pods))]
    pub(super) pod: Option<String>,
    /// Who had it then: 03:12 (UTC, within the last day), 2026-01-01T03:12:00Z, or 10m (ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(super) at: Option<i64>,
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

/// A duration as people write it.
fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| "not a duration: write it as 500ms, 30s or 1h30m".to_owned())
}

/// A moment of the past as people write it, in milliseconds since the Unix epoch.
fn moment(text: &str) -> Result<i64, String> {
    moment_before(text, Timestamp::now()).ok_or_else(|| {
        "not a time: write it as 03:12, 2026-01-01T03:12:00Z or 10m (ago)".to_owned()
    })
}

fn moment_before(text: &str, now: Timestamp) -> Option<i64> {
    if let Ok(date) = text.parse::<Timestamp>() {
        return Some(date.as_millisecond());
    }
    // jiff would take 03:12:05 for a duration.
    if !text.contains(':') {
        let ago = i64::try_from(duration(text).ok()?.as_millis()).ok()?;
        return now.as_millisecond().checked_sub(ago);
    }
    let time: Time = text.strip_suffix('Z').unwrap_or(text).parse().ok()?;
    let today = TimeZone::UTC.to_datetime(now).date();
    let on = |day: Date| TimeZone::UTC.to_timestamp(day.to_datetime(time)).ok();
    let date = on(today).filter(|date| *date <= now).or_else(|| on(today.yesterday().ok()?))?;
    Some(date.as_millisecond())
}

/// A duration of a second at least.
fn seconds(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| match duration.as_secs() {
        0 => Err("too short: a second at least, as 8h".to_owned()),
        _ => Ok(duration),
    })
}

/// Between two looks at a cluster.
fn settle(text: &str) -> Result<Duration, String> {
    seconds(text).map_err(|error| error.replace("8h", "5s"))
}

/// A grace; two looks must fit into it.
fn grace(text: &str) -> Result<Duration, String> {
    let grace = duration(text)?;
    if grace < SHORTEST_GRACE {
        return Err(format!("too short: {SHORTEST_GRACE:?} at least, as 2s"));
    }
    Ok(grace)
}

#[cfg(test)]
mod tests;
