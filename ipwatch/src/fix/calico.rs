//! Calico's assignments, released in their block in the API server and brought back.
//!
//! As Calico's own IPAM does (libcalico-go, lib/ipam/ipam_block.go, `release`): the address becomes free in the block, its
//! attribute goes if no other address has it, and then the handle counts one address less in this block. The whole block is
//! compared by its version: whoever was given an address of it meanwhile keeps it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::api_server::{ApiServer, Refused, is_name, pod, text, version};
use crate::prefix::Prefix;
use crate::remedy::said;

const BASE: &str = "/apis/crd.projectcalico.org/v1";
/// Annotations with which Calico tells of a pod's IPs.
const OWN: [&str; 2] = ["cni.projectcalico.org/podIP", "cni.projectcalico.org/podIPs"];

/// An assignment as it was read, kept in the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Path of the block.
    block: String,
    cidr: String,
    ordinal: usize,
    pub(super) attribute: Value,
    /// Path of the handle, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handle: Option<String>,
    /// Version of the block.
    version: String,
}

/// Name and ordinal of a key as the daemon names it: `ipamblocks/10-0-0-0-26/3`.
pub(super) fn parts(key: &str) -> Option<(&str, usize)> {
    let (block, ordinal) = key.strip_prefix("ipamblocks/")?.rsplit_once('/')?;
    Some((block, ordinal.parse().ok()?)).filter(|(block, _)| is_name(block))
}

/// Looks at an assignment in the API server: it must be of this container, and its pod may not have the IP.
///
/// # Errors
/// What does not agree.
pub(super) async fn look(
    api: &mut ApiServer,
    (ip, key, container): (IpAddr, &str, &str),
) -> Result<Seen, String> {
    let (name, ordinal) = parts(key).ok_or(
        "its key names no block of the API server: where Calico keeps an etcd, calicoctl releases it",
    )?;
    let block = format!("{BASE}/ipamblocks/{name}");
    let object = api.get(&block).await?.ok_or("its block is gone")?;
    let spec = &object["spec"];
    let cidr = text(spec, "/cidr").ok_or("its block has no CIDR")?;
    let at = u128::try_from(ordinal).ok();
    if at.and_then(|at| Prefix::from_cidr(cidr)?.nth(at)) != Some(ip) {
        return Err("its block has another CIDR by now".to_owned());
    }
    if spec["deleted"] == true {
        return Err("its block is being deleted".to_owned());
    }
    let attribute = attribute_of(spec, ordinal).ok_or("its block does not assign it any more")?;
    let attribute = &spec["attributes"][attribute];
    let handle = text(attribute, "/handle_id").ok_or("its block names no handle of it")?;
    let whose = handle.rsplit('.').next().unwrap_or_default();
    if whose.split_whitespace().next() != Some(container) {
        return Err("its block assigns it to another container by now".to_owned());
    }
    let names = (text(attribute, "/secondary/namespace"), text(attribute, "/secondary/pod"));
    if let (Some(namespace), Some(name)) = names
        && let Some(pod) = pod(api, (namespace, name)).await?
        && may_have(&pod, ip)
    {
        let pod = said(&format!("{namespace}/{name}"));
        return Err(format!("there is a pod {pod} again, and it may have this IP"));
    }
    // The object of a handle has its name in lower case (libcalico-go, backend/k8s/resources/ipam_handle.go).
    let named = handle.to_lowercase();
    let handle = is_name(&named).then(|| format!("{BASE}/ipamhandles/{named}"));
    let version = version(&object).ok_or("its block has no version")?.to_owned();
    let (cidr, attribute) = (cidr.to_owned(), attribute.clone());
    Ok(Seen { block, cidr, ordinal, attribute, handle, version })
}

/// The index of the attribute of an address.
fn attribute_of(spec: &Value, ordinal: usize) -> Option<usize> {
    usize::try_from(spec["allocations"].get(ordinal)?.as_u64()?).ok()
}

