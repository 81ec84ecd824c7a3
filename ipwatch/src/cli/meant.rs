//! Suggests the existing name that is nearest to an unknown one: asks the daemon for all names.

use crate::api::client::Client;
use crate::api::{Ask, Past, Selector};
use crate::contract::{Address, Body, Document, Pod};
use crate::finding::{Code, Finding};
use crate::nearest::nearest;

/// The existing name that is nearest to the requested one, if one is near.
pub(super) async fn meant(client: &Client, ask: &Ask) -> Option<String> {
    let (what, all) = match ask {
        Ask::Addresses(Selector::Pod(Some(pod))) | Ask::History(Past { pod: Some(pod), .. }) => {
            (pod, Ask::Addresses(Selector::Pod(None)))
        }
        Ask::Addresses(Selector::Netns(Some(netns))) => {
            (netns, Ask::Addresses(Selector::Netns(None)))
        }
        Ask::Findings { what: Some(what), .. } => (what, Ask::Findings { all: true, what: None }),
        Ask::Ipam { network: Some(network), .. } => {
            (network, Ask::Ipam { ip: None, network: None })
        }
        _ => return None,
    };
    let Document { body, .. } = client.ask(&all).await.ok()?;
    let names: Vec<String> = match (ask, body) {
        (Ask::Addresses(Selector::Pod(_)) | Ask::History(_), Body::Addresses(all)) => {
            all.into_iter().filter_map(|address| address.pod).flat_map(of_pod).collect()
        }
        (_, Body::Addresses(all)) => all.iter().filter_map(of_netns).collect(),
        (_, Body::Findings(all)) => of_findings(&all, what.len()),
        (_, Body::Ranges(all)) => all.into_iter().map(|range| range.network).collect(),
        _ => return None,
    };
    nearest(what, names.iter().map(String::as_str)).map(str::to_owned)
}

/// A pod's name, without and with its namespace.
fn of_pod(pod: Pod) -> impl Iterator<Item = String> {
    let whole = pod.namespace.zip(pod.name.clone()).map(|(of, name)| format!("{of}/{name}"));
    pod.name.into_iter().chain(whole)
}

/// The file name of the netns mount.
fn of_netns(address: &Address) -> Option<String> {
    address.netns.path.as_deref()?.rsplit('/').next().map(str::to_owned)
}

/// Codes, pods, and ids cut to the given length.
fn of_findings(all: &[Finding], given: usize) -> Vec<String> {
    let ids = all.iter().filter_map(|finding| finding.id.get(..given)).map(str::to_owned);
    let pods = all.iter().flat_map(|finding| finding.subject.pods().cloned()).flat_map(of_pod);
    let codes = Code::ALL.iter().map(|code| code.as_str().to_owned());
    codes.chain(pods).chain(ids).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AskError, fake};
    use crate::cli::show::sample;

    #[tokio::test]
    async fn a_slip_of_the_finger_is_answered_with_what_there_is() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Addresses(Selector::Pod(None) | Selector::Netns(None)) => {
                Ok(sample("query-ip.json"))
            }
            Ask::Findings { all: true, what: None } => Ok(sample("scan.json")),
            Ask::Ipam { ip: None, network: None } => Ok(sample("query-ipam.json")),
            _ => Err(AskError::NotFound("not here".into())),
        });
        let Body::Findings(findings) = sample("scan.json").body else { panic!("findings") };
        let Body::Ranges(ranges) = sample("query-ipam.json").body else { panic!("ranges") };
        let (id, network) = (&findings[0].id, &ranges[0].network);
        let pod = |name: &str| Ask::Addresses(Selector::Pod(Some(name.to_owned())));
        let finding = |what: String| Ask::Findings { all: false, what: Some(what) };
        for (ask, name) in [
            (pod("shop/ap1-0"), Some("shop/api-0")),
            (pod("aip-0"), Some("api-0")),
            (pod("something-else"), None),
            (finding("ip-duplicat".to_owned()), Some("ip-duplicate")),
            (finding(format!("{}_", &id[..7])), Some(&id[..8])),
            (Ask::Ipam { ip: None, network: Some(format!("{network}x")) }, Some(network.as_str())),
            (Ask::Doctor, None),
        ] {
            assert_eq!(meant(&fake.client, &ask).await.as_deref(), name, "{ask:?}");
        }
    }
}
