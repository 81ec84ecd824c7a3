//! What the daemon is asked for a report, and what it answered.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::api::client::{Client, ClientError};
use crate::api::{Ask, Past, Prefix, Selector};
use crate::cli::Failure;
use crate::cli::explain::{self, Lookup};
use crate::contract::{
    Address, Body, Code, DaemonInfo, Document, IpamEntry, PluginRun, Probe, SourceState, Tenure,
};
use crate::finding::Finding;

/// Maximum number of IPs whose history is requested.
const MOST_IPS: usize = 8;
/// Maximum number of tenures of one IP in a report: the newest.
const MOST_TENURES: usize = 12;

/// Everything that the daemon answered about one incident.
#[derive(Debug, Clone, Default)]
pub(super) struct Case {
    /// What was asked for.
    pub(super) about: String,
    pub(super) node: String,
    pub(super) taken_at: String,
    pub(super) sources: Vec<SourceState>,
    /// The findings about it.
    pub(super) findings: Vec<Finding>,
    /// All findings of the node, among which are the causes and consequences.
    pub(super) around: Vec<Finding>,
    pub(super) addresses: Vec<Address>,
    pub(super) history: Vec<Tenure>,
    pub(super) runs: Vec<PluginRun>,
    pub(super) reservations: Vec<IpamEntry>,
    pub(super) probes: Vec<Probe>,
    pub(super) blind: Vec<Code>,
    pub(super) daemon: Option<DaemonInfo>,
    /// Questions that were not answered, each with the reason.
    pub(super) unanswered: Vec<String>,
}

impl Case {
    /// Asks the daemon. An answer that is missing is named in the report; without the findings or addresses themselves there
    /// is no report.
    pub(super) async fn ask(client: &Client, what: &str) -> Result<Self, Failure> {
        let mut case = Case { about: what.to_owned(), ..Case::default() };
        let document = match explain::about(client, what).await? {
            Lookup::Findings(document) | Lookup::Nothing(document) => document,
        };
        case.node.clone_from(&document.node);
        case.taken_at.clone_from(&document.taken_at);
        case.sources.clone_from(&document.sources);
        match document.body {
            Body::Findings(mut findings) => {
                explain::keep_what_matters(&mut findings);
                case.around = explain::around(client, &findings).await;
                case.findings = findings;
            }
            Body::Addresses(addresses) => case.addresses = addresses,
            _ => {}
        }
        case.past(client, what).await;
        match client.ask(&Ask::Doctor).await {
            Ok(Document { body: Body::Probes(probes), blind, daemon, .. }) => {
                (case.probes, case.blind, case.daemon) = (probes, blind, daemon);
            }
            Ok(_) => {}
            Err(error) => case.unanswered.push(format!("what can be seen on this node: {error}")),
        }
        Ok(case)
    }

    /// The IPs that the report is about.
    fn ips(&self, what: &str) -> BTreeSet<IpAddr> {
        let named = what.parse::<Prefix>().ok().filter(|prefix| prefix.is_host());
        let found = self.findings.iter().flat_map(|finding| finding.subject.ips());
        let up = self.addresses.iter().filter_map(|address| address.ip);
        let all: BTreeSet<IpAddr> =
            named.map(|prefix| prefix.ip).into_iter().chain(found).chain(up).collect();
        all.into_iter().filter(|ip| !ip.is_loopback()).collect()
    }

    /// Asks for the tenures of the IPs, the runs of plugins, and the reservations.
    async fn past(&mut self, client: &Client, what: &str) {
        let ips = self.ips(what);
        if ips.len() > MOST_IPS {
            let left = ips.len() - MOST_IPS;
            self.unanswered
                .push(format!("the history of {left} more IPs, which are too many for one report"));
        }
        for ip in ips.into_iter().take(MOST_IPS) {
            let prefix = Prefix::host(ip);
            let past = Past { ip: Some(prefix), ..Past::default() };
            self.history(client, past, &ip.to_string()).await;
            match client.ask(&Ask::Addresses(Selector::Ip(Some(prefix)))).await {
                Ok(Document { body: Body::Addresses(found), .. }) => self.up(found),
                answer => self.missing(&format!("where {ip} is up"), answer),
            }
            match client.ask(&Ask::Ipam { ip: Some(prefix), network: None }).await {
                Ok(document) => self.reservations.extend(document.reservations),
                answer => self.missing(&format!("for whom {ip} is reserved"), answer),
            }
        }
        let pods = self.findings.iter().filter_map(|finding| finding.subject.pod.as_ref());
        let names = pods.filter_map(|pod| {
            Some(format!("{}/{}", pod.namespace.as_deref()?, pod.name.as_deref()?))
        });
        for pod in names.collect::<BTreeSet<_>>().into_iter().take(MOST_IPS) {
            let past = Past { pod: Some(pod.clone()), ..Past::default() };
            self.history(client, past, &format!("pod {pod}")).await;
        }
    }

    async fn history(&mut self, client: &Client, past: Past, whose: &str) {
        match client.ask(&Ask::History(past)).await {
            Ok(Document { body: Body::History(found), runs, .. }) => {
                let new: Vec<Tenure> =
                    found.into_iter().filter(|tenure| !self.history.contains(tenure)).collect();
                let left = new.len().saturating_sub(MOST_TENURES);
                if left > 0 {
                    self.unanswered.push(format!(
                        "the older history of {whose}: `ipwatch query history` has {left} more tenures"
                    ));
                }
                self.history.extend(new.into_iter().take(MOST_TENURES));
                for run in runs {
                    if !self.runs.contains(&run) {
                        self.runs.push(run);
                    }
                }
            }
            answer => self.missing(&format!("the history of {whose}"), answer),
        }
    }

    fn up(&mut self, found: Vec<Address>) {
        for address in found {
            if !self.addresses.contains(&address) {
                self.addresses.push(address);
            }
        }
    }

    /// Notes a failed question. "Nothing matches" (404) is an answer.
    fn missing(&mut self, what: &str, answer: Result<Document, ClientError>) {
        match answer {
            Ok(_) | Err(ClientError::Refused { status: 404, .. }) => {}
            Err(error) => self.unanswered.push(format!("{what}: {error}")),
        }
    }
}
