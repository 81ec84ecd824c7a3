//! Requests to the API server with a precondition: a JSON patch with a `test`, and a deletion of the object with a
//! given uid.
//!
//! A command that frees an allocation of Whereabouts tests, in the same request, that the allocation is unchanged: a
//! pod that was assigned the IP meanwhile keeps it. Its overlapping reservation is deleted only while it is the
//! object that was seen.

use serde_json::json;

use super::Step;
use super::command::{Command, is_name};
use super::text::{Text, value};

/// Whereabouts' pools, and the reservations that keep pools with overlapping ranges from assigning the same IP.
pub(crate) const POOLS: &str = "ippools.whereabouts.cni.cncf.io";
pub(crate) const OVERLAPPING: &str = "overlappingrangeipreservations.whereabouts.cni.cncf.io";

/// `kubectl` with the flags that the user gave.
#[must_use]
pub(crate) fn kubectl(flags: &[String]) -> Command {
    flags.iter().fold(Command::new("kubectl"), |command, flag| command.asked(flag))
}

/// An allocation of a pool as it was seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocation<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pool: &'a str,
    /// The pool's range, if known.
    pub(crate) range: Option<&'a str>,
    pub(crate) offset: &'a str,
    pub(crate) id: &'a str,
    pub(crate) podref: Option<&'a str>,
}

/// Removes an allocation from its pool if it is unchanged.
#[must_use]
pub(crate) fn remove_allocation(kubectl: Command, one: &Allocation<'_>) -> Command {
    let entry = format!("/spec/allocations/{}", one.offset);
    let mut patch = Vec::new();
    if let Some(range) = one.range {
        patch.push(json!({"op": "test", "path": "/spec/range", "value": range}));
    }
    patch.push(json!({"op": "test", "path": format!("{entry}/id"), "value": one.id}));
    if let Some(podref) = one.podref {
        patch.push(json!({"op": "test", "path": format!("{entry}/podref"), "value": podref}));
    }
    patch.push(json!({"op": "remove", "path": entry}));
    let place = kubectl.own("patch").own(POOLS).own("-n").value(one.namespace).value(one.pool);
    place.own("--type=json").json("--patch=", &json!(patch))
}

/// Deletes an object if it is unchanged. `None` if a name would change the path, or uid or version is unknown.
#[must_use]
pub(crate) fn delete(
    kubectl: Command,
    path: &'static str,
    names: [&str; 2],
    uid: &str,
    version: Option<&str>,
) -> Option<Command> {
    if !names.iter().all(|name| is_name(name)) || uid.is_empty() || version == Some("") {
        return None;
    }
    let mut preconditions = json!({ "uid": uid });
    if let Some(version) = version {
        preconditions["resourceVersion"] = json!(version);
    }
    let options = json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions,
    });
    let said = Command::new("printf").own("%s").json("", &options);
    let names = names.map(value);
    Some(said.pipe(kubectl.own("delete").word(path, &names).owns(&["-f", "-"])))
}

/// Deletes this pod, not a later one of the same name, while something is `still` wrong.
#[must_use]
pub(crate) fn delete_pod(
    what: Text,
    still: Command,
    [namespace, name]: [&str; 2],
    uid: Option<&str>,
) -> Step {
    const PATH: &str = "--raw=/api/v1/namespaces/{}/pods/{}";
    let kubectl = Command::new("kubectl");
    match uid.and_then(|uid| delete(kubectl, PATH, [namespace, name], uid, None)) {
        Some(command) => Step::change(what, still.and(command)),
        None => Step::advice(what),
    }
}
