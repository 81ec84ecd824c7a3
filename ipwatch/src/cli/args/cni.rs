//! The options of `ipwatch cni`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(in crate::cli) struct CniCommand {
    #[command(flatten)]
    pub(in crate::cli) places: CniPlaces,
    #[command(subcommand)]
    pub(in crate::cli) what: CniWhat,
}

/// Where everything is, if not where kubeadm, k3s, RKE2 and CRI-O have it.
#[derive(Debug, Args)]
pub(in crate::cli) struct CniPlaces {
    /// Directory of network configurations, instead of the usual ones; may be given several times
    #[arg(long, global = true, value_name = "DIR")]
    pub(in crate::cli) conf_dir: Vec<PathBuf>,
    /// Directory of CNI plugins, instead of the usual ones; may be given several times
    #[arg(long, global = true, value_name = "DIR")]
    pub(in crate::cli) bin_dir: Vec<PathBuf>,
    /// Where ipwatch-ipam keeps what it has parked [default: /var/lib/cni/ipwatch-ipam]
    #[arg(long, global = true, value_name = "DIR")]
    pub(in crate::cli) parked_dir: Option<PathBuf>,
    /// Where libcni keeps results [default: /var/lib/cni/results]
    #[arg(long, global = true, value_name = "DIR")]
    pub(in crate::cli) cache_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum CniWhat {
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
