//! Whereabouts' allocations, removed from their pool in the API server and brought back.
//!
//! Whereabouts writes the pool first and the overlapping reservation after it, for an ADD and for a DEL
//! (pkg/storage/kubernetes/ipam.go, 0.8). An IP whose overlapping reservation is still there is not given out, so that the
//! allocation is removed first here as well, and brought back last.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::api_server::{ApiServer, Refused, is_name, pod, text, version};
use crate::prefix::Prefix;
use crate::remedy::said;
use crate::sources::kubernetes::whereabouts::pool_name;

const BASE: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces";
/// Names that an overlapping reservation may have, at most.
const NAMES: usize = 8;

/// An allocation as it was read, kept in the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Path of the pool.
    pool: String,
    range: String,
    offset: String,
    pub(super) allocation: Value,
    /// Path of the overlapping reservation, and the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overlapping: Option<(String, Value)>,
    /// Version of the pool.
    version: String,
}

/// Namespace, pool and offset of a key as the daemon names it: `ippools/kube-system/10.0.0.0-27/11`.
pub(super) fn parts(key: &str) -> Option<(&str, &str, &str)> {
    let (namespace, rest) = key.strip_prefix("ippools/")?.split_once('/')?;
    let (pool, offset) = rest.rsplit_once('/')?;
    let digits = !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_digit());
    (digits && is_name(namespace) && is_name(pool)).then_some((namespace, pool, offset))
}

/// Looks at an allocation in the API server: it must be of this container, and no pod may go by it.
///
/// # Errors
/// What does not agree.
pub(super) async fn look(
    api: &mut ApiServer,
    (ip, key, container): (IpAddr, &str, &str),
) -> Result<Seen, String> {
    let (namespace, name, offset) = parts(key).ok_or("its key names no allocation of a pool")?;
    let pool = format!("{BASE}/{namespace}/ippools/{name}");
    let object = api.get(&pool).await?.ok_or("its pool is gone")?;
    let range = text(&object, "/spec/range").ok_or("its pool has no range")?;
    let prefix = Prefix::from_cidr(range).ok_or("its pool's range is none")?;
    let number: u128 = offset.parse().map_err(|_| "its offset is no number")?;
    if prefix.plus(number) != Some(ip) {
        return Err("its pool has another range by now".to_owned());
    }
    let allocation = object.pointer(&format!("/spec/allocations/{offset}"));
    let allocation = allocation.ok_or("its pool does not allocate it any more")?;
    if text(allocation, "/id") != Some(container) {
        return Err("its pool allocates it to another container by now".to_owned());
    }
    let overlapping = overlapping(api, namespace, name, &prefix, ip, allocation).await?;
    let of_reservation = overlapping.as_ref().map(|(_, object)| &object["spec"]);
    for entry in [Some(allocation), of_reservation].into_iter().flatten() {
        if text(entry, "/ipamclaimref").is_some() {
            return Err("a claim keeps it, which outlives its pods".to_owned());
        }
        nobody_goes_by(api, text(entry, "/podref")).await?;
    }
    let version = version(&object).ok_or("its pool has no version")?.to_owned();
    let (range, offset) = (range.to_owned(), offset.to_owned());
    Ok(Seen { pool, range, offset, allocation: allocation.clone(), overlapping, version })
}

/// Whereabouts gives a pod the IP that its pool allocates to the pod's name already, without writing another container: an
/// allocation of a name that a pod has may be that pod's.
async fn nobody_goes_by(api: &mut ApiServer, podref: Option<&str>) -> Result<(), String> {
    let Some(podref) = podref else { return Ok(()) };
    let names = podref.split_once('/').ok_or("its podref names no pod")?;
    match pod(api, names).await? {
        None => Ok(()),
        Some(_) => Err(format!(
            "there is a pod {} again: Whereabouts gives it the same IP by its name",
            said(podref)
        )),
    }
}

/// The overlapping reservation that belongs to an allocation, if there is one.
async fn overlapping(
    api: &mut ApiServer,
    namespace: &str,
    pool: &str,
    range: &Prefix,
    ip: IpAddr,
    allocation: &Value,
) -> Result<Option<(String, Value)>, String> {
    for name in names(pool, range, ip) {
        let path = format!("{BASE}/{namespace}/overlappingrangeipreservations/{name}");
        let Some(object) = api.get(&path).await? else { continue };
        let same = |field: &str, own: &str| {
            let theirs = text(&object, &format!("/spec/{field}"));
            theirs.is_none() || theirs == text(allocation, own)
        };
        if same("containerid", "/id") && same("podref", "/podref") {
            return Ok(Some((path, object)));
        }
    }
    Ok(None)
}

/// The names that it may have: with the network's name before the IP, where the pool has that in its own, which in a pool of
/// one node is followed by the node's name (whereabouts 0.9, `IPPoolName`).
fn names(pool: &str, range: &Prefix, ip: IpAddr) -> Vec<String> {
    let mut text = ip.to_string();
    // A name must not end with a hyphen (whereabouts 0.8, `normalizeIP`).
    if text.ends_with(':') {
        text.push('0');
    }
    let text = text.replace(':', "-");
    let before = pool.strip_suffix(&pool_name(range)).unwrap_or_default();
    let cuts = before.match_indices('-').map(|(at, _)| at + 1).rev();
    let prefixes = cuts.filter_map(|at| before.get(..at)).chain([""]);
    prefixes
        .map(|prefix| format!("{prefix}{text}"))
        .filter(|name| is_name(name))
        .take(NAMES)
        .collect()
}

