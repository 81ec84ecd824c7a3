//! `ipwatch scan` and `ipwatch replay`: findings without a daemon.

use super::args::{Global, Replay, Scan};
use super::output::Out;
use super::view::View;
use super::{Failure, Outcome, daemon};
use crate::contract::{Body, Document};
use crate::daemon::ScanOptions;
use crate::finding::Status;

pub(super) fn scan(global: &Global, out: &Out, scan: Scan) -> Result<Outcome, Failure> {
    let config = daemon::config(global, &scan.configured)?;
    let document = crate::daemon::scan(&config, ScanOptions { grace: scan.grace })?;
    print(out, &document, scan.all)?;
    Ok(outcome(&document))
}

pub(super) fn replay(out: &Out, replay: &Replay) -> Result<Outcome, Failure> {
    let document = crate::daemon::replay(&replay.file)?;
    print(out, &document, replay.all)?;
    Ok(Outcome::Fine)
}

fn print(out: &Out, document: &Document, all: bool) -> Result<(), Failure> {
    let view = View { all, asked: false, ..out.view(document) };
    out.raw(out.render(document, view)?.as_bytes())
}

/// Whether any finding is open.
fn outcome(document: &Document) -> Outcome {
    let Body::Findings(findings) = &document.body else { return Outcome::Fine };
    if findings.iter().any(|finding| finding.status != Status::Resolved) {
        Outcome::Findings
    } else {
        Outcome::Fine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::show::sample;

    #[test]
    fn only_what_is_still_wrong_counts() {
        let mut document = sample("scan.json");
        assert_eq!(outcome(&document), Outcome::Findings);
        let Body::Findings(findings) = &mut document.body else { panic!("findings") };
        for finding in findings {
            finding.status = Status::Resolved;
        }
        assert_eq!(outcome(&document), Outcome::Fine);
    }
}
