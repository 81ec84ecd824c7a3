//! The command line as clap sees it.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, ColorChoice, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::api::Prefix;
use crate::config::{Config, DEFAULT_SOCKET};

/// The shortest grace of `scan`, as in the configuration.
const SHORTEST_GRACE: Duration = Duration::from_millis(100);

/// Which IP sits in which network namespace, and who holds it there.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 fine, 1 `scan` or `cluster scan` found something or `check` says no, 2 error or usage, \
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
        let Global { output, .. } = self.global;
        let tree = match &self.command {
            Command::Query(query) => query.what.has_tree(),
            _ => false,
        };
        if output == Format::Tree && !tree {
            let help = "there is no tree of this: `-o tree` goes with `query ip`, `query netns`, \
                        `query pod` and `query pid`";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, help));
        }
        Ok(self)
    }
}

/// Options that every command takes.
#[derive(Debug, Clone, Args)]
pub(super) struct Global {
    /// The daemon's socket [default: /run/ipwatch/ipwatch.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// In a container: where the node's root is mounted. Every other path is one below it
    #[arg(long, global = true, value_name = "DIR", env = "IPWATCH_HOST_ROOT")]
    pub(super) host_root: Option<PathBuf>,
    /// How the answer is written
    #[arg(short, long, global = true, value_enum, default_value_t)]
    pub(super) output: Format,
    /// Rows only: no header lines, no hints
    #[arg(long, global = true)]
    pub(super) no_headers: bool,
    /// Colours: `auto` means on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(super) color: ColorChoice,
}

impl Global {
    /// Where the daemon is: as named here, or in the usual configuration where that may be read.
    pub(super) fn socket(&self) -> PathBuf {
        let configured =
            || Config::load(None).map_or(DEFAULT_SOCKET.into(), |config| config.socket);
        self.socket.clone().unwrap_or_else(configured)
    }

    /// The socket, when it was named.
    pub(super) fn named_socket(&self) -> Option<PathBuf> {
        self.socket.clone()
    }
}

/// How answers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Format {
    /// For people
    #[default]
    Table,
    /// For people with wide terminals: more columns
    Wide,
    /// Addresses and who holds them, drawn as a tree
    Tree,
    /// One document, schema ipwatch/v1
    Json,
    /// One JSON object a line for each item
    Jsonl,
    /// The same document as YAML
    Yaml,
    /// What identifies each item, one a line
    Name,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Watch this node until stopped
    Run(Run),
    /// Look once, without a daemon; exit code 1 when something is wrong
    Scan(Scan),
    /// What no node alone can know, asked of the API server
    Cluster(ClusterCommand),
    /// Ask the daemon
    Query(Query),
    /// May this IP be given to a new container on this node? Exit code 1: no, with who has it
    Check(Check),
    /// Follow findings and addresses as they come and go
    Watch(Watched),
    /// What happened, what will break and what to do
    Explain(Explain),
    /// A finding is known: it is not to page again until it is over, or the time is
    Ack(Acked),
    /// It may page again
    Unack(Unacked),
    /// What can be seen on this node, and why not more
    Doctor(Doctor),
    /// The configuration: its keys, whether a file is right, what is in force
    Config(ConfigCommand),
    /// Write down what the sources see, one JSON document a line, for `replay`
    Record(Record),
    /// Findings at the end of a recording
    Replay(Replay),
    /// A completion script on stdout
    Completions(Completions),
    /// Manual pages, one for each command
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
    /// First make each event once, in network namespaces of ipwatch's own, and see whether it is told
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
    /// A file with every key, what it means and its default, commented out
    Default,
    /// Is a file right? If not: exit code 2, and one line that says where and what
    Check {
        /// The file [default: /etc/ipwatch/ipwatch.toml]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// What would be in force if the daemon were started now; secrets are not shown
    Show(Configured),
}

#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) configured: Configured,
    /// Where findings and history are kept
    #[arg(long, value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Scan {
    #[command(flatten)]
    pub(super) configured: Configured,
    /// How long a process may take to exit before it counts as stuck, as 2s or 1m30s
    #[arg(long, value_name = "TIME", value_parser = grace)]
    pub(super) grace: Option<Duration>,
    /// Consequences too, not only their causes
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
    /// Look twice, without a daemon: IPs allocated for pods and nodes that are gone, IPs that two pods
    /// have; exit code 1 when something is wrong
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
    /// Between the two looks, as 5s: what is under way is to be over by then
    #[arg(long, value_name = "TIME", value_parser = settle, default_value = "5s")]
    pub(super) settle: Duration,
}

#[derive(Debug, Args)]
pub(super) struct Query {
    /// Ask again whenever something changes
    #[arg(short, long, global = true)]
    pub(super) watch: bool,
    #[command(subcommand)]
    pub(super) what: Observation,
}

