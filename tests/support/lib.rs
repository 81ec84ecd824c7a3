//! The fixtures of the end-to-end tests: real network namespaces, processes that hold them in every possible way,
//! hung ones, harmless ones, and the daemon under test.
//!
//! - [`harness`] runs the tests, one process each; [`lab`] is what a test gets; [`sweep`] cleans up
//!   after it, whatever became of it; [`need`] says what a place must offer; [`shared`] keeps what tests share.
//! - [`netns`] makes namespaces and devices; [`role`] the helper processes, which are this same
//!   binary started under another role; [`fuse`] a file system that never answers, [`nfs`] one whose server dies; [`rtnl`] a
//!   kernel whose teardown hangs; [`stuck`] and
//!   [`innocent`] the processes that must be found and those that must not.
//! - [`arp`] asks on a link who answers.
//! - [`sandbox`] is a pod on paper: its cgroup and its CNI result, without a runtime; [`fake_cri`] speaks
//!   for one where none fits.
//! - [`cni`] runs CNI plugins as a runtime does, [`network`] for whole pods; [`lead`] measures how early a
//!   warning came.
//! - [`daemon`] starts ipwatch and asks it; [`pod`], [`docker`], [`podman`] and [`collector`] are a real
//!   containerd, dockerd, podman and OpenTelemetry collector, [`contained`] a container of the two in the middle; [`kubernetes`] a real API server and kubelet over that
//!   containerd; [`etcd`] one that Calico keeps its own in; [`prometheus`] scrapes it, [`journal`] stands in journald's place;
//!   [`suite`] has the runtimes of other Debian suites; [`poorer`] takes things away from the daemon; [`recording`] writes down what it sees.
//! - [`container`] runs the daemon in a container, [`unit`] with no more than the unit grants; [`systemd`] is one
//!   that boots the machine, with ipwatch as a service of it; [`helm`] makes manifests, [`chromium`] shows pages,
//!   [`pty`] and [`screen`] are the terminal of a person.
//! - [`bad_server`] stands in the place of any server, and is slow, wrong, endless, cut off or has a gigabyte to say.
//! - [`proc`] reads `/proc` by itself, so that a fixture is checked by other eyes than the product's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a fixture that cannot be made is a failed test, and the files it reads are its own"
)]

pub mod arp;
pub mod bad_server;
pub mod cgroup;
pub mod chromium;
pub mod cni;
pub mod collector;
pub mod config;
pub mod contained;
pub mod container;
pub mod daemon;
pub mod docker;
pub mod etcd;
pub mod fake_cri;
pub mod fuse;
pub mod harness;
pub mod helm;
pub mod innocent;
pub mod ipam;
pub mod journal;
pub mod keepalived;
pub mod kubernetes;
pub mod lab;
pub mod lead;
pub mod need;
pub mod netns;
pub mod network;
pub mod nfs;
mod peek;
pub mod pod;
pub mod podman;
pub mod poll;
pub mod poorer;
pub mod proc;
pub mod prometheus;
pub mod pty;
pub mod recording;
pub mod release;
pub mod remedy;
pub mod role;
pub mod rtnl;
pub mod sandbox;
pub mod screen;
mod shared;
pub mod stuck;
pub mod suite;
pub mod sweep;
pub mod sys;
pub mod systemd;
mod table;
pub mod unit;

pub use config::Config;
pub use daemon::{Daemon, Follower};
pub use harness::Test;
pub use lab::Lab;
pub use need::Need;
pub use netns::Netns;
pub use poll::{eventually, is_shipped, patience};
pub use sandbox::Sandbox;
pub use suite::Suite;
