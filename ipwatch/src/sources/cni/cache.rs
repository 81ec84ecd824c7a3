//! Parses one file of the cache, and keeps only what may be kept.
//!
//! The files contain the network's whole configuration and every CNI argument, including credentials. Only the fields
//! below are stored: serde skips the rest (`config`, `capabilityArgs`, DNS, other arguments).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::bounded;
use crate::fact::{Attachment, Name as Kind, PodName, is_legal_device};
use crate::sources::json::{self, JsonError, Name};

/// Maximum number of bytes read of a file. A configuration has a few kilobytes, and its base64 is most of a file.
const LONGEST: usize = 1 << 20;

/// Maximum number of IPs kept of one result. A CNI plugin assigns one or two.
const MOST_IPS: usize = 256;

/// Why a file of the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CacheError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("longer than {LONGEST} bytes")]
    TooLong,
    /// It is not what libcni writes. libcni writes without a rename: a file is truncated until it is written, or for
    /// good if libcni was interrupted.
    #[error("{0}")]
    Json(#[from] JsonError),
    /// It has no valid container id or interface name.
    #[error("names no {0}")]
    Nameless(&'static str),
}

/// Reads one file. `None`: a bare result of libcni before 0.8, which does not name its container.
pub(super) fn read(path: &Path) -> Result<Option<Attachment>, CacheError> {
    let read = bounded::read_regular(path, LONGEST)?;
    if read.truncated {
        return Err(CacheError::TooLong);
    }
    let attachment = parse(&read.bytes)?;
    Ok(attachment.map(|attachment| Attachment { made: read.modified, ..attachment }))
}

pub(super) fn parse(bytes: &[u8]) -> Result<Option<Attachment>, CacheError> {
    let cached: Cached = json::parse(bytes)?;
    if cached.kind.as_deref() != Some("cniCacheV1") {
        return Ok(None);
    }
    let result = cached.result.unwrap_or_default();
    Ok(Some(Attachment {
        container_id: named(cached.container_id, "container", |id| Kind::ContainerId.fits(id))?,
        ifname: named(cached.if_name, "interface", is_legal_device)?,
        network: cached.network_name.map(|Name(name)| name).unwrap_or_default(),
        netns_path: result.sandbox().or(cached.netns.map(|Name(path)| path)),
        ips: result.ips.0,
        made: None,
        pod: cached.cni_args.and_then(|args| args.0),
    }))
}

/// libcni refuses an ADD with an invalid name, so it caches none.
fn named(
    name: Option<Name>,
    what: &'static str,
    fits: fn(&str) -> bool,
) -> Result<String, CacheError> {
    match name {
        Some(Name(name)) if fits(&name) => Ok(name),
        _ => Err(CacheError::Nameless(what)),
    }
}

/// `cniCacheV1` (libcni/api.go, `cachedInfo`), without its secrets.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    kind: Option<String>,
    container_id: Option<Name>,
    if_name: Option<Name>,
    network_name: Option<Name>,
    netns: Option<Name>,
    cni_args: Option<PodArgs>,
    result: Option<CniResult>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CniResult {
    ips: Ips,
    interfaces: Option<Vec<Interface>>,
}

impl CniResult {
    /// The path of the netns that an interface of the result was created in.
    fn sandbox(&self) -> Option<String> {
        let mut interfaces = self.interfaces.iter().flatten();
        let inside = interfaces.find_map(|interface| interface.sandbox.as_ref());
        inside.map(|Name(path)| path.clone()).filter(|path| !path.is_empty())
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Interface {
    sandbox: Option<Name>,
}

/// `ips[].address`, `IP/LEN`; other fields of an entry are skipped.
#[derive(Default)]
struct Ips(Vec<(IpAddr, u8)>);

impl<'de> Deserialize<'de> for Ips {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Entry {
            address: Option<Name>,
        }
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Ips;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of IPs")
            }
            fn visit_unit<E>(self) -> Result<Ips, E> {
                Ok(Ips::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ips, A::Error> {
                let mut ips = Vec::new();
                while let Some(Entry { address }) = list.next_element()? {
                    if ips.len() < MOST_IPS {
                        ips.extend(address.and_then(|Name(text)| with_prefix(&text)));
                    }
                }
                Ok(Ips(ips))
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

fn with_prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, len) = text.split_once('/')?;
    let (ip, len): (IpAddr, u8) = (ip.parse().ok()?, len.parse().ok()?);
    let most = if ip.is_ipv4() { 32 } else { 128 };
    (len <= most).then_some((ip, len))
}

/// `cniArgs`, a list of pairs, of which only `K8S_POD_*` are kept.
struct PodArgs(Option<PodName>);

impl<'de> Deserialize<'de> for PodArgs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = PodArgs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of pairs")
            }
            fn visit_unit<E>(self) -> Result<PodArgs, E> {
                Ok(PodArgs(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PodArgs, A::Error> {
                let mut pod = PodName { namespace: String::new(), name: String::new(), uid: None };
                while let Some(Pair(known)) = list.next_element()? {
                    match known {
                        Some((Key::Namespace, value)) => pod.namespace = value,
                        Some((Key::Name, value)) => pod.name = value,
                        Some((Key::Uid, value)) => {
                            pod.uid = Some(value).filter(|uid| !uid.is_empty())
                        }
                        None => {}
                    }
                }
                let whole = !pod.namespace.is_empty() && !pod.name.is_empty();
                Ok(PodArgs(whole.then_some(pod)))
            }
        }
        deserializer.deserialize_any(Pairs)
    }
}

/// The arguments that may be kept.
#[derive(Clone, Copy)]
enum Key {
    Namespace,
    Name,
    Uid,
}

/// `[KEY, VALUE]`; the value is read only if the key is a known one.
struct Pair(Option<(Key, String)>);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Pair;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pair")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Pair, A::Error> {
                let key = match pair.next_element::<String>()?.as_deref() {
                    Some("K8S_POD_NAMESPACE") => Some(Key::Namespace),
                    Some("K8S_POD_NAME") => Some(Key::Name),
                    Some("K8S_POD_UID") => Some(Key::Uid),
                    _ => None,
                };
                let known = match key {
                    Some(key) => pair.next_element::<Name>()?.map(|Name(value)| (key, value)),
                    None => None,
                };
                while pair.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Pair(known))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pair, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Pair(None))
            }
        }
        deserializer.deserialize_any(Fields)
    }
}

#[cfg(test)]
pub(super) mod tests;
