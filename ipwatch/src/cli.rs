//! The command line: parses arguments, asks the daemon, prints. One file per command; `show/` turns documents into
//! text and does nothing else.

mod ack;
mod args;
mod check;
mod cluster;
mod cni;
mod complete;
mod config;
mod daemon;
mod doctor;
mod examples;
mod explain;
mod fix;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod host_root;
#[cfg(test)]
mod hostile;
mod kubectl;
mod logging;
mod meant;
mod output;
mod paste;
mod query;
mod report;
mod scan;
mod show;
mod table;
mod text;
mod top;
mod view;
mod watch;

#[cfg(test)]
pub(crate) use self::{show::story::title, text::cluster_name};

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::CommandFactory as _;

use self::args::{Cli, Command, ManPages};
use self::output::Out;
use crate::api::client::ClientError;
use crate::canary;
use crate::escape::escape;

/// How a command that did its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Nothing is wrong.
    Fine,
    /// `scan` found something.
    Findings,
    /// `check`: the IP is not free.
    Taken,
    /// `fix`: something that was planned was not done.
    Skipped,
    /// `fix`: something was moved that should not have been, and could not be put back; or whether it was changed is not
    /// known.
    Stranded,
    /// `check --strict`: nobody has the IP, and no pool of this node contains it.
    InNoPool,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The requested object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The reader of our output has closed it: `ipwatch query ip | head` is not an error.
    #[error("stdout is closed")]
    ClosedPipe,
    /// Anything else.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused { status: 404, .. } => Failure::NotFound(error.to_string()),
            _ => Failure::Other(error.into()),
        }
    }
}

/// Exit code of `scan` when it found something, of `check` when it says no, and of `fix` when it skipped something.
const FINDINGS: u8 = 1;
/// Exit code of errors, including usage errors (as in clap).
const ERROR: u8 = 2;
/// Exit code if the requested object does not exist.
const NOT_FOUND: u8 = 3;

/// Exit code of `check --strict` for an IP that is in no pool.
const IN_NO_POOL: u8 = 4;

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if canary::stage::is_meant(&args) {
        return canary::stage::main(&args);
    }
    match complete::answered(&args) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(usage) => return misused(&usage),
    }
    if kubectl::is_meant(args.first().map(OsString::as_os_str)) {
        match kubectl::read(args) {
            Ok(kubectl::Meant::Whole(whole)) => args = whole,
            Ok(kubectl::Meant::Plugin(plugin)) => return kubectl::main(&plugin),
            Ok(kubectl::Meant::Fleet(asked)) => return kubectl::fleet::main(&asked),
            Err(usage) => return misused(&usage),
        }
    }
    let cli = match Cli::read(args) {
        Ok(cli) => cli,
        Err(usage) => return misused(&usage),
    };
    logging::start(matches!(cli.command, Command::Run(_) | Command::Record(_)));
    match dispatch(cli) {
        Ok(Outcome::Fine) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Ok(Outcome::Findings | Outcome::Taken | Outcome::Skipped) => ExitCode::from(FINDINGS),
        Ok(Outcome::Stranded) => ExitCode::from(ERROR),
        Ok(Outcome::InNoPool) => ExitCode::from(IN_NO_POOL),
        Err(failure) => failed(&failure),
    }
}

/// Prints help or version, which go to stdout and are not errors, or a usage error.
fn misused(usage: &clap::Error) -> ExitCode {
    // A failure to print is ignored: there is nowhere to report it.
    let _ = usage.print();
    if usage.use_stderr() { ExitCode::from(ERROR) } else { ExitCode::SUCCESS }
}

/// Prints the failure and returns its exit code.
fn failed(failure: &Failure) -> ExitCode {
    let next = if is_out_of_files(failure) { "; raise LimitNOFILE= (ulimit -n)" } else { "" };
    complain(&format!("{failure}{next}"));
    let not_found = matches!(failure, Failure::NotFound(_));
    ExitCode::from(if not_found { NOT_FOUND } else { ERROR })
}

/// Whether the failure is that no more files can be opened (EMFILE).
fn is_out_of_files(failure: &Failure) -> bool {
    let Failure::Other(error) = failure else { return false };
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()))
}

fn dispatch(cli: Cli) -> Result<Outcome, Failure> {
    let Cli { global, command } = cli;
    let root = global.host_root.as_deref().filter(|root| !root.as_os_str().is_empty());
    if let Some(root) = root.filter(|_| command.is_about_the_node()) {
        host_root::enter(root).map_err(anyhow::Error::from)?;
    }
    let out = Out::new(&global);
    match command {
        Command::Run(run) => daemon::run(&global, run),
        Command::Scan(scan) => scan::scan(&global, &out, scan),
        Command::Cluster(command) => wait_for(cluster::cluster(&out, command))?,
        Command::Query(query) => wait_for(query::query(&global, &out, query))?,
        Command::Check(check) => wait_for(check::check(&global, &out, check))?,
        Command::Watch(what) => wait_for(watch::watch(&global, &out, what))?,
        Command::Top => wait_for(top::top(&global, &out))?,
        Command::Explain(explain) => wait_for(explain::explain(&global, &out, explain))?,
        Command::Fix(asked) => wait_for(fix::fix(&global, &out, asked))?,
        Command::Report(wanted) => wait_for(report::report(&global, &out, wanted))?,
        Command::Ack(acked) => wait_for(ack::ack(&global, &out, acked))?,
        Command::Unack(unacked) => wait_for(ack::unack(&global, &out, unacked))?,
        Command::Doctor(asked) => doctor::doctor(&global, &out, &asked),
        Command::Config(command) => config::config(&global, &out, command),
        Command::Cni(command) => cni::cni(&global, &out, command),
        Command::Record(record) => daemon::record(&global, record),
        Command::Replay(replay) => scan::replay(&out, &replay),
        Command::Completions(completions) => {
            let script = complete::script(completions.shell).map_err(anyhow::Error::from)?;
            out.raw(&script)?;
            Ok(Outcome::Fine)
        }
        Command::ManPages(ManPages { dir }) => {
            clap_mangen::generate_to(without_help(Cli::command()), &dir)
                .map_err(|error| anyhow::anyhow!("cannot write to {}: {error}", dir.display()))?;
            Ok(Outcome::Fine)
        }
    }
}

/// Removes `help` of each command, which is not listed as a command in the manual.
fn without_help(command: clap::Command) -> clap::Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// Runs a conversation with the daemon to its end.
fn wait_for<F: Future>(conversation: F) -> Result<F::Output, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| anyhow::anyhow!("cannot wait for the daemon: {error}"))?;
    Ok(runtime.block_on(conversation))
}

/// Prints one line to stderr; escaping keeps it one line.
fn complain(text: &str) {
    use std::io::Write as _;
    // A closed stderr is ignored: there is nowhere to report it.
    let _ = io::stderr().write_all(complaint(text).as_bytes());
}

/// The line of a message for people.
fn complaint(text: &str) -> String {
    format!("ipwatch: {}\n", escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_found_is_told_from_other_refusals() {
        let refused = |status| ClientError::Refused {
            status,
            error: "no pod shop/api-0".into(),
            hint: "look again".into(),
        };
        assert!(matches!(Failure::from(refused(404)), Failure::NotFound(_)));
        assert!(matches!(Failure::from(refused(409)), Failure::Other(_)));
        assert_eq!(Failure::from(refused(409)).to_string(), "no pod shop/api-0: look again");
    }
}
