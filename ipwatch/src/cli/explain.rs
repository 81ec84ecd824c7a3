//! `ipwatch explain`: what happened, what the impact is, and what to do.

use std::collections::HashSet;
use std::io::Read as _;

use super::args::{Explain, Global};
use super::meant::meant;
use super::output::Out;
use super::paste::{self, Fit, Pasted};
use super::show::family::Families;
use super::show::{self, card, story};
use super::view::View;
use super::{Failure, Outcome, text};
use crate::api::client::{Client, ClientError};
use crate::api::{Ask, Prefix, Selector};
use crate::contract::{Body, Document};
use crate::escape::escape;
use crate::finding::{Code, Finding, Status};
use crate::remedy::said;

pub(super) async fn explain(
    global: &Global,
    out: &Out,
    explain: Explain,
) -> Result<Outcome, Failure> {
    let what = match explain.what.join(" ") {
        stdin if stdin == "-" => read_stdin()?,
        words => words,
    };
    let what = what.trim();
    if let Ok(code) = what.parse::<Code>() {
        // The runbook is our own text: printed unescaped.
        out.raw(code.runbook().as_bytes())?;
        return Ok(Outcome::Fine);
    }
    let client = Client::new(global.socket());
    // An id, IP, pod or netns is always one word.
    if what.contains(char::is_whitespace) {
        return error(&client, out, what, explain.evidence).await;
    }
    match about(&client, what).await? {
        Lookup::Findings(document) => tell(&client, out, document, explain.evidence).await,
        Lookup::Nothing(document) => healthy(out, what, document),
    }
}

/// What is known about a finding, an IP, a pod or a netns.
pub(super) async fn about(client: &Client, what: &str) -> Result<Lookup, Failure> {
    match findings_about(client, what).await? {
        Some(document) => Ok(Lookup::Findings(document)),
        None => addresses(client, what).await,
    }
}