/// Whether a pod has this IP, or has not been told of any.
fn may_have(pod: &Value, ip: IpAddr) -> bool {
    let of_status = pod["status"]["podIPs"].as_array().into_iter().flatten();
    let told = of_status.filter_map(|one| text(one, "/ip"));
    let first = text(pod, "/status/podIP");
    let annotations = &pod["metadata"]["annotations"];
    let own = OWN.iter().filter_map(|key| annotations.get(*key)?.as_str());
    let own = own.flat_map(|text| text.split(','));
    let all: Vec<&str> = told.chain(first).chain(own).filter(|text| !text.is_empty()).collect();
    let is = |text: &&str| text.split('/').next().is_some_and(|text| text.parse() == Ok(ip));
    all.is_empty() || all.iter().any(is)
}

/// Releases the address, if its block is still as it was read, and then lowers its handle's count. Returns what could not be
/// done after the address was free.
///
/// # Errors
/// Nothing was changed, or that is not known ([`Refused::Lost`]).
pub(super) async fn free(api: &mut ApiServer, seen: &Seen) -> Result<Option<String>, Refused> {
    let object = api.get(&seen.block).await.map_err(Refused::Api)?.ok_or(Refused::Changed)?;
    if version(&object) != Some(&seen.version) {
        return Err(Refused::Changed);
    }
    let mut spec = object["spec"].clone();
    release(&mut spec, seen.ordinal).ok_or(Refused::Changed)?;
    match api.patch(&seen.block, &replacing(&seen.version, &spec)).await {
        // Without an answer the block tells. An assignment that is still there may go as long as the request is under way.
        Err(lost @ Refused::Lost(_)) if is_assigned(api, seen).await != Ok(false) => {
            return Err(lost);
        }
        Ok(()) | Err(Refused::Lost(_)) => {}
        Err(why) => return Err(why),
    }
    Ok(match count(api, seen, -1).await {
        Ok(()) => None,
        Err(error) => Some(format!("its handle still counts it ({error}): Calico corrects that")),
    })
}

/// Whether the block assigns the address to the handle that was read.
async fn is_assigned(api: &mut ApiServer, seen: &Seen) -> Result<bool, String> {
    let object = api.get(&seen.block).await?.unwrap_or_default();
    let attribute = attribute_of(&object["spec"], seen.ordinal);
    Ok(attribute.is_some_and(|at| object["spec"]["attributes"][at] == seen.attribute))
}

/// Brings it back, unless somebody has been given the IP since.
///
/// # Errors
/// It is as it was.
pub(super) async fn restore(api: &mut ApiServer, seen: &Seen) -> Result<(), String> {
    let object = api.get(&seen.block).await?.ok_or("its block is gone")?;
    let mut spec = object["spec"].clone();
    if text(&spec, "/cidr") != Some(&seen.cidr) || spec["deleted"] == true {
        return Err("its block is another one by now".to_owned());
    }
    let is_free = spec["allocations"].get(seen.ordinal).is_some_and(Value::is_null);
    if !is_free {
        return Err("the IP has been given out again since".to_owned());
    }
    assign(&mut spec, seen).ok_or("its block is not understood")?;
    let version = version(&object).ok_or("its block has no version")?;
    // As at an assignment, the handle comes first (libcalico-go, lib/ipam/ipam.go, `incrementHandle`).
    count(api, seen, 1).await.map_err(|error| format!("its handle: {error}"))?;
    let Err(error) = api.patch(&seen.block, &replacing(version, &spec)).await else {
        return Ok(());
    };
    if matches!(error, Refused::Lost(_)) {
        match is_assigned(api, seen).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(why) => {
                return Err(format!(
                    "{error}, and its block cannot be read ({why}): its handle counts it, and Calico corrects that"
                ));
            }
        }
    }
    count(api, seen, -1).await.map_err(|left| {
        format!("{error}; and its handle counts it all the same ({left}): Calico corrects that")
    })?;
    Err(error.to_string())
}

