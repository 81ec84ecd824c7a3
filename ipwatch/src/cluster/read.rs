//! One look: lists each kind once, allocations before pods. A pod exists before its allocation, so an allocation
//! whose pod is missing from the later list belongs to a deleted pod.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::objects::{self, named};
use super::snapshot::{self, Bounds, Listed, Snapshot, State};
use crate::prefix::Prefix;
use crate::sources::kubernetes::list::{Age, Refusal, Server};
use crate::sources::kubernetes::networks::Definition;
use crate::sources::kubernetes::whereabouts::{IpPool, pool_name};

/// Maximum number of allocations in all pools, and in all blocks.
const MOST: usize = 500_000;
/// Time limit for one kind.
const LIMIT: Duration = Duration::from_secs(600);

/// A kind of object.
struct Kind {
    /// The name as in RBAC rules and in the document.
    name: &'static str,
    group: &'static str,
    path: &'static str,
}

const WHEREABOUTS: &str = "whereabouts.cni.cncf.io";
const CALICO: &str = "crd.projectcalico.org";

const POOLS: Kind = Kind {
    name: "ippools",
    group: WHEREABOUTS,
    path: "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools",
};
const OVERLAPPING: Kind = Kind {
    name: "overlappingrangeipreservations",
    group: WHEREABOUTS,
    path: "/apis/whereabouts.cni.cncf.io/v1alpha1/overlappingrangeipreservations",
};
const NETWORKS: Kind = Kind {
    name: "network-attachment-definitions",
    group: "k8s.cni.cncf.io",
    path: "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions",
};
const BLOCKS: Kind =
    Kind { name: "ipamblocks", group: CALICO, path: "/apis/crd.projectcalico.org/v1/ipamblocks" };
const HANDLES: Kind =
    Kind { name: "ipamhandles", group: CALICO, path: "/apis/crd.projectcalico.org/v1/ipamhandles" };
const CALICO_POOLS: Kind =
    Kind { name: "calico-ippools", group: CALICO, path: "/apis/crd.projectcalico.org/v1/ippools" };
const NODES: Kind = Kind { name: "nodes", group: "", path: "/api/v1/nodes" };
const PODS: Kind = Kind { name: "pods", group: "", path: "/api/v1/pods" };

/// The names of the kinds, under which a document reports the state of each list.
pub(super) fn names() -> [&'static str; 8] {
    [PODS, NODES, POOLS, OVERLAPPING, NETWORKS, BLOCKS, HANDLES, CALICO_POOLS].map(|kind| kind.name)
}

impl Snapshot {
    /// The state of each list, in the order of [`names`].
    pub(super) fn states(&self) -> [&State; 8] {
        [
            &self.pods.state,
            &self.nodes.state,
            &self.pools.state,
            &self.overlapping.state,
            &self.bounds.state,
            &self.blocks.state,
            &self.handles.state,
            &self.calico_pools.state,
        ]
    }
}

/// Lists everything once. `say` is called with the kind that is being read, for a person who waits.
pub(super) async fn look(server: &Server, age: Age, say: &(dyn Fn(&str) + Sync)) -> Snapshot {
    let reader = Reader { server, age, say };
    let allocations = |all: &Vec<snapshot::Pool>| all.iter().map(|one| one.allocations.len()).sum();
    let pools = reader.list(&POOLS, pool, allocations).await;
    let overlapping = reader.list(&OVERLAPPING, overlapping_one, Vec::len).await;
    let bounds = reader.list(&NETWORKS, bounds, BTreeMap::len).await;
    let allocations =
        |all: &Vec<snapshot::Block>| all.iter().map(|one| one.allocations.len()).sum();
    let blocks = reader.list(&BLOCKS, block, allocations).await;
    let handles = reader.list(&HANDLES, handle, Vec::len).await;
    let calico_pools = reader.list(&CALICO_POOLS, calico_pool, Vec::len).await;
    let nodes = reader.list(&NODES, node, BTreeMap::len).await;
    let pods = reader.list(&PODS, pod, Vec::len).await;
    Snapshot { pools, overlapping, bounds, blocks, handles, calico_pools, nodes, pods }
}

/// The server, and how to list.
struct Reader<'a> {
    server: &'a Server,
    age: Age,
    say: &'a (dyn Fn(&str) + Sync),
}