/// Reads stdin, up to a length that exceeds any error message.
fn read_stdin() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let mut stdin = std::io::stdin().lock().take(paste::LONGEST as u64);
    stdin
        .read_to_end(&mut bytes)
        .map_err(|error| anyhow::anyhow!("cannot read the text from stdin: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Prints the stories of the findings in a document.
async fn tell(
    client: &Client,
    out: &Out,
    mut document: Document,
    whole: bool,
) -> Result<Outcome, Failure> {
    if let Body::Findings(findings) = &mut document.body {
        if out.for_people() {
            let findings = std::mem::take(findings);
            let view = out.view(&document);
            out.raw(stories(client, &document, findings, whole, view).await.as_bytes())?;
            return Ok(Outcome::Fine);
        }
        keep_what_matters(findings);
    }
    out.document(&document, true)?;
    Ok(Outcome::Fine)
}

/// The stories of these findings, which the document had.
async fn stories(
    client: &Client,
    document: &Document,
    mut findings: Vec<Finding>,
    whole: bool,
    view: View,
) -> String {
    keep_what_matters(&mut findings);
    let all = around(client, &findings).await;
    story::render(document, &findings, &all, whole, view)
}

/// What `explain` says about a code, a finding, an IP, a pod or a netns.
pub(super) async fn story_about(
    client: &Client,
    what: &str,
    view: impl Fn(&Document) -> View,
) -> Result<String, Failure> {
    if let Ok(code) = what.parse::<Code>() {
        return Ok(code.runbook().to_owned());
    }
    match about(client, what).await? {
        Lookup::Nothing(document) => nothing_wrong(what, &document, view(&document)),
        Lookup::Findings(mut document) => {
            let Body::Findings(findings) = &mut document.body else {
                return Err(unknown(what, &document));
            };
            let findings = std::mem::take(findings);
            let view = view(&document);
            Ok(stories(client, &document, findings, false, view).await)
        }
    }
}

/// Every finding that these may be related to, they among them. A story does without when it cannot
/// be had.
pub(super) async fn around(client: &Client, findings: &[Finding]) -> Vec<Finding> {
    // What is over was caused by what is over as well.
    let over = findings.iter().any(|finding| finding.status == Status::Resolved);
    match client.ask(&Ask::Findings { all: over, what: None }).await {
        Ok(Document { body: Body::Findings(all), .. }) => all,
        _ => findings.to_vec(),
    }
}

/// Explains a pasted error: its meaning, and the findings about what it names.
async fn error(client: &Client, out: &Out, text: &str, whole: bool) -> Result<Outcome, Failure> {
    let pasted = Pasted::read(text);
    let mut document = client.ask(&Ask::Findings { all: true, what: None }).await?;
    let Body::Findings(known) = &mut document.body else {
        return Err(unknown("about this", &document));
    };
    let Some((fit, mut found)) = pasted.matching(known) else {
        return Err(no_match(&pasted, &document));
    };
    keep_what_matters(&mut found);
    let one = found.len() == 1;
    document.body = Body::Findings(found);
    if out.for_people() {
        let means = pasted.means().map(|means| format!("This error: {means}.\n"));
        let fit = match fit {
            Fit::Named => "",
            Fit::Alike => "It names nothing that a finding is about. Of this kind there is:\n",
        };
        out.raw(format!("{}{fit}\n", means.unwrap_or_default()).as_bytes())?;
        if !one {
            let view = View { all: true, ..out.view(&document) };
            out.raw(show::document(&document, view).as_bytes())?;
            return Ok(Outcome::Fine);
        }
    }
    tell(client, out, document, whole).await
}

/// The failure if no finding matches, with the runbook that may help.
fn no_match(pasted: &Pasted<'_>, document: &Document) -> Failure {
    let what = match pasted.means() {
        Some(means) => format!("this error means that {means}, and no finding is about it"),
        None => "no finding is about what this text names".to_owned(),
    };
    let next = match pasted.code() {
        Some(code) => format!("the nearest runbook is `ipwatch explain {code}`"),
        None => "`ipwatch query findings --all` lists findings".to_owned(),
    };
    Failure::NotFound(match text::blind_names(document).as_str() {
        "" => format!("{what}: {next}"),
        // What a blind source would have told is no proof; the runbook helps nevertheless.
        blind => format!("{what} (incomplete: {blind}): {next}"),
    })
}

/// What a question about one thing brought.
pub(super) enum Lookup {
    /// Findings about it.
    Findings(Document),
    /// The addresses, about which no finding is known.
    Nothing(Document),
}

/// The findings that the daemon selects for `what`.
async fn findings_about(client: &Client, what: &str) -> Result<Option<Document>, Failure> {
    let ask = Ask::Findings { all: true, what: Some(what.to_owned()) };
    match client.ask(&ask).await {
        Ok(document) => {
            let none = matches!(&document.body, Body::Findings(findings) if findings.is_empty());
            Ok(Some(document).filter(|_| !none))
        }
        Err(ClientError::Refused { status: 404, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The addresses that are meant, or the findings that they name: the subject of a finding has only one of several
/// IPs.
async fn addresses(client: &Client, what: &str) -> Result<Lookup, Failure> {
    let selectors = match what.parse::<Prefix>() {
        Ok(prefix) => vec![Selector::Ip(Some(prefix))],
        Err(_) => {
            vec![Selector::Pod(Some(what.to_owned())), Selector::Netns(Some(what.to_owned()))]
        }
    };
    let mut found = None;
    for selector in selectors {
        match client.ask(&Ask::Addresses(selector)).await {
            Ok(document) => found = Some(document),
            Err(ClientError::Refused { status: 404, .. }) => continue,
            Err(error) => return Err(error.into()),
        }
        break;
    }
    let Some(document) = found else {
        let message = unknown(what, &client.ask(&Ask::Doctor).await?);
        return Err(with_hint(client, what, message).await);
    };
    let Body::Addresses(addresses) = &document.body else { return Err(unknown(what, &document)) };
    if addresses.is_empty() {
        return Err(unknown(what, &document));
    }
    let named: HashSet<&str> =
        addresses.iter().flat_map(|address| &address.findings).map(String::as_str).collect();
    if named.is_empty() {
        return Ok(Lookup::Nothing(document));
    }
    let mut told = client.ask(&Ask::Findings { all: true, what: None }).await?;
    if let Body::Findings(findings) = &mut told.body {
        findings.retain(|finding| named.contains(finding.id.as_str()));
    }
    Ok(Lookup::Findings(told))
}

/// Prints the addresses, and that nothing wrong is known about them.
fn healthy(out: &Out, what: &str, document: Document) -> Result<Outcome, Failure> {
    if !out.for_people() {
        // For programs, "nothing wrong" is an empty list of findings.
        out.document(&Document { body: Body::Findings(Vec::new()), ..document }, true)?;
        return Ok(Outcome::Fine);
    }
    out.raw(nothing_wrong(what, &document, out.view(&document))?.as_bytes())?;
    Ok(Outcome::Fine)
}

/// The addresses, about which no finding is known.
fn nothing_wrong(what: &str, document: &Document, view: View) -> Result<String, Failure> {
    let Body::Addresses(addresses) = &document.body else { return Err(unknown(what, document)) };
    let mut text = format!("{}: nothing wrong is known\n", escape(what));
    for address in addresses {
        text.push('\n');
        text.push_str(&card::render(address, view));
    }
    Ok(text)
}

/// Old stories are told only when there is no open one, and a cause's story tells of what came of it.
pub(super) fn keep_what_matters(findings: &mut Vec<Finding>) {
    if findings.iter().any(|finding| finding.status != Status::Resolved) {
        findings.retain(|finding| finding.status != Status::Resolved);
    }
    let families = Families::new(findings);
    let folded: HashSet<String> = findings
        .iter()
        .filter(|finding| families.is_folded(finding))
        .map(|finding| finding.id.clone())
        .collect();
    findings.retain(|finding| !folded.contains(&finding.id));
}

/// Adds the code, id, pod or netns that was probably meant.
async fn with_hint(client: &Client, what: &str, failure: Failure) -> Failure {
    let Failure::NotFound(message) = failure else { return failure };
    let named = || Some(what.to_owned());
    for ask in [
        Ask::Findings { all: true, what: named() },
        Ask::Addresses(Selector::Pod(named())),
        Ask::Addresses(Selector::Netns(named())),
    ] {
        if let Some(name) = meant(client, &ask).await {
            return Failure::NotFound(format!("{message}; did you mean {}?", said(&name)));
        }
    }
    Failure::NotFound(message)
}

fn unknown(what: &str, document: &Document) -> Failure {
    let what = format!("no finding, address, pod or netns {what} on this node");
    let next = "`ipwatch query findings --all` lists findings";
    Failure::NotFound(text::not_there(&what, next, document, |_| true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AskError, fake};
    use crate::cli::show::sample;
    use crate::fact::SourceName;

    #[test]
    fn every_code_has_a_whole_runbook() {
        for code in Code::ALL {
            let page = code.runbook();
            let mut lines = page.lines();
            assert_eq!(lines.next(), Some(&*format!("# {code}")));
            for section in [
                "| Severity | When |",
                "## What it means",
                "## Look (a minute)",
                "## Keep it from getting worse",
                "## Why",
                "## Don't",
                "## Is it over?",
                "## How it is decided",
                "Never reported: ",
            ] {
                assert!(page.contains(&format!("\n{section}")), "{code}: {section}");
            }
            // Runbooks link only to each other, and contain nothing that a terminal cannot show.
            for link in page.split("](").skip(1) {
                let name = link.split(')').next().unwrap_or_default();
                let code = name.strip_suffix(".md").unwrap_or_default().parse::<Code>();
                assert!(code.is_ok(), "{name}");
            }
            assert_eq!(page.matches("```").count() % 2, 0, "{code}");
        }
    }

    fn findings() -> Vec<Finding> {
        let Body::Findings(findings) = sample("scan.json").body else { panic!("findings") };
        findings
    }

    #[test]
    fn an_open_finding_hides_its_forerunners() {
        let mut findings = findings();
        findings.truncate(2);
        findings[0].status = Status::Resolved;
        keep_what_matters(&mut findings);
        assert_eq!(findings.len(), 1);
        findings[0].status = Status::Resolved;
        keep_what_matters(&mut findings);
        assert_eq!(findings.len(), 1, "alone it is told");
    }

    #[test]
    fn a_cause_is_told_for_its_consequences() {
        let mut all = findings();
        keep_what_matters(&mut all);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].id, "k3f9q2m7x5wz4a6b");
        let mut consequence = findings().split_off(2);
        keep_what_matters(&mut consequence);
        assert_eq!(consequence.len(), 1, "one that was asked for alone is told");
    }

    #[test]
    fn an_error_that_no_finding_is_about_has_its_runbook() {
        let mut document = sample("scan.json");
        document.sources.retain(|source| source.name != SourceName::Cni);
        let say = |text: &str| no_match(&Pasted::read(text), &document).to_string();
        let busy = say("rmdir x: device or resource busy");
        assert!(busy.starts_with("this error means that what is to be removed is"), "{busy}");
        assert!(busy.ends_with("`ipwatch explain mount-leak-blocks-removal`"), "{busy}");
        assert!(say("a b").ends_with("`ipwatch query findings --all` lists findings"));
        let blind = no_match(&Pasted::read("a b"), &sample("scan.json")).to_string();
        assert!(blind.contains("(incomplete: cni degraded)"), "{blind}");
    }

    #[tokio::test]
    async fn a_name_is_looked_up_as_a_pod_and_then_as_a_netns() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Addresses(Selector::Netns(Some(name))) if name == "cni-7f3a" => {
                Ok(sample("query-ip.json"))
            }
            Ask::Findings { what: None, .. } => Ok(sample("scan.json")),
            _ => Err(AskError::NotFound("none".into())),
        });
        let told = addresses(&fake.client, "cni-7f3a").await.unwrap();
        assert!(matches!(told, Lookup::Findings(_)));
    }

    #[tokio::test]
    async fn what_is_over_is_told_with_what_is_over() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Findings { all: true, what: None } => Ok(sample("scan.json")),
            _ => Err(AskError::NotFound("none".into())),
        });
        let mut one = findings();
        one.truncate(1);
        assert_eq!(around(&fake.client, &one).await.len(), 1, "asked for the open ones only");
        one[0].status = Status::Resolved;
        assert_eq!(around(&fake.client, &one).await.len(), 3);
    }

    #[tokio::test]
    async fn an_address_leads_to_the_findings_that_it_names() {
        // As if the finding's subject were another IP of the same netns.
        let fake = fake::daemon(|ask| match ask {
            Ask::Findings { what: Some(_), .. } => Err(AskError::NotFound("none".into())),
            Ask::Findings { what: None, .. } => Ok(sample("scan.json")),
            _ => Ok(sample("query-ip.json")),
        });
        assert!(findings_about(&fake.client, "10.0.3.17").await.unwrap().is_none());
        let Lookup::Findings(told) = addresses(&fake.client, "10.0.3.17").await.unwrap() else {
            panic!("nothing told")
        };
        let Body::Findings(findings) = told.body else { panic!("findings") };
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].id, "k3f9q2m7x5wz4a6b");
    }

    #[tokio::test]
    async fn a_slip_of_the_finger_is_answered_with_what_there_is() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Doctor => Ok(sample("doctor.json")),
            Ask::Findings { what: None, .. } => Ok(sample("scan.json")),
            Ask::Addresses(Selector::Pod(None)) => Ok(sample("query-netns.json")),
            _ => Err(AskError::NotFound("none".into())),
        });
        for (what, name) in [("ip-duplicat", "ip-duplicate"), ("shop/api-1", "shop/api-0")] {
            let Err(Failure::NotFound(message)) = addresses(&fake.client, what).await else {
                panic!("found")
            };
            assert!(message.ends_with(&format!("did you mean {name}?")), "{message}");
        }
    }

    #[tokio::test]
    async fn what_is_nowhere_is_not_found() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Doctor => Ok(sample("doctor.json")),
            _ => Err(AskError::NotFound("none".into())),
        });
        let Err(Failure::NotFound(message)) = addresses(&fake.client, "shop/api-9").await else {
            panic!("found")
        };
        assert!(message.contains("shop/api-9") && message.contains("cni degraded"), "{message}");
    }
}