/// The parts of a block that change, for one version of it.
fn replacing(version: &str, spec: &Value) -> Value {
    let mut patch =
        vec![json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version })];
    let parts = [
        "allocations",
        "attributes",
        "unallocated",
        "sequenceNumber",
        "sequenceNumberForAllocation",
    ];
    for part in parts {
        if let Some(value) = spec.get(part) {
            let path = format!("/spec/{part}");
            patch.push(json!({ "op": "replace", "path": path, "value": value }));
        }
    }
    Value::Array(patch)
}

/// Frees an address in a block's `spec`. `None`: it is not assigned, or the block is not understood.
fn release(spec: &mut Value, ordinal: usize) -> Option<()> {
    let attribute = attribute_of(spec, ordinal)?;
    let allocations = spec["allocations"].as_array_mut()?;
    allocations[ordinal] = Value::Null;
    let index = |value: &Value| value.as_u64().and_then(|at| usize::try_from(at).ok());
    if !allocations.iter().any(|one| index(one) == Some(attribute)) {
        // Those behind it move up by one.
        for one in allocations.iter_mut() {
            if let Some(at) = index(one).filter(|at| *at > attribute) {
                *one = json!(at - 1);
            }
        }
        let attributes = spec["attributes"].as_array_mut()?;
        (attribute < attributes.len()).then(|| attributes.remove(attribute))?;
    }
    spec["unallocated"].as_array_mut()?.push(json!(ordinal));
    if let Some(numbers) = numbers_of(spec) {
        numbers.remove(&ordinal.to_string());
    }
    step(spec);
    Some(())
}

/// The inverse.
fn assign(spec: &mut Value, seen: &Seen) -> Option<()> {
    let attributes = spec["attributes"].as_array_mut()?;
    let at = attributes.iter().position(|one| *one == seen.attribute).unwrap_or(attributes.len());
    if at == attributes.len() {
        attributes.push(seen.attribute.clone());
    }
    *spec["allocations"].get_mut(seen.ordinal)? = json!(at);
    let free = spec["unallocated"].as_array_mut()?;
    free.retain(|one| one.as_u64() != u64::try_from(seen.ordinal).ok());
    let number = spec.get("sequenceNumber").cloned();
    if let (Some(numbers), Some(number)) = (numbers_of(spec), number) {
        numbers.insert(seen.ordinal.to_string(), number);
    }
    step(spec);
    Some(())
}

/// The sequence number of each assignment, which older versions of Calico do not write. An index would add it as null, and
/// a patch that replaces what is not there is refused.
fn numbers_of(spec: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    spec.get_mut("sequenceNumberForAllocation")?.as_object_mut()
}

/// Each write of a block counts (`SequenceNumber`).
fn step(spec: &mut Value) {
    if let Some(number) = spec.get("sequenceNumber").and_then(Value::as_u64) {
        spec["sequenceNumber"] = json!(number.saturating_add(1));
    }
}

/// Changes how many addresses of the block the handle counts. One that counts none is deleted, one that is missing made.
async fn count(api: &mut ApiServer, seen: &Seen, by: i64) -> Result<(), String> {
    let (Some(path), cidr) = (&seen.handle, &*seen.cidr) else { return Ok(()) };
    let Some(object) = api.get(path).await? else {
        // Somebody has deleted it, as is due.
        return if by > 0 { make(api, path, seen).await } else { Ok(()) };
    };
    let mut blocks = object["spec"]["block"].as_object().cloned().unwrap_or_default();
    let now = blocks.get(cidr).and_then(Value::as_i64).unwrap_or(0) + by;
    if now > 0 {
        blocks.insert(cidr.to_owned(), json!(now));
    } else {
        blocks.remove(cidr);
    }
    if blocks.is_empty() {
        return api.delete(path, &object).await.map_err(|error| error.to_string());
    }
    let version = version(&object).ok_or("it has no version")?;
    let patch = json!([
        { "op": "test", "path": "/metadata/resourceVersion", "value": version },
        { "op": "replace", "path": "/spec/block", "value": blocks },
    ]);
    api.patch(path, &patch).await.map_err(|error| error.to_string())
}