impl Reader<'_> {
    /// Lists a kind. `take` adds an object to the list and returns how many of its entries cannot be parsed; `size`
    /// returns the number of items.
    async fn list<T, A>(
        &self,
        kind: &Kind,
        take: impl Fn(T, &mut A) -> usize,
        size: impl Fn(&A) -> usize,
    ) -> Listed<A>
    where
        T: DeserializeOwned + Send + 'static,
        A: Default,
    {
        (self.say)(kind.name);
        let mut items = A::default();
        let mut wrong = 0;
        let each = |one| wrong += take(one, &mut items);
        let asked = self.server.list(kind.name, kind.path, self.age, each);
        let state = match tokio::time::timeout(LIMIT, asked).await {
            Err(_) => State::Unknown(format!("not listed within {LIMIT:?}")),
            // Every cluster has nodes and pods.
            Ok(Err(Refusal::Absent)) if kind.group.is_empty() => {
                State::Unknown("not there: is this an API server?".to_owned())
            }
            Ok(Err(Refusal::Absent)) => State::Absent,
            Ok(Err(Refusal::Forbidden)) => {
                State::Unknown(format!("not allowed: needs the right to list {}", kind.resource()))
            }
            Ok(Err(Refusal::Failed(why))) => State::Unknown(why),
            Ok(Ok(_)) if size(&items) > MOST => {
                State::Unknown(format!("there are more than {MOST}"))
            }
            Ok(Ok(dropped)) => match dropped + wrong {
                0 => State::All,
                wrong => State::Part(wrong),
            },
        };
        // An incomplete list is dropped.
        let items = if matches!(state, State::Unknown(_)) { A::default() } else { items };
        Listed { items, state }
    }
}

impl Kind {
    /// The resource as in RBAC rules.
    fn resource(&self) -> String {
        let resource = self.path.rsplit('/').next().unwrap_or_default();
        let dot = if self.group.is_empty() { "" } else { "." };
        format!("{resource}{dot}{}", self.group)
    }
}

fn overlapping_one(one: objects::Overlapping, all: &mut Vec<snapshot::Overlapping>) -> usize {
    all.push(one.world());
    0
}

fn handle(one: objects::Handle, all: &mut Vec<snapshot::Handle>) -> usize {
    all.push(one.world());
    0
}

fn calico_pool(one: objects::CalicoPool, all: &mut Vec<snapshot::CalicoPool>) -> usize {
    let read = one.world();
    let wrong = usize::from(read.is_none());
    all.extend(read);
    wrong
}

fn node(one: objects::Node, all: &mut BTreeMap<String, snapshot::Node>) -> usize {
    let (name, node) = one.world();
    all.insert(name, node);
    0
}

fn pod(one: objects::Pod, all: &mut Vec<snapshot::Pod>) -> usize {
    all.push(one.world());
    0
}

fn pool(pool: IpPool, all: &mut Vec<snapshot::Pool>) -> usize {
    let (namespace, name) = named(&pool.metadata);
    let Some(range) = Prefix::from_cidr(&pool.spec.range.0) else { return 1 };
    let mut read = snapshot::Pool {
        prefix: name.strip_suffix(&pool_name(&range)).unwrap_or_default().to_owned(),
        namespace,
        name,
        range: pool.spec.range.0,
        allocations: Vec::new(),
        wrong: pool.spec.allocations.wrong,
    };
    for (offset, allocation) in pool.spec.allocations.read {
        let Some(ip) = range.plus(offset) else {
            read.wrong += 1;
            continue;
        };
        read.allocations.push(snapshot::Allocation {
            offset,
            ip,
            id: allocation.id.0,
            podref: Some(allocation.podref.0).filter(|podref| !podref.is_empty()),
            claimed: !allocation.claim.0.is_empty(),
        });
    }
    let wrong = read.wrong;
    all.push(read);
    wrong
}

fn bounds(definition: Definition, all: &mut BTreeMap<String, Bounds>) -> usize {
    let Ok(ranges) = definition.ranges() else { return 1 };
    for range in ranges {
        let bounds = all.entry(range.network).or_default();
        bounds.parts.extend(range.sets.into_iter().flatten());
        bounds.from.push(range.path);
    }
    0
}

fn block(block: objects::Block, all: &mut Vec<snapshot::Block>) -> usize {
    let Some(read) = block.world() else { return 1 };
    let wrong = read.wrong;
    all.push(read);
    wrong
}

