//! `cargo xtask …`: all tasks of this repository beyond plain `cargo build`.
//!
//! - `build-ebpf [--check]`: builds the kernel half from source; with `--check`, compares it with the committed
//!   objects.
//! - `run`: runs the daemon on this node, and shows what it sees.
//! - `demo`: creates pods with typical problems, and shows what ipwatch reports about them.
//! - `test [--only PART]… [--cycles NUMBER] [--repeat NUMBER] [--release] [--long]`: all tests: unit tests, end to
//!   end on this host, VMs.
//! - `fuzz [--seconds NUMBER | --plateau] [--keep] [TARGET]…`: libFuzzer on every parser of foreign bytes, and on the engine.
//! - `soak [--minutes NUMBER] [--seed NUMBER]`: pods, floods, faults and questions at the same time, and a picture.
//! - `vm [systemd|shipped|long] [KERNEL]… [-- FILTER…]`: only the end-to-end tests on stock kernels; `6.1-arm64` is
//!   emulated.
//! - `support [--table | KERNEL…]`: what is seen on stock kernels, event by event, for `docs/support`.
//! - `instructions [--accept]`: the cost of the pure half, compared with the committed figures.
//! - `recordings [NAME]…`: recreates `recordings/*.jsonl` from the end-to-end tests of field cases.
//! - `pictures`: draws the pictures of the documentation from their sources.
//! - `seccomp`: makes `deploy/kubernetes/seccomp.json` from the system calls that the unit allows.
//! - `package`: builds a .deb and an .rpm, for this machine or for arm64.
//! - `release`: everything that is handed on, for both architectures, reproducible and signed.
//! - `bench [--before COMMIT] [FILTER]…`: measures the figures that the design promises, for `docs/figures.json`.
//! - `scale [TARGETS]`: what a fleet of nodes costs a Prometheus with our rules and our dashboard, for `docs/scale.md`.
//! - `figures [FILE COMMIT]`: writes the figures of `docs/figures.json` into the pages; with the saved output of a
//!   benchmark of that commit, merges it first.
//!
//! Packages that a command needs are installed by apt, with a message ([`setup`]). Downloads and builds that take
//! long are kept in a cache outside the checkout ([`place`]).
#![allow(
    clippy::disallowed_methods,
    reason = "a tool for developers: it reads the repository's own files and measures with the plain clock"
)]

mod bench;
mod build;
mod demo;
mod ebpf;
mod epoch;
mod figures;
mod fuzz;
mod instructions;
mod interrupt;
mod kubernetes;
mod machine;
mod monitor;
mod package;
#[cfg(test)]
mod pages;
mod phases;
mod pictures;
mod place;
mod recordings;
mod release;
mod run;
mod scale;
mod seccomp;
mod setup;
mod shell;
mod soak;
mod suites;
mod support;
mod tally;
mod test;
mod vm;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  build-ebpf [--check]        build the kernel half; --check: compare it with the committed one
  run                         start the monitor on this node and show what it sees (root)
  demo                        make pods that hang, leaked or share an IP, and show what it says (root)
  test [--only PART]... [--cycles NUMBER] [--repeat NUMBER] [--release] [--long]
                              run all tests (root); parts: unit, instructions, e2e, vm, systemd, arm64, or a filter of e2e tests;
                              --only healthy --cycles 10000: the healthy run in its long form;
                              --long: with a live bolt file, arm64, and every fuzz target for a minute
  fuzz [--seconds NUMBER | --plateau] [--keep] [TARGET]...
                              fuzz the parsers of foreign bytes and the engine, each for 60 s, or so long, or until five
                              minutes find hardly anything new; --keep and --plateau keep what reaches code in fuzz/corpora
  soak [--minutes NUMBER] [--seed NUMBER]
                              pods, floods, faults and questions at the same time, for 10 minutes or so long; what
                              was measured is drawn in target/soak/soak.svg
  vm [systemd|shipped|long] [KERNEL]... [-- FILTER...]
                              run the end-to-end tests on stock kernels in QEMU; systemd: booted by it; shipped:
                              optimised; long: in their long form; kernels: 6.12, 6.1, 5.10, 6.12-integrity, 6.12-confidentiality, sid, 6.12-arm64, 6.1-arm64
  support [--table | KERNEL...]
                              what can be seen on these kernels: into docs/support and its tables; --table: those alone
  package [--arch arm64] [--binary FILE]
                              make a .deb and an .rpm in target/package
  release [--out DIR] [--krew-base-url URL] [--image NAME] [--revision NUMBER] [--sign-key FILE] [--check-reproducible]
                              make packages, tarballs, image, chart, plugin, bill of materials and notes in target/dist;
                              --check-reproducible: twice; --bin-dir DIR: of DIR/amd64/ipwatch and DIR/arm64/ipwatch
  instructions [--accept]     count what the pure half costs; compare it with what is committed, or commit it
  recordings [NAME...]        record the field cases in recordings/ anew (root)
  pictures                    draw docs/images/*.svg from their sources
  seccomp                     make the container's seccomp profile from the unit
  bench [--before COMMIT] [FILTER]...
                              measure what the design promises (root), into docs/figures.json and the pages;
                              --before: beside the build of that commit
  scale [--addresses] [--minutes NUMBER] [TARGETS]
                              measure a Prometheus that scrapes 3,000 simulated nodes, into docs/figures.json and the pages
  figures [FILE COMMIT]       write docs/figures.json into the pages, after merging the output of a bench of that commit";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["build-ebpf"] => ebpf::build(false).map(|()| true),
        ["build-ebpf", "--check"] => ebpf::build(true).map(|()| true),
        ["run"] => run::run().map(|()| true),
        ["demo"] => demo::run().map(|()| true),
        ["test", rest @ ..] => test::run(rest),
        ["fuzz", rest @ ..] => fuzz::command(rest),
        ["soak", rest @ ..] => soak::run(rest),
        ["vm", rest @ ..] => vm::command(rest),
        ["support", names @ ..] => support::command(names).map(|()| true),
        ["package", rest @ ..] => package::command_line(rest).map(|()| true),
        ["release", rest @ ..] => release::command_line(rest).map(|()| true),
        ["instructions", args @ ..] => instructions::command_line(args),
        ["recordings", names @ ..] => recordings::command_line(names).map(|()| true),
        ["pictures"] => pictures::draw().map(|()| true),
        ["seccomp"] => seccomp::make().map(|()| true),
        ["bench", filters @ ..] => bench::run(filters).map(|()| true),
        ["scale", words @ ..] => scale::command_line(words).map(|()| true),
        ["figures", words @ ..] => figures::command_line(words).map(|()| true),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