#[derive(Debug, Subcommand)]
pub(super) enum Observation {
    /// Addresses: one IP, those of a prefix, or all
    Ip {
        #[command(flatten)]
        within: Within,
        /// What shares its link or its router with each of them
        #[arg(long, requires = "prefix")]
        reach: bool,
    },
    /// Addresses of one netns, or of every netns
    Netns {
        /// Its cookie, inode or nsid, or the path or name of its mount
        #[arg(value_name = "NETNS")]
        netns: Option<String>,
    },
    /// Pods: their sandboxes, addresses and holders
    Pod {
        /// NAMESPACE/NAME, NAME, or a prefix of its uid or container id
        #[arg(value_name = "POD")]
        pod: Option<String>,
    },
    /// Addresses of the netns that a process holds
    Pid {
        /// Process or thread id
        #[arg(value_name = "PID")]
        pid: u32,
    },
    /// What is wrong
    Findings {
        /// A finding's id or the beginning of it, a code, an IP, or NAMESPACE/NAME
        #[arg(value_name = "WHAT")]
        what: Option<String>,
        /// Resolved ones and consequences too
        #[arg(long)]
        all: bool,
    },
    /// Who had an IP from when to when, newest first
    History(Within),
    /// ARP and NDP entries
    Neigh(Within),
    /// What the IPAM can hand out, what is taken, and where it disagrees with kernel and runtime
    Ipam {
        /// An IP or a prefix, or the name of a network: every reservation of it
        #[arg(value_name = "IP|NETWORK")]
        what: Option<String>,
    },
}

impl Observation {
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
    #[arg(value_name = "IP")]
    pub(super) ip: IpAddr,
    /// What this container already has of it does not count: its id, or the first 12 characters or more
    #[arg(long, value_name = "ID")]
    pub(super) container: Option<String>,
    /// Exit with 4 if nobody has it, but no IPAM pool of this node contains it
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
    #[arg(value_name = "IP")]
    pub(super) prefix: Option<Prefix>,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// A finding's id or the beginning of it, a finding code (prints its runbook), an IP,
    /// NAMESPACE/NAME of a pod, a netns, or an error of kubelet or a runtime as it was logged; `-`
    /// reads it from stdin
    #[arg(value_name = "WHAT", required = true)]
    pub(super) what: Vec<String>,
    /// Every item of proof, whole
    #[arg(long)]
    pub(super) evidence: bool,
}

#[derive(Debug, Args)]
pub(super) struct Acked {
    /// The finding's id or the beginning of it
    #[arg(value_name = "FINDING")]
    pub(super) finding: String,
    /// For how long, as 8h; otherwise until the finding is over
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    pub(super) lasts: Option<Duration>,
    /// Why, or who sees to it
    #[arg(long, value_name = "TEXT")]
    pub(super) note: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Unacked {
    /// The finding's id or the beginning of it
    #[arg(value_name = "FINDING")]
    pub(super) finding: String,
}

#[derive(Debug, Args)]
pub(super) struct Record {
    #[command(flatten)]
    pub(super) configured: Configured,
    /// The file to write; `-` is stdout
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(super) out: PathBuf,
    /// Stop after this long, as 30s or 10m; otherwise at Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) duration: Option<Duration>,
}

#[derive(Debug, Args)]
pub(super) struct Replay {
    /// A file that `ipwatch record` wrote
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Consequences too, not only their causes
    #[arg(long)]
    pub(super) all: bool,
}

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// For which shell
    #[arg(value_name = "SHELL")]
    pub(super) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManPages {
    /// Where they are put
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
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_stand_anywhere() {
        let cli = parse("ipwatch query ip 10.0.3.17 -o json -w --socket /tmp/s").unwrap();
        assert_eq!(cli.global.output, Format::Json);
        assert_eq!(cli.global.socket(), PathBuf::from("/tmp/s"));
        let Command::Query(Query { watch: true, what: Observation::Ip { within, .. } }) =
            cli.command
        else {
            panic!("not a watched query")
        };
        assert_eq!(within.prefix, Some("10.0.3.17".parse().unwrap()));
        assert_eq!(parse("ipwatch watch").unwrap().global.socket(), PathBuf::from(DEFAULT_SOCKET));
    }

    #[test]
    fn a_tree_is_drawn_of_addresses_only() {
        let checked = |line: &str| parse(line).unwrap().checked();
        for line in ["query ip", "query netns x", "query pod", "query pid 1"] {
            assert!(checked(&format!("ipwatch {line} -o tree")).is_ok(), "{line}");
        }
        for line in ["scan", "query findings", "query neigh", "watch", "doctor", "explain x"] {
            let error = checked(&format!("ipwatch -o tree {line}")).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains("`query netns`"), "{line}: {error}");
        }
        assert!(checked("ipwatch scan -o wide").is_ok());
    }

    #[test]
    fn an_error_may_be_pasted_without_quotes() {
        let cli = parse("ipwatch explain no IP addresses --evidence").unwrap();
        let Command::Explain(explain) = cli.command else { panic!("not explain") };
        assert_eq!(explain.what, ["no", "IP", "addresses"]);
        assert!(explain.evidence);
        assert!(parse("ipwatch explain").is_err());
    }

    #[test]
    fn bad_values_come_with_an_example() {
        for (line, example) in [
            ("ipwatch query ip 10.0.3", "10.0.3.17"),
            ("ipwatch query neigh 10.0.3.0/33", "10.0.0.0/24"),
            ("ipwatch scan --grace soon", "30s"),
            ("ipwatch scan --grace 5ms", "100ms"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(example), "{error}");
        }
    }

    #[test]
    fn durations_as_people_write_them() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "5", "-3s", "5 parsecs"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
