//! `ipwatch fix`: shows what is to be changed, asks, and has it changed.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

use super::args::{Fix as Asked, Global};
use super::output::Out;
use super::text::count;
use super::{Failure, Outcome};
use crate::api::client::Client;
use crate::api::{Ask, Prefix};
use crate::config::Config;
use crate::contract::{Body, Document, Finding, Fix, FixItem, FixState, FixTarget, IpamEntry};
use crate::fix::api_server::Access;
use crate::fix::plan::Unclear;
use crate::fix::{act, plan, undo};

/// The directory of the records, in the daemon's state directory.
const RECORDS: &str = "fix";

/// Longest answer to a question that is read.
const ANSWER: usize = 16;

pub(super) async fn fix(global: &Global, out: &Out, asked: Asked) -> Result<Outcome, Failure> {
    let base = asked.record_dir.clone().unwrap_or_else(records);
    let client = Client::new(global.socket());
    if asked.undo {
        return restore(&client, out, &asked, &base).await;
    }
    let (mut document, planned) = planned(&client, &asked).await?;
    if !goes_on(out, &asked, &mut document, planned.clone(), "Change this?")? {
        return Ok(Outcome::Fine);
    }
    let names = (&*asked.what, &*document.node.clone());
    let access = access(&asked, &planned)?;
    let changed = act::change(&client, planned, names, &base, access).await;
    let changed = changed.map_err(anyhow::Error::from)?;
    tell(out, &mut document, changed)
}

/// How the API server is reached, where something is to be changed there.
fn access(asked: &Asked, fix: &Fix) -> Result<Access, Failure> {
    let is_there = |item: &FixItem| matches!(item.target, FixTarget::FreeAllocation { .. });
    if !fix.items.iter().any(is_there) {
        return Ok(Access::default());
    }
    let named = asked.kubeconfig.clone();
    let kubeconfig = super::cluster::kubeconfig(named, |name| std::env::var_os(name))?;
    Ok(Access { kubeconfig, context: asked.context.clone() })
}

/// The default is below the daemon's own state, where that may be read.
fn records() -> PathBuf {
    Config::load(None).unwrap_or_default().state_dir.join(RECORDS)
}

/// Shows the plan, and says whether it is to be done.
fn goes_on(
    out: &Out,
    asked: &Asked,
    document: &mut Document,
    planned: Fix,
    question: &str,
) -> Result<bool, Failure> {
    let todo = planned.items.iter().filter(|item| item.state == FixState::Planned).count();
    let can_ask = out.for_people() && io::stdin().is_terminal() && io::stdout().is_terminal();
    let mode = Mode::of(asked, can_ask);
    document.body = Body::Fix(planned);
    // With --yes the result is printed at the end: a program gets one document.
    if mode != Mode::Do || todo == 0 {
        out.document(document, true)?;
    }
    if todo == 0 {
        return Ok(false);
    }
    match mode {
        Mode::Show => Ok(false),
        Mode::Do => Ok(true),
        Mode::Ask => says_yes(question, todo),
    }
}

/// Prints the result. The exit code says whether anything was skipped, stranded or is unknown.
fn tell(
    out: &Out,
    document: &mut Document,
    (fix, logged): (Fix, bool),
) -> Result<Outcome, Failure> {
    if !logged {
        super::complain(
            "the changes could not be logged to the journal or to syslog: only the record has them",
        );
    }
    let any = |state| fix.items.iter().any(|item| item.state == state);
    let skipped = any(FixState::Skipped);
    let stranded = any(FixState::Stranded) || any(FixState::Unknown);
    document.body = Body::Fix(fix);
    out.document(document, true)?;
    Ok(match (stranded, skipped) {
        (true, _) => Outcome::Stranded,
        (false, true) => Outcome::Skipped,
        (false, false) => Outcome::Fine,
    })
}

async fn restore(
    client: &Client,
    out: &Out,
    asked: &Asked,
    base: &std::path::Path,
) -> Result<Outcome, Failure> {
    let run = asked.run.as_deref();
    let undo = undo::look(base, &asked.what, &asked.only, run).map_err(anyhow::Error::from)?;
    for unread in &undo.unread {
        super::complain(&format!("a record cannot be read and is ignored: {unread}"));
    }
    if undo.fix.items.is_empty() {
        let what = crate::remedy::said(&asked.what);
        return Err(Failure::NotFound(format!(
            "there is nothing to undo for {what}: {} has no record of it, or the newest one is undone already. To undo an \
             older run, name it with --run",
            base.display()
        )));
    }
    let mut document = envelope(client).await;
    if !goes_on(out, asked, &mut document, undo.fix.clone(), "Restore this?")? {
        return Ok(Outcome::Fine);
    }
    let access = access(asked, &undo.fix)?;
    let restored = undo::restore(undo, client, access).await.map_err(anyhow::Error::from)?;
    tell(out, &mut document, restored)
}