async fn make(api: &mut ApiServer, path: &str, seen: &Seen) -> Result<(), String> {
    let (all, name) = path.rsplit_once('/').ok_or("it has no path")?;
    let object = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle",
        "metadata": { "name": name },
        "spec": {
            "handleID": seen.attribute["handle_id"], "block": { &*seen.cidr: 1 }, "deleted": false,
        },
    });
    api.create(all, &object).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Value {
        let owner = |id: &str| json!({ "handle_id": format!("net.{id}") });
        json!({
            "cidr": "10.0.0.0/30", "allocations": [0, 1, null, 2], "unallocated": [2],
            "attributes": [owner("a"), owner("b"), owner("c")],
            "sequenceNumber": 7, "sequenceNumberForAllocation": { "0": 4, "1": 5, "3": 6 },
        })
    }

    fn seen() -> Seen {
        Seen {
            block: String::new(),
            cidr: "10.0.0.0/30".to_owned(),
            ordinal: 1,
            attribute: json!({ "handle_id": "net.b" }),
            handle: None,
            version: "1".to_owned(),
        }
    }

    #[test]
    fn an_address_is_released_and_every_other_keeps_its_owner() {
        let mut now = spec();
        release(&mut now, 1).unwrap();
        assert_eq!(now["allocations"], json!([0, null, null, 1]));
        assert_eq!(now["attributes"], json!([{ "handle_id": "net.a" }, { "handle_id": "net.c" }]));
        assert_eq!(now["unallocated"], json!([2, 1]));
        assert_eq!(now["sequenceNumberForAllocation"], json!({ "0": 4, "3": 6 }));
        assert_eq!(now["sequenceNumber"], 8);
        assert_eq!(release(&mut now, 1), None, "it is free");
        assign(&mut now, &seen()).unwrap();
        assert_eq!(now["allocations"], json!([0, 2, null, 1]));
        assert_eq!(now["attributes"][2], json!({ "handle_id": "net.b" }));
        assert_eq!(now["unallocated"], json!([2]));
    }

    #[test]
    fn an_attribute_that_others_have_stays() {
        let mut now = spec();
        now["allocations"] = json!([0, 1, 1, 2]);
        release(&mut now, 1).unwrap();
        assert_eq!(now["allocations"], json!([0, null, 1, 2]));
        assert_eq!(now["attributes"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn a_block_that_is_not_understood_is_left_alone() {
        for (part, value) in [("allocations", json!({})), ("unallocated", json!(null))] {
            let mut now = spec();
            now[part] = value;
            assert_eq!(release(&mut now, 1), None, "{part}");
        }
        let mut now = spec();
        now["allocations"] = json!([0, 9, null, 2]);
        assert_eq!(release(&mut now, 1), None, "no such attribute");
    }

    #[test]
    fn a_pod_may_have_an_ip_unless_it_is_known_to_have_others() {
        let ip = "10.0.0.1".parse().unwrap();
        for (pod, may) in [
            (json!({}), true),
            (json!({ "status": { "podIP": "10.0.0.1" } }), true),
            (json!({ "status": { "podIPs": [{ "ip": "10.0.0.2" }] } }), false),
            (json!({ "metadata": { "annotations": { OWN[1]: "10.0.0.2/32,10.0.0.1/32" } } }), true),
            (json!({ "metadata": { "annotations": { OWN[0]: "10.0.0.2/32" } } }), false),
        ] {
            assert_eq!(may_have(&pod, ip), may, "{pod}");
        }
    }

    #[test]
    fn a_key_leads_to_its_block_and_nowhere_else() {
        assert_eq!(parts("ipamblocks/10-0-0-0-26/3"), Some(("10-0-0-0-26", 3)));
        for wrong in
            ["ipamblocks/../3", "ipamblocks/a/b/3", "/calico/ipam/v2/x/3", "ipamblocks/a/-1"]
        {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }
}