/// Parses an object as each kind that allocates.
#[cfg(feature = "fuzzing")]
pub(super) fn of_object(value: &serde_json::Value, look: &mut Snapshot) {
    fn take<T: DeserializeOwned, A>(
        value: &serde_json::Value,
        all: &mut Listed<A>,
        into: impl Fn(T, &mut A) -> usize,
    ) {
        if let Ok(object) = serde_json::from_value(value.clone()) {
            into(object, &mut all.items);
            all.state = State::All;
        }
    }
    take(value, &mut look.pools, pool);
    take(value, &mut look.overlapping, overlapping_one);
    take(value, &mut look.bounds, bounds);
    take(value, &mut look.blocks, block);
    take(value, &mut look.handles, handle);
    take(value, &mut look.calico_pools, calico_pool);
}

/// Lists made from objects, for tests.
#[cfg(test)]
pub(super) mod testing {
    use serde_json::Value;

    use super::*;

    fn listed<T: DeserializeOwned, A: Default>(
        objects: &[Value],
        take: impl Fn(T, &mut A) -> usize,
    ) -> Listed<A> {
        let mut items = A::default();
        let mut wrong = 0;
        for object in objects {
            match serde_json::from_value(object.clone()) {
                Ok(object) => wrong += take(object, &mut items),
                Err(_) => wrong += 1,
            }
        }
        let state = if wrong == 0 { State::All } else { State::Part(wrong) };
        Listed { items, state }
    }

    pub(in crate::cluster) fn pools(objects: &[Value]) -> Listed<Vec<snapshot::Pool>> {
        listed(objects, pool)
    }

    pub(in crate::cluster) fn overlapping(objects: &[Value]) -> Listed<Vec<snapshot::Overlapping>> {
        listed(objects, overlapping_one)
    }

    pub(in crate::cluster) fn bounds(objects: &[Value]) -> Listed<BTreeMap<String, Bounds>> {
        listed(objects, super::bounds)
    }

    pub(in crate::cluster) fn blocks(objects: &[Value]) -> Listed<Vec<snapshot::Block>> {
        listed(objects, block)
    }

    pub(in crate::cluster) fn handles(objects: &[Value]) -> Listed<Vec<snapshot::Handle>> {
        listed(objects, handle)
    }

    pub(in crate::cluster) fn calico_pools(objects: &[Value]) -> Listed<Vec<snapshot::CalicoPool>> {
        listed(objects, calico_pool)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sources::kubernetes::list::testing::{Answer, answering};

    #[tokio::test]
    async fn each_kind_is_known_by_itself() {
        let pool = json!({"metadata": {"name": "10.0.0.0-24", "namespace": "kube-system"},
                          "spec": {"range": "10.0.0.0/24", "allocations": {"1": {"id": "a"}, "x": {"id": "b"}}}});
        let items = |items| Answer::Items(items, "");
        let answers = vec![
            items(vec![pool]),
            Answer::Status(403),
            Answer::Status(404),
            Answer::Items(
                vec![json!({"metadata": {"name": "b"}, "spec": {"cidr": "10.1.0.0/26"}})],
                "more",
            ),
            Answer::Status(500),
            Answer::Raw("no list"),
            items(vec![json!({"metadata": {"name": "p"}, "spec": {"cidr": "10.1.0.0/16"}})]),
            Answer::Status(404),
            items(Vec::new()),
        ];
        let (server, asked) = answering(answers).await;
        let look = look(&server, Age::Remembered, &|_| {}).await;
        assert_eq!(look.pools.state, State::Part(1));
        assert_eq!(look.pools.items[0].allocations[0].ip.to_string(), "10.0.0.1");
        let State::Unknown(why) = &look.overlapping.state else { panic!("{:?}", look.overlapping) };
        assert!(
            why.ends_with("list overlappingrangeipreservations.whereabouts.cni.cncf.io"),
            "{why}"
        );
        assert_eq!(look.bounds.state, State::Absent);
        assert!(matches!(look.blocks.state, State::Unknown(_)));
        assert!(look.blocks.items.is_empty(), "half a list is none");
        assert!(matches!(look.handles.state, State::Unknown(_)));
        assert_eq!((&look.calico_pools.state, look.calico_pools.items.len()), (&State::All, 1));
        assert!(matches!(look.nodes.state, State::Unknown(_)), "every cluster has nodes");
        assert_eq!(look.pods.state, State::All);
        let last = asked().pop().unwrap();
        assert_eq!(last, "/api/v1/pods?limit=500&resourceVersion=0", "the pods are asked for last");
    }
}
