//! What libnetwork's own IPAM can allocate from a network's pools (`ipam/allocator.go`).

use std::collections::HashMap;
use std::net::IpAddr;

use serde::Deserialize;

use crate::fact::RangePart;
use crate::prefix::Prefix;
use crate::sources::json::Name;

/// A pool in a network's document.
#[derive(Deserialize)]
struct Info {
    #[serde(rename = "PoolID")]
    pool: Name,
    /// A JSON text.
    #[serde(rename = "IPAMData")]
    data: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    gateway: Option<Name>,
    /// `name → IP/LEN`: reserved for other uses.
    aux_addresses: Option<HashMap<String, Name>>,
}

/// The pools of one family, which are tried in turn.
pub(super) fn parts(infos: &str) -> Option<Vec<RangePart>> {
    let infos: Vec<Info> = serde_json::from_str(infos).ok()?;
    let parts: Option<Vec<RangePart>> = infos.iter().map(part).collect();
    parts.filter(|parts| !parts.is_empty())
}

fn part(info: &Info) -> Option<RangePart> {
    let Name(id) = &info.pool;
    // `SPACE/NET/LEN`, or with a range of its own `SPACE/NET/LEN/NET/LEN`.
    let mut words = id.split('/').skip(1);
    let mut subnet = || Prefix::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let pool = subnet()?;
    let within = subnet().unwrap_or(pool);
    let (first, last) = usable(pool)?;
    let (first, last) = (first.max(within.first()), last.min(within.last()));
    let data: Data = serde_json::from_str(&info.data).ok()?;
    let kept = data.aux_addresses.into_iter().flatten().map(|(_, address)| address);
    let ips = data.gateway.into_iter().chain(kept).filter_map(|Name(text)| ip(&text));
    let mut except: Vec<IpAddr> = ips.filter(|ip| first <= *ip && *ip <= last).collect();
    except.sort_unstable();
    (first <= last).then_some(RangePart { first, last, except })
}

/// All IPs except the network address and, for IPv4, the broadcast address; all of them if the pool has at most two.
fn usable(pool: Prefix) -> Option<(IpAddr, IpAddr)> {
    if pool.ip.is_ipv4() && pool.host_bits() < 2 {
        return Some(pool.range());
    }
    pool.nth(1).zip(pool.last_unicast())
}

fn ip(text: &str) -> Option<IpAddr> {
    text.split_once('/').map_or(text, |(ip, _)| ip).parse().ok()
}
