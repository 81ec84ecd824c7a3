//! `ipwatch query`: asks the daemon once, or again after each change.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::args::{Earlier, Format, Global, Observation, Query, Within};
use super::meant::meant;
use super::output::Out;
use super::show::ip::{self, Around};
use super::view::View;
use super::{Failure, Outcome, show, text};
use crate::api::client::{Client, ClientError, Watch};
use crate::api::{Ask, Past, Prefix, Selector, Stream};
use crate::contract::{Address, Body, Document};
use crate::escape::escape;
use crate::fact::SourceName;
use crate::finding::Finding;
use crate::remedy::said;

/// Events within this time cause one new answer.
const SETTLE: Duration = Duration::from_millis(300);

pub(super) async fn query(global: &Global, out: &Out, query: Query) -> Result<Outcome, Failure> {
    let client = Client::new(global.socket());
    let (all, ask) = (query.what.all(), ask(query.what));
    if query.watch {
        return follow(&client, out, &ask, all).await;
    }
    let (document, missing) = look(&client, &ask).await?;
    match missing {
        None => {
            out.raw(answer(&client, out, &ask, &document, all).await?.as_bytes())?;
            Ok(Outcome::Fine)
        }
        Some(message) => {
            // Programs get a document anyway: an empty list, and the status of the sources.
            if !out.for_people() {
                out.document(&document, true)?;
            } else if let Ask::Addresses(Selector::Ip(Some(prefix))) = &ask
                && is_card(out, *prefix)
            {
                out.raw(answer(&client, out, &ask, &document, all).await?.as_bytes())?;
            }
            Err(Failure::NotFound(message))
        }
    }
}

/// The daemon's answer, and a message if the requested object does not exist; the document is then empty.
async fn look(client: &Client, ask: &Ask) -> Result<(Document, Option<String>), Failure> {
    match client.ask(ask).await {
        Ok(document) => {
            let missing = missing(ask, &document);
            Ok((document, with_hint(client, ask, missing).await))
        }
        Err(ClientError::Refused { status: 404, error, .. }) => {
            // The refusal does not include the status of the sources, which decides whether the absence is proof.
            let mut document = client.ask(&Ask::Doctor).await?;
            document.body = nothing(ask);
            let message = missing(ask, &document).unwrap_or(error);
            Ok((document, with_hint(client, ask, Some(message)).await))
        }
        Err(error) => Err(error.into()),
    }
}

/// Adds the name that was probably meant.
async fn with_hint(client: &Client, ask: &Ask, message: Option<String>) -> Option<String> {
    let message = message?;
    Some(match meant(client, ask).await {
        Some(name) => format!("{message}; did you mean {}?", said(&name)),
        None => message,
    })
}

/// The empty body for a question.
fn nothing(ask: &Ask) -> Body {
    match ask {
        Ask::Addresses(_) | Ask::Reach(_) => Body::Addresses(Vec::new()),
        Ask::Findings { .. } => Body::Findings(Vec::new()),
        Ask::Neighbours(_) => Body::Neighbours(Vec::new()),
        Ask::History(_) => Body::History(Vec::new()),
        Ask::Ipam { .. } => Body::Ranges(Vec::new()),
        // `check`, `ack`, `unack` and `ipwatch-ipam` ask by themselves.
        Ask::Doctor
        | Ask::Canary
        | Ask::Check { .. }
        | Ask::Held(_)
        | Ask::Ack { .. }
        | Ask::Unack { .. } => Body::Probes(Vec::new()),
    }
}

fn ask(what: Observation) -> Ask {
    match what {
        Observation::Ip { within: Within { prefix }, reach: false, .. } => {
            Ask::Addresses(Selector::Ip(prefix))
        }
        Observation::Ip { within: Within { prefix }, reach: true, .. } => {
            Ask::Reach(Selector::Ip(prefix))
        }
        Observation::Netns { netns, .. } => Ask::Addresses(Selector::Netns(netns)),
        Observation::Pod { pod, .. } => Ask::Addresses(Selector::Pod(pod)),
        Observation::Pid { pid, .. } => Ask::Addresses(Selector::Pid(pid)),
        Observation::Findings { what, all } => Ask::Findings { all, what },
        Observation::History(Earlier { within: Within { prefix }, pod, at }) => {
            Ask::History(Past { ip: prefix, pod, at })
        }
        Observation::Neigh(Within { prefix }) => Ask::Neighbours(prefix),
        Observation::Ipam { what } => match what.as_deref().map(str::parse) {
            Some(Ok(prefix)) => Ask::Ipam { ip: Some(prefix), network: None },
            _ => Ask::Ipam { ip: None, network: what },
        },
    }
}