/// Removes the allocation, if its pool is still as it was read, and then its overlapping reservation. Returns what could not
/// be done after the allocation was gone.
///
/// # Errors
/// Nothing was changed, or that is not known ([`Refused::Lost`]).
pub(super) async fn free(api: &mut ApiServer, seen: &Seen) -> Result<Option<String>, Refused> {
    let at = format!("/spec/allocations/{}", seen.offset);
    let patch = json!([
        { "op": "test", "path": "/metadata/resourceVersion", "value": seen.version },
        { "op": "test", "path": "/spec/range", "value": seen.range },
        { "op": "test", "path": at, "value": seen.allocation },
        { "op": "remove", "path": at },
    ]);
    match api.patch(&seen.pool, &patch).await {
        // Without an answer the pool tells. An allocation that is still there may go as long as the request is under way.
        Err(lost @ Refused::Lost(_)) if !is_freed(api, seen).await => return Err(lost),
        Ok(()) | Err(Refused::Lost(_)) => {}
        Err(why) => return Err(why),
    }
    let Some((path, object)) = &seen.overlapping else { return Ok(None) };
    Ok(match api.delete(path, object).await {
        // Somebody else has just freed it, or has been given the IP.
        Ok(()) | Err(Refused::Changed) => None,
        Err(Refused::Lost(_)) if matches!(api.get(path).await, Ok(None)) => None,
        Err(error) => Some(format!(
            "its overlapping reservation is still there ({error}): `ipwatch cluster scan` says how it is deleted"
        )),
    })
}

/// Whether the pool is known not to have the allocation.
async fn is_freed(api: &mut ApiServer, seen: &Seen) -> bool {
    matches!(allocated(api, seen).await, Ok(now) if now.as_ref() != Some(&seen.allocation))
}

/// What the pool allocates at this offset now.
async fn allocated(api: &mut ApiServer, seen: &Seen) -> Result<Option<Value>, String> {
    let object = api.get(&seen.pool).await?.unwrap_or_default();
    Ok(object.pointer(&format!("/spec/allocations/{}", seen.offset)).cloned())
}

/// Brings it back, unless somebody has been given the IP since.
///
/// # Errors
/// It is as it was.
pub(super) async fn restore(api: &mut ApiServer, seen: &Seen) -> Result<(), String> {
    let object = api.get(&seen.pool).await?.ok_or("its pool is gone")?;
    if text(&object, "/spec/range") != Some(&seen.range) {
        return Err("its pool has another range by now".to_owned());
    }
    let at = format!("/spec/allocations/{}", seen.offset);
    if object.pointer(&at).is_some() {
        return Err("the IP has been given out again since".to_owned());
    }
    let version = version(&object).ok_or("its pool has no version")?;
    let mut patch =
        vec![json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version })];
    if !object["spec"]["allocations"].is_object() {
        patch.push(json!({ "op": "add", "path": "/spec/allocations", "value": {} }));
    }
    patch.push(json!({ "op": "add", "path": at, "value": seen.allocation }));
    let made = match &seen.overlapping {
        Some((path, object)) => {
            create_again(api, path, object).await?;
            Some(path)
        }
        None => None,
    };
    let Err(error) = api.patch(&seen.pool, &Value::Array(patch)).await else { return Ok(()) };
    if matches!(error, Refused::Lost(_)) {
        match allocated(api, seen).await {
            Ok(Some(now)) if now == seen.allocation => return Ok(()),
            Ok(_) => {}
            // Its overlapping reservation stays: without it, an allocation that is back could be given out twice.
            Err(why) => return Err(format!("{error}, and its pool cannot be read ({why})")),
        }
    }
    if let Some(path) = made
        && let Some(object) = api.get(path).await?
    {
        api.delete(path, &object).await.map_err(|left| {
            format!("{error}; and its overlapping reservation could not be taken back: {left}")
        })?;
    }
    Err(error.to_string())
}

/// Makes an overlapping reservation again.
async fn create_again(api: &mut ApiServer, path: &str, before: &Value) -> Result<(), String> {
    let Some((all, name)) = path.rsplit_once('/') else { return Err("it has no path".to_owned()) };
    let object = json!({
        "apiVersion": before["apiVersion"], "kind": before["kind"],
        "metadata": { "name": name, "labels": before["metadata"]["labels"] },
        "spec": before["spec"],
    });
    match api.create(all, &object).await {
        Ok(()) => Ok(()),
        Err(lost @ Refused::Lost(_)) => match api.get(path).await? {
            Some(now) if now["spec"] == before["spec"] => Ok(()),
            _ => Err(lost.to_string()),
        },
        Err(why) => Err(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_leads_to_its_pool_and_nowhere_else() {
        let key = "ippools/kube-system/net-10.0.0.0-27/11";
        assert_eq!(parts(key), Some(("kube-system", "net-10.0.0.0-27", "11")));
        for wrong in [
            "ippools/kube-system/x",
            "ippools/kube-system/x/",
            "ippools/kube-system/x/-1",
            "ippools/../x/1",
            "ippools/kube-system/a/b/1",
            "ippools/kube-system/a?dryRun=All/1",
            "/var/lib/cni/networks/x/10.0.0.1",
        ] {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_reservation_is_looked_for_under_each_name_that_it_may_have() {
        let range = Prefix::from_cidr("10.0.0.0/27").unwrap();
        let ip = "10.0.0.11".parse().unwrap();
        assert_eq!(names("10.0.0.0-27", &range, ip), ["10.0.0.11"]);
        assert_eq!(
            names("net-a-node-1-10.0.0.0-27", &range, ip),
            [
                "net-a-node-1-10.0.0.11",
                "net-a-node-10.0.0.11",
                "net-a-10.0.0.11",
                "net-10.0.0.11",
                "10.0.0.11"
            ]
        );
        let range = Prefix::from_cidr("fd00::/64").unwrap();
        assert_eq!(names("x", &range, "fd00::".parse().unwrap()), ["fd00--0"]);
    }
}
