//! `ipwatch explain`: what happened, what will break, what to do.

use std::collections::HashSet;

use super::args::{Explain, Global};
use super::output::Out;
use super::show::{card, story};
use super::{Failure, Outcome, text};
use crate::api::client::{Client, ClientError};
use crate::api::{Ask, Prefix, Selector};
use crate::contract::{Body, Document};
use crate::escape::escape;
use crate::finding::{Code, Finding, Status};

pub(super) async fn explain(
    global: &Global,
    out: &Out,
    explain: Explain,
) -> Result<Outcome, Failure> {
    let Explain { what, evidence } = explain;
    if let Ok(code) = what.parse::<Code>() {
        // Ours, not a container's: printed as it is.
        out.raw(code.runbook().as_bytes())?;
        return Ok(Outcome::Fine);
    }
    let client = Client::new(global.socket());
    let mut document = match findings_about(&client, &what).await? {
        Some(document) => document,
        None => match addresses(&client, &what).await? {
            Told::Findings(document) => document,
            Told::Nothing(document) => return healthy(out, &what, document),
        },
    };
    if let Body::Findings(findings) = &mut document.body {
        keep_what_matters(findings);
        if out.for_people() {
            let findings = std::mem::take(findings);
            let story = story::render(&document, &findings, evidence, out.view(&document));
            out.raw(story.as_bytes())?;
            return Ok(Outcome::Fine);
        }
    }
    out.document(&document, true)?;
    Ok(Outcome::Fine)
}

/// What a look at addresses brought.
enum Told {
    /// Findings about them.
    Findings(Document),
    /// The addresses, about which nothing wrong is known.
    Nothing(Document),
}

/// The findings that the daemon says are meant.
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

/// The addresses that are meant, else the findings that they name: a finding's subject is one IP of
/// several.
async fn addresses(client: &Client, what: &str) -> Result<Told, Failure> {
    let selector = match what.parse::<Prefix>() {
        Ok(prefix) => Selector::Ip(Some(prefix)),
        Err(_) => Selector::Pod(Some(what.to_owned())),
    };
    let document = match client.ask(&Ask::Addresses(selector)).await {
        Ok(document) => document,
        Err(ClientError::Refused { status: 404, .. }) => {
            return Err(unknown(what, &client.ask(&Ask::Doctor).await?));
        }
        Err(error) => return Err(error.into()),
    };
    let Body::Addresses(addresses) = &document.body else { return Err(unknown(what, &document)) };
    if addresses.is_empty() {
        return Err(unknown(what, &document));
    }
    let named: HashSet<&str> =
        addresses.iter().flat_map(|address| &address.findings).map(String::as_str).collect();
    if named.is_empty() {
        return Ok(Told::Nothing(document));
    }
    let mut told = client.ask(&Ask::Findings { all: true, what: None }).await?;
    if let Body::Findings(findings) = &mut told.body {
        findings.retain(|finding| named.contains(finding.id.as_str()));
    }
    Ok(Told::Findings(told))
}

/// Says what it is, and that nothing is wrong with it.
fn healthy(out: &Out, what: &str, document: Document) -> Result<Outcome, Failure> {
    let Body::Addresses(addresses) = &document.body else { return Err(unknown(what, &document)) };
    if !out.for_people() {
        // For programs, "nothing wrong" is an empty list of findings.
        out.document(&Document { body: Body::Findings(Vec::new()), ..document }, true)?;
        return Ok(Outcome::Fine);
    }
    let mut text = format!("{}: nothing wrong is known\n", escape(what));
    for address in addresses {
        text.push('\n');
        text.push_str(&card::render(address, &card::Around::default(), out.view(&document)));
    }
    out.raw(text.as_bytes())?;
    Ok(Outcome::Fine)
}

/// Old stories are told only when there is no open one.
fn keep_what_matters(findings: &mut Vec<Finding>) {
    if findings.iter().any(|finding| finding.status != Status::Resolved) {
        findings.retain(|finding| finding.status != Status::Resolved);
    }
}

fn unknown(what: &str, document: &Document) -> Failure {
    let what = format!("no finding, address or pod {what} on this node");
    let next = "`ipwatch query findings --all` lists findings";
    Failure::NotFound(text::not_there(&what, next, document))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AskError, fake};
    use crate::cli::show::sample;

    #[test]
    fn an_open_finding_hides_its_forerunners() {
        let Body::Findings(mut findings) = sample("scan.json").body else { panic!("findings") };
        findings[0].status = Status::Resolved;
        keep_what_matters(&mut findings);
        assert_eq!(findings.len(), 1);
        findings[0].status = Status::Resolved;
        keep_what_matters(&mut findings);
        assert_eq!(findings.len(), 1, "alone it is told");
    }

    #[tokio::test]
    async fn an_address_leads_to_the_findings_that_it_names() {
        // As when the finding's subject is another IP of the same netns.
        let fake = fake::daemon(|ask| match ask {
            Ask::Findings { what: Some(_), .. } => Err(AskError::NotFound("none".into())),
            Ask::Findings { what: None, .. } => Ok(sample("scan.json")),
            _ => Ok(sample("query-ip.json")),
        });
        assert!(findings_about(&fake.client, "10.0.3.17").await.unwrap().is_none());
        let Told::Findings(told) = addresses(&fake.client, "10.0.3.17").await.unwrap() else {
            panic!("nothing told")
        };
        let Body::Findings(findings) = told.body else { panic!("findings") };
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].id, "k3f9q2m7x5wz4a6b");
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