/// The document around the result of an undo. Undoing needs no daemon: the document names its version and sources if it
/// answers.
async fn envelope(client: &Client) -> Document {
    let empty = || Document {
        schema: crate::contract::SCHEMA.to_owned(),
        node: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        taken_at: crate::fix::record::date(),
        sources: Vec::new(),
        body: Body::Fix(Fix::default()),
        reservations: Vec::new(),
        networks: Vec::new(),
        refused: Vec::new(),
        runs: Vec::new(),
        blind: Vec::new(),
        daemon: None,
    };
    let told = client.ask(&Ask::Findings { all: false, what: None }).await;
    told.unwrap_or_else(|_| empty())
}

/// The daemon's document, and the plan that is made from it.
async fn planned(client: &Client, asked: &Asked) -> Result<(Document, Fix), Failure> {
    let document = client.ask(&Ask::Findings { all: false, what: None }).await?;
    let none = Vec::new();
    let open: &[Finding] = match &document.body {
        Body::Findings(findings) => findings,
        _ => &none,
    };
    let meant = plan::meant(open, &asked.what, !asked.yes).map_err(|unclear| match unclear {
        Unclear::NotFound(_) => Failure::NotFound(unclear.to_string()),
        _ => anyhow::Error::from(unclear).into(),
    })?;
    let mut entries: Vec<IpamEntry> = Vec::new();
    for ip in plan::reserved(&meant.findings) {
        let ask = Ask::Ipam { ip: Some(Prefix::host(ip)), network: None };
        match client.ask(&ask).await {
            Ok(document) => entries.extend(document.reservations),
            Err(crate::api::client::ClientError::Refused { status: 404, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut fix = plan::plan(&meant.findings, &entries, &asked.only);
    fix.items.extend(meant.acknowledged.into_iter().map(plan::acknowledged));
    Ok((document, fix))
}

/// Whether a plan is shown, asked about or done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Show,
    Ask,
    Do,
}

impl Mode {
    /// If nobody can be asked, nothing is changed without --yes.
    fn of(asked: &Asked, can_ask: bool) -> Self {
        match asked {
            Asked { dry_run: true, .. } => Mode::Show,
            Asked { yes: true, .. } => Mode::Do,
            _ if can_ask => Mode::Ask,
            _ => Mode::Show,
        }
    }
}

/// Asks on the terminal. Anything but a yes is a no.
fn says_yes(question: &str, todo: usize) -> Result<bool, Failure> {
    let fail = |error: io::Error| anyhow::anyhow!("cannot ask on the terminal: {error}");
    let mut terminal = io::stderr().lock();
    write!(terminal, "{question} {} [y/N] ", count(todo, "item")).map_err(fail)?;
    terminal.flush().map_err(fail)?;
    let mut answer = Vec::new();
    let mut input = io::Read::take(io::stdin().lock(), ANSWER as u64);
    input.read_until(b'\n', &mut answer).map_err(fail)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &[u8]) -> bool {
    let answer = answer.trim_ascii();
    answer.eq_ignore_ascii_case(b"y") || answer.eq_ignore_ascii_case(b"yes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser as _;

    fn asked(line: &str) -> Asked {
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Fix(asked) = cli.command else { panic!("{line}") };
        asked
    }

    #[test]
    fn without_a_terminal_nothing_is_changed_unless_that_is_said() {
        for (line, terminal, mode) in [
            ("ipwatch fix k3f9", false, Mode::Show),
            ("ipwatch fix k3f9", true, Mode::Ask),
            ("ipwatch fix k3f9 --dry-run", true, Mode::Show),
            ("ipwatch fix k3f9 --yes", false, Mode::Do),
            ("ipwatch fix k3f9 --undo", false, Mode::Show),
        ] {
            assert_eq!(Mode::of(&asked(line), terminal), mode, "{line} {terminal}");
        }
        assert!(Cli::try_parse_from(["ipwatch", "fix", "x", "--yes", "--dry-run"]).is_err());
    }

    #[test]
    fn only_a_yes_is_one() {
        for yes in ["y\n", "Y", "yes\n", " Yes \n"] {
            assert!(is_yes(yes.as_bytes()), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "yeah\n", "yy", "no"] {
            assert!(!is_yes(no.as_bytes()), "{no:?}");
        }
    }

    #[test]
    fn several_ips_may_stand_behind_only() {
        for line in ["--only 10.0.3.18 10.0.3.19", "--only 10.0.3.18,10.0.3.19"] {
            assert_eq!(asked(&format!("ipwatch fix cbr0 {line}")).only.len(), 2, "{line}");
        }
    }
}
