//! The options of `ipwatch query`: what is asked about, and within which IPs and times.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates as From;

use super::time::moment;
use crate::api::Prefix;
use crate::cli::{complete, examples};

#[derive(Debug, Args)]
pub(in crate::cli) struct Query {
    /// Repeat the query whenever something changes
    #[arg(short, long, global = true)]
    pub(in crate::cli) watch: bool,
    #[command(subcommand)]
    pub(in crate::cli) what: Observation,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Observation {
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
    pub(in crate::cli) fn all(&self) -> bool {
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
    pub(super) fn has_tree(&self) -> bool {
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
pub(in crate::cli) struct Within {
    /// An IP or a prefix, as 10.0.3.17 or 10.0.0.0/24
    #[arg(value_name = "IP", add = From::new(complete::ips))]
    pub(in crate::cli) prefix: Option<Prefix>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Earlier {
    #[command(flatten)]
    pub(in crate::cli) within: Within,
    /// Only IPs of this pod: NAME, NAMESPACE/NAME or its uid
    #[arg(long, value_name = "POD", add = From::new(complete::pods))]
    pub(in crate::cli) pod: Option<String>,
    /// Who had it then: 03:12 (UTC, within the last day), 2026-01-01T03:12:00Z, or 10m (ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(in crate::cli) at: Option<i64>,
}
