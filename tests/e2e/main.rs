//! The end-to-end tests: one binary that runs unchanged on the host and in the VMs. `cargo xtask test` runs it
//! everywhere; for its options see `support::harness`.
//!
//! A file an area: [`map`], [`holders`] and [`reach`] (what is answered), [`stuck`], [`neighbours`] and
//! [`neighbour_links`] (what is found), [`remedies`], [`fix`], [`demo`] and [`dead_nfs`] (what is told to do, done), [`tape`], [`secrets`] and [`report`] (what is taken along, and what not), [`cases`]
//! (the field's cases), [`incident`] (the whole text of four of them), [`lead`] and [`kubelet`] (how early, of a runtime's word and of a real kubelet's),
//! [`prevention`] (what does not happen at all), [`apiserver`] (a real one without a kubelet: its bad days, its IPAM stores),
//! [`never`], [`never_ipam`], [`never_pool`], [`healthy`] and [`zoo`] (what must not be found), [`soak`] (all at once), [`identity`], [`scale`],
//! [`differential`] and [`restart`] (what must hold at all times), [`probes`], [`canary`], [`container`] and [`tracing`] (what may be missing),
//! [`ended_sources`] (what is started again),
//! [`service`] (what a service manager sees), [`systemd`] (the real one), [`bad_input`], [`bad_link`],
//! [`bad_runtime`], [`bad_servers`], [`bad_collector`], [`pod`], [`cni_calls`], [`forged`], [`ipam`], [`export`] and [`metrics`] (real
//! neighbours), [`ipam_bolt`] (what dockerd and podman reserve), [`etcd`] (what Calico keeps there), [`chart`] (what
//! Helm makes), [`cluster`] (what one node cannot know), [`top`] (the screen in a terminal),
//! [`release`] (what is handed on, installed; what the version before kept).
//! [`fixtures`] and [`reproductions`] check the ground that the others stand on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]

mod apiserver;
mod bad_collector;
mod bad_input;
mod bad_link;
mod bad_runtime;
mod bad_servers;
mod canary;
mod cases;
mod chart;
mod cluster;
mod cni_calls;
mod container;
mod dead_nfs;
mod demo;
mod differential;
mod ended_sources;
mod etcd;
mod export;
mod faults;
mod fix;
mod fixtures;
mod forged;
mod healthy;
mod holders;
mod hung_reads;
mod identity;
mod incident;
mod ipam;
mod ipam_bolt;
mod kubelet;
mod lead;
mod map;
mod metrics;
mod neighbour_links;
mod neighbours;
mod nested;
mod never;
mod never_ipam;
mod never_pool;
mod pod;
mod prevention;
mod probes;
mod reach;
mod release;
mod remedies;
mod report;
mod reproductions;
mod restart;
mod runtimes;
mod scale;
mod secrets;
mod service;
mod soak;
mod stuck;
mod systemd;
mod tape;
mod top;
mod tracing;
mod ways_to_die;
mod worst_hour;
mod zoo;

fn main() -> std::process::ExitCode {
    support::harness::main(&[
        fixtures::TESTS,
        reproductions::TESTS,
        map::TESTS,
        differential::TESTS,
        ended_sources::TESTS,
        holders::TESTS,
        stuck::TESTS,
        hung_reads::TESTS,
        nested::TESTS,
        ways_to_die::TESTS,
        release::TESTS,
        remedies::TESTS,
        fix::TESTS,
        demo::TESTS,
        dead_nfs::TESTS,
        prevention::TESTS,
        prevention::by_hand::TESTS,
        prevention::churn::TESTS,
        prevention::leave::TESTS,
        prevention::rate::TESTS,
        prevention::strangers::TESTS,
        prevention::window::TESTS,
        never::TESTS,
        never_ipam::TESTS,
        never_pool::TESTS,
        tape::TESTS,
        identity::TESTS,
        ipam::TESTS,
        report::TESTS,
        restart::TESTS,
        probes::TESTS,
        canary::TESTS,
        container::TESTS,
        chart::TESTS,
        chart::installed::TESTS,
        cluster::TESTS,
        reach::TESTS,
        tracing::TESTS,
        top::TESTS,
        bad_collector::TESTS,
        bad_input::TESTS,
        bad_link::TESTS,
        bad_runtime::TESTS,
        bad_servers::TESTS,
        pod::TESTS,
        cni_calls::TESTS,
        forged::TESTS,
        export::TESTS,
        faults::TESTS,
        metrics::TESTS,
        ipam_bolt::TESTS,
        etcd::TESTS,
        secrets::TESTS,
        service::TESTS,
        soak::TESTS,
        systemd::TESTS,
        cases::calico::TESTS,
        cases::dead::TESTS,
        cases::leaked::TESTS,
        cases::mounts::TESTS,
        cases::loops::TESTS,
        cases::docker::TESTS,
        cases::ipam::TESTS,
        cases::paper::TESTS,
        cases::teardown::TESTS,
        cases::device::TESTS,
        cases::unasked::TESTS,
        lead::exhaustion::TESTS,
        lead::duplicate::TESTS,
        lead::ipvlan::TESTS,
        apiserver::bad_days::TESTS,
        apiserver::calico::TESTS,
        apiserver::node_conditions::TESTS,
        apiserver::token::TESTS,
        apiserver::whereabouts::TESTS,
        apiserver::wrapped::TESTS,
        kubelet::exhaustion::TESTS,
        kubelet::freed::TESTS,
        kubelet::deleted::TESTS,
        kubelet::events::TESTS,
        kubelet::outage::TESTS,
        kubelet::prevented::TESTS,
        lead::outlets::TESTS,
        incident::TESTS,
        runtimes::dockerd::bookworm::TESTS,
        runtimes::dockerd::trixie::TESTS,
        runtimes::dockerd::sid::TESTS,
        runtimes::dockerd::TESTS,
        runtimes::podman::bookworm::TESTS,
        runtimes::podman::trixie::TESTS,
        runtimes::podman::sid::TESTS,
        runtimes::podman::TESTS,
        runtimes::containerd::TESTS,
        runtimes::containerd::bookworm::TESTS,
        runtimes::containerd::trixie::TESTS,
        runtimes::containerd::sid::TESTS,
        scale::TESTS,
        neighbours::TESTS,
        neighbour_links::TESTS,
        healthy::TESTS,
        worst_hour::TESTS,
        zoo::TESTS,
        zoo::stock::TESTS,
    ])
}