/// Asks again after each event, and prints the answer if it has changed.
async fn follow(client: &Client, out: &Out, ask: &Ask, all: bool) -> Result<Outcome, Failure> {
    // Subscribe before asking, so that no event is lost in between.
    let stream = match ask {
        Ask::Neighbours(_) => Stream::Neighbours,
        _ => Stream::Events,
    };
    let mut watch = client.watch(stream).await?;
    let mut shown: Option<Body> = None;
    loop {
        let (document, missing) = look(client, ask).await?;
        if shown.as_ref() != Some(&document.body) {
            out.clear()?;
            let card =
                matches!(ask, Ask::Addresses(Selector::Ip(Some(prefix))) if is_card(out, *prefix));
            let text = match missing.filter(|_| out.for_people() && !card) {
                Some(message) => format!("{}\n", escape(&message)),
                None => answer(client, out, ask, &document, all).await?,
            };
            out.raw(text.as_bytes())?;
            shown = Some(document.body);
        }
        if !settled(&mut watch).await? {
            let path = client.path().display();
            return Err(anyhow::anyhow!(
                "the daemon on {path} has closed the connection: `systemctl status ipwatch` says why"
            )
            .into());
        }
    }
}

/// Waits for an event and the end of its burst. `false`: the daemon has closed the stream.
async fn settled(watch: &mut Watch) -> Result<bool, Failure> {
    if watch.next_line().await?.is_none() {
        return Ok(false);
    }
    let end = Instant::now() + SETTLE;
    while let Ok(line) = timeout_at(end, watch.next_line()).await {
        if line?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The text of an answer: trees if they were requested, a card for a single IP.
async fn answer(
    client: &Client,
    out: &Out,
    ask: &Ask,
    document: &Document,
    all: bool,
) -> Result<String, Failure> {
    let view =
        View { all, pods: matches!(ask, Ask::Addresses(Selector::Pod(_))), ..out.view(document) };
    match (ask, &document.body) {
        (_, Body::Addresses(addresses))
            if out.format == Format::Tree || (matches!(ask, Ask::Reach(_)) && out.for_people()) =>
        {
            Ok(show::trees(document, &open_findings(client, addresses).await, view))
        }
        (Ask::Addresses(Selector::Ip(Some(prefix))), Body::Addresses(addresses))
            if is_card(out, *prefix) =>
        {
            let around = around(client, *prefix, addresses).await;
            Ok(ip::render(prefix.ip, addresses, &around, view))
        }
        _ => out.render(document, view),
    }
}

/// A single IP is shown as a card, even if it is up nowhere: a store may still reserve it.
fn is_card(out: &Out, prefix: Prefix) -> bool {
    out.for_people() && out.format != Format::Tree && prefix.is_host()
}

/// What else is known about an IP. Data that cannot be read is left out.
async fn around(client: &Client, ip: Prefix, addresses: &[Address]) -> Around {
    let mut around = Around::default();
    if let Ok(Document { body: Body::Findings(findings), .. }) =
        client.ask(&Ask::Findings { all: false, what: None }).await
    {
        around.findings = findings;
    }
    let reserved = client.ask(&Ask::Ipam { ip: Some(ip), network: None }).await;
    around.reservations = reserved.map(|document| document.reservations).unwrap_or_default();
    if addresses.is_empty()
        && let Ok(Document { body: Body::Verdict(verdict), .. }) =
            client.ask(&Ask::Check { ip: ip.ip, container: None }).await
    {
        around.verdict = Some(verdict);
    }
    if let Ok(Document { body: Body::Neighbours(neighbours), .. }) =
        client.ask(&Ask::Neighbours(Some(ip))).await
    {
        around.neighbours = neighbours;
    }
    around
}

/// The open findings, if one of these addresses has any. If they cannot be read, only their ids are shown.
pub(super) async fn open_findings(client: &Client, addresses: &[Address]) -> Vec<Finding> {
    if addresses.iter().all(|address| address.findings.is_empty()) {
        return Vec::new();
    }
    match client.ask(&Ask::Findings { all: false, what: None }).await {
        Ok(Document { body: Body::Findings(findings), .. }) => findings,
        _ => Vec::new(),
    }
}

/// The message if a question about one object has an empty answer.
fn missing(ask: &Ask, document: &Document) -> Option<String> {
    let empty = match &document.body {
        Body::Addresses(list) => list.is_empty(),
        Body::Findings(list) => list.is_empty(),
        Body::Neighbours(list) => list.is_empty(),
        Body::History(list) => list.is_empty(),
        Body::Probes(list) => list.is_empty(),
        Body::Ranges(list) => {
            list.is_empty() && document.reservations.is_empty() && document.networks.is_empty()
        }
        Body::Verdict(_) | Body::Cluster(_) | Body::Fix(_) | Body::Held(_) => false,
    };
    if !empty {
        return None;
    }
    let (what, next) = match ask {
        Ask::Addresses(Selector::Ip(Some(ip))) | Ask::Reach(Selector::Ip(Some(ip))) => {
            let within = if ip.is_host() { "" } else { "within " };
            (
                format!("no address {within}{ip} in any network namespace of this node"),
                "`ipwatch query ip` lists what there is",
            )
        }
        Ask::Addresses(Selector::Netns(Some(netns))) => (
            format!("no network namespace {netns} on this node"),
            "`ipwatch query netns` lists what there is",
        ),
        Ask::Addresses(Selector::Pod(Some(pod))) => {
            (format!("no pod {pod} on this node"), "`ipwatch query pod` lists what there is")
        }
        Ask::Addresses(Selector::Pid(pid)) => (
            format!("no network namespace is held by process {pid}"),
            "it does not exist, or has given its namespaces up",
        ),
        Ask::Neighbours(Some(ip)) => {
            (format!("no ARP or NDP entry for {ip}"), "`ipwatch query neigh` lists what there is")
        }
        Ask::History(Past { ip: Some(ip), at, .. }) => {
            let then = if at.is_some() { " at that time" } else { "" };
            let what = format!("no record of who had {ip}{then}");
            (what, "`ipwatch query history` lists what there is")
        }
        Ask::History(Past { pod: Some(pod), .. }) => (
            format!("no record of an IP of pod {pod}"),
            "`ipwatch query history` lists what there is",
        ),
        Ask::Ipam { ip: Some(ip), .. } => (
            format!("no reservation of {ip} in any store of this node"),
            "`ipwatch query ipam` lists what there is",
        ),
        Ask::Ipam { network: Some(network), .. } => (
            format!("no network {network} in any store of this node"),
            "`ipwatch query ipam` lists what there is",
        ),
        Ask::Findings { what: Some(what), all } => (
            format!("no finding about {what}"),
            if *all {
                "`ipwatch query findings --all` lists them"
            } else {
                "--all looks among the resolved ones too"
            },
        ),
        _ => return None,
    };
    Some(text::not_there(&what, next, document, |source| tells(ask, source)))
}

/// Whether a source reports what this question is about.
fn tells(ask: &Ask, source: &str) -> bool {
    use SourceName::{Arp, Ledger, Map, Neighbours, Netlink, Probes, Procfs};
    let all: &[SourceName] = match ask {
        Ask::Addresses(Selector::Ip(_)) | Ask::Reach(Selector::Ip(_)) => {
            &[Map, Netlink, Probes, Procfs]
        }
        Ask::Neighbours(_) => &[Arp, Map, Neighbours, Netlink, Probes],
        Ask::History(_) => &[Ledger, Map, Netlink, Probes],
        // Pods, namespaces, findings and stores are reported by many sources.
        _ => return true,
    };
    all.iter().any(|name| name.as_str() == source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AskError, Event, fake};
    use crate::cli::show::sample;

    fn empty(degraded: bool) -> Document {
        let mut document = sample("query-ip.json");
        document.body = Body::Addresses(Vec::new());
        if !degraded {
            document.sources.retain(|source| source.name != SourceName::Cni);
        }
        document
    }

    #[test]
    fn an_ip_that_is_nowhere_is_said_to_be_nowhere() {
        let ask = Ask::Addresses(Selector::Ip(Some("10.0.0.9".parse().unwrap())));
        let message = missing(&ask, &empty(false)).unwrap();
        assert!(
            message.starts_with("no address 10.0.0.9 in any network namespace of this node: "),
            "{message}"
        );
    }

    #[test]
    fn what_a_blind_source_would_have_told_is_no_proof() {
        let pod = Ask::Addresses(Selector::Pod(Some("api-9".to_owned())));
        let message = missing(&pod, &empty(true)).unwrap();
        assert!(message.contains("(incomplete: cni degraded): see `ipwatch doctor`"), "{message}");
        // Where an IP is up says the kernel.
        let ip = Ask::Addresses(Selector::Ip(Some("10.0.0.9".parse().unwrap())));
        let message = missing(&ip, &empty(true)).unwrap();
        assert!(!message.contains("incomplete"), "{message}");
    }

    #[test]
    fn an_empty_list_of_everything_is_an_answer() {
        assert_eq!(missing(&Ask::Addresses(Selector::Ip(None)), &empty(true)), None);
        let what = Some("k3f9".to_owned());
        let mut document = empty(false);
        document.body = Body::Findings(Vec::new());
        assert!(missing(&Ask::Findings { all: false, what }, &document).is_some());
        assert_eq!(missing(&Ask::Findings { all: false, what: None }, &document), None);
    }

    #[test]
    fn what_is_no_prefix_is_a_network() {
        let asked = |what: &str| ask(Observation::Ipam { what: Some(what.to_owned()) });
        let prefix = |text: &str| Ask::Ipam { ip: Some(text.parse().unwrap()), network: None };
        assert_eq!(asked("10.0.3.17"), prefix("10.0.3.17"));
        assert_eq!(asked("10.0.3.0/24"), prefix("10.0.3.0/24"));
        let network = Some("cbr0".to_owned());
        assert_eq!(asked("cbr0"), Ask::Ipam { ip: None, network });
        assert_eq!(ask(Observation::Ipam { what: None }), Ask::Ipam { ip: None, network: None });
    }

    #[tokio::test]
    async fn a_refusal_becomes_an_empty_document_that_says_how_the_sources_stand() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Doctor => Ok(sample("doctor.json")),
            _ => Err(AskError::NotFound("not here".into())),
        });
        let ask = Ask::Addresses(Selector::Ip(Some("10.0.0.9".parse().unwrap())));
        let (document, message) = look(&fake.client, &ask).await.unwrap();
        assert_eq!(document.body, Body::Addresses(Vec::new()));
        assert_eq!(document.sources, sample("doctor.json").sources);
        assert!(message.unwrap().contains("no address 10.0.0.9 in any network namespace"));
        // Without a message of our own the daemon's is passed on.
        let (_, message) = look(&fake.client, &Ask::History(Past::default())).await.unwrap();
        assert_eq!(message.as_deref(), Some("not here"));
    }

    #[tokio::test]
    async fn findings_are_fetched_only_where_one_is_named() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Findings { all: false, what: None } => Ok(sample("scan.json")),
            _ => Err(AskError::NotFound("none".into())),
        });
        let Body::Addresses(mut list) = sample("query-ip.json").body else { panic!("addresses") };
        assert_eq!(open_findings(&fake.client, &list).await.len(), 3);
        list[0].findings.clear();
        assert!(open_findings(&fake.client, &list).await.is_empty());
    }

    #[tokio::test]
    async fn other_refusals_are_errors() {
        let fake = fake::daemon(|_| Err(AskError::Ambiguous("two of them".into())));
        assert!(matches!(look(&fake.client, &Ask::Doctor).await, Err(Failure::Other(_))));
    }

    #[tokio::test]
    async fn a_burst_of_events_is_one_change() {
        let fake = fake::daemon(|_| Ok(sample("doctor.json")));
        let mut watch = fake.client.watch(Stream::Events).await.unwrap();
        for _ in 0..3 {
            fake.events.send(Event::Lagged { dropped: 1 });
        }
        assert!(settled(&mut watch).await.unwrap());
        let more = tokio::time::timeout(Duration::from_millis(50), watch.next_line()).await;
        assert!(more.is_err(), "all three belonged to one burst");
    }
}
